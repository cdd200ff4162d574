//! The changes of all steps add up to what a reservation counts, whatever
//! became of it: lives are lived by the rules themselves.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::domain::counter::Counter;
use crate::domain::decide::{
    Adjust, Command, Commit, Extend, FindBy, IfExpired, Refund, Release, Reserve, Rules, decide,
};
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::{
    Bound, LimitSpec, MaxSpec, MetricSpec, Mode, Policy, PolicyRevision, PolicySpec, WindowSpec,
};
use crate::domain::reservation::{ItemRequest, Request, ReservationState};
use crate::domain::state::{Records, State};
use crate::domain::subject::Subject;
use crate::domain::time::Span;

/// A world in which nothing has happened yet.
struct Nothing;

impl Records for Nothing {
    fn reservation(&self, _: &ReservationKey) -> Option<Option<&Arc<Reservation>>> {
        Some(None)
    }

    fn counter(&self, _: &Arc<CounterId>) -> Option<Option<&Counter>> {
        Some(None)
    }

    fn resource(&self, _: &ResourceKey) -> Option<Option<&ReservationKey>> {
        Some(None)
    }

    fn subject(&self, _: &SubjectKey) -> Option<Option<Arc<Subject>>> {
        Some(None)
    }
}

/// Limits of which some count all items, some a part of them.
fn policy() -> Policy {
    let limit = |name: &str, metric: &str, per: &[&str], window| LimitSpec {
        name: name.to_owned(),
        metric: metric.to_owned(),
        conditions: BTreeMap::new(),
        per: per.iter().map(ToString::to_string).collect(),
        optional: false,
        plan_of: None,
        window,
        max: MaxSpec::Same(Bound::Unlimited),
        mode: Mode::Enforced,
    };
    let metric = MetricSpec { requires: vec!["user".to_owned()] };
    let rolling = WindowSpec::Rolling { length: Span::from_secs(3600), buckets: 60 };
    let spec = PolicySpec {
        namespace: "n".to_owned(),
        default_plan: None,
        plans: Vec::new(),
        metrics: ["m", "k"].map(|name| (name.to_owned(), metric.clone())).into(),
        limits: vec![
            limit("all", "m", &[], WindowSpec::Lifetime),
            limit("each", "m", &["user"], rolling),
            limit("other", "k", &["user"], WindowSpec::Fixed(Span::from_secs(60))),
        ],
    };
    Policy::new(PolicyRevision {
        revision: 1,
        spec,
        generations: BTreeMap::new(),
        retired: Vec::new(),
        create_time: Time::default(),
        principal: String::new(),
        from_file: false,
    })
    .unwrap()
}

/// What is done to a reservation, and how long after the step before.
#[derive(Clone, Debug)]
enum Act {
    Commit(Vec<i64>),
    Release,
    Extend,
    Refund(u8, Vec<i64>),
    /// An operator takes units from a counter.
    TakeAway,
    Nothing,
}

fn act() -> impl Strategy<Value = (Act, i64)> {
    let act = prop_oneof![
        Just(Act::Commit(Vec::new())),
        proptest::collection::vec(0..4i64, 1..4).prop_map(Act::Commit),
        Just(Act::Release),
        Just(Act::Extend),
        (0..3u8, proptest::collection::vec(0..4i64, 0..4)).prop_map(|(n, a)| Act::Refund(n, a)),
        Just(Act::TakeAway),
        Just(Act::Nothing),
    ];
    (act, 0..90_000i64)
}

fn item() -> impl Strategy<Value = ItemRequest> {
    let metric = prop_oneof![Just("m"), Just("k")];
    let user = prop_oneof![Just("a"), Just("b")];
    (metric, 1..5i64, user).prop_map(|(metric, amount, user)| ItemRequest {
        metric: metric.to_owned(),
        amount,
        dimensions: [("user".to_owned(), user.to_owned())].into(),
    })
}

/// Lives it; gives the reservation and the instant of the last act.
fn live(items: Vec<ItemRequest>, commit: bool, acts: Vec<(Act, i64)>) -> (Arc<Reservation>, Time) {
    let policy = policy();
    let key = ReservationKey::new("n", "r");
    let mut state = State::over(&Nothing, false);
    let mut now = Time::saturating(1_000_000);
    let (resources, labels) = (Vec::new(), Dimensions::new());
    let ttl = Span::from_secs(60);
    let adjustment = false;
    let request = Arc::new(Request { items, ttl, commit, resources, labels, adjustment });
    let reserve = Reserve { key: key.clone(), request, principal: "p".to_owned() };
    let mut commands = vec![(Some(Command::Reserve(reserve)), 0)];
    for (act, after) in acts {
        let (key, principal) = (key.clone(), "p".to_owned());
        let command = match act {
            Act::Commit(amounts) => {
                let if_expired = IfExpired::Reclaim;
                let resources = Vec::new();
                Command::Commit(Commit { key, amounts, resources, if_expired, principal })
            }
            Act::Release => {
                let reason = "because".to_owned();
                Command::Release(Release { key, reason, allow_missing: false, principal })
            }
            Act::Extend => {
                let ttl = Span::from_secs(60);
                Command::Extend(Extend { key, ttl, principal })
            }
            Act::Refund(n, amounts) => Command::Refund(Refund {
                find_by: FindBy::Id(key),
                refund_id: n.to_string(),
                amounts,
                reason: String::new(),
                principal,
            }),
            Act::TakeAway => Command::Adjust(Adjust {
                key: ReservationKey::new("n", &format!("by hand {}", commands.len())),
                limit: "all".to_owned(),
                counter: Dimensions::new(),
                delta: -1,
                resources: Vec::new(),
                reason: String::new(),
                principal,
            }),
            Act::Nothing => {
                commands.push((None, after));
                continue;
            }
        };
        commands.push((Some(command), after));
    }
    for (command, after) in commands {
        now = now.plus(Span::from_millis(after));
        let retention = Span::from_days(30);
        let rules = Rules { policy: Some(&policy), clock: now, retention, line: None };
        // Many an act comes too late, or twice: then nothing is changed.
        if let Some(command) = command {
            let _ = decide(&mut state, &rules, &command);
        }
    }
    let made = state.into_changes().reservations.remove(&key).flatten();
    (made.unwrap(), now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_changes_of_all_steps_add_up_to_what_is_counted(
        items in proptest::collection::vec(item(), 1..4),
        commit in any::<bool>(),
        acts in proptest::collection::vec(act(), 0..6),
    ) {
        let (reservation, now) = live(items, commit, acts);
        let told = steps(&reservation, now);
        let held = reservation.state(now) == ReservationState::Held;
        for charge in reservation.charges.iter() {
            let changes: Vec<&CounterChange> = told
                .iter()
                .flat_map(|entry| &entry.changes)
                .filter(|change| change.counter == charge.counter)
                .collect();
            let used: i64 = changes.iter().map(|change| change.used).sum();
            prop_assert_eq!(used, reservation.used_by(charge));
            let still_held: i64 = changes.iter().map(|change| change.held).sum();
            prop_assert_eq!(still_held, if held { reservation.held_by(charge) } else { 0 });
        }
        let charged = reservation.charges.len();
        prop_assert!(told.iter().all(|entry| entry.changes.len() <= charged));
        prop_assert!(told.is_sorted_by_key(|entry| entry.time));
        prop_assert_eq!(told[0].kind, TrailKind::Step(HistoryEvent::Reserved));
    }
}

fn item_of(metric: &str, amount: i64) -> ItemRequest {
    let dimensions = [("user".to_owned(), "a".to_owned())].into();
    ItemRequest { metric: metric.to_owned(), amount, dimensions }
}

/// Limit, used and held of each change.
fn told(entry: &TrailEntry) -> Vec<(&str, i64, i64)> {
    entry.changes.iter().map(|c| (c.counter.limit.as_str(), c.used, c.held)).collect()
}

#[test]
fn an_expiry_gives_back_what_was_held_of_each_counter() {
    let acts = vec![(Act::Nothing, 90_000)];
    let (reservation, now) = live(vec![item_of("m", 3), item_of("k", 1)], false, acts);
    let entries = steps(&reservation, now);
    assert_eq!(entries.len(), 2);
    assert_eq!(told(&entries[0]), [("all", 0, 3), ("each", 0, 3), ("other", 0, 1)]);
    assert_eq!(told(&entries[1]), [("all", 0, -3), ("each", 0, -3), ("other", 0, -1)]);
    assert_eq!(entries[1].kind, TrailKind::Step(HistoryEvent::Expired));
    assert_eq!(entries[1].time, reservation.expire_time);
    assert_eq!(entries[1].details["amounts"], "m=3, k=1");
}

#[test]
fn a_commit_of_a_part_frees_the_rest() {
    let acts = vec![(Act::Commit(vec![1, 0]), 5)];
    let (reservation, now) = live(vec![item_of("m", 3), item_of("k", 2)], false, acts);
    let entries = steps(&reservation, now);
    assert_eq!(told(&entries[1]), [("all", 1, -3), ("each", 1, -3), ("other", 0, -2)]);
}

#[test]
fn what_is_used_at_once_was_never_held() {
    let (reservation, now) = live(vec![item_of("k", 2)], true, Vec::new());
    let entries = steps(&reservation, now);
    assert_eq!(told(&entries[0]), []);
    assert_eq!(told(&entries[1]), [("other", 2, 0)]);
}

#[test]
fn long_lists_are_cut() {
    let names = (0..100).map(|n| format!("metric-{n}"));
    let text = listed(names);
    assert!(text.len() <= MAX_DETAIL + 16 && text.ends_with(", …"), "{text}");
    assert_eq!(listed(["a", "b"].map(str::to_owned).into_iter()), "a, b");
}
