//! Whatever a hand does to a counter, the recount finds it and its correction
//! sets it right, also when others went on meanwhile.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::domain::name::{Dimensions, ReservationKey};
use crate::domain::policy::Bound;
use crate::domain::reservation::{HistoryEntry, ItemRequest, Request};
use crate::domain::window::Rolling;

const NOW: i64 = 10_000_000;

fn at(millis: i64) -> Time {
    Time::saturating(millis)
}

fn windows() -> [Window; 3] {
    let rolling = Rolling::new(Span::from_secs(60), 6);
    let period = Window::Period { start: at(0), end: at(2 * NOW) };
    [Window::Lifetime, period, Window::Rolling(rolling)]
}

fn counter_id(window: &Window) -> Arc<CounterId> {
    Arc::new(CounterId::new("n", "l", "m", 1, Dimensions::new(), window.clone()))
}

/// One reservation: its units, when it was settled or runs out, how.
#[derive(Clone, Debug)]
enum Life {
    Held(i64, i64),
    Committed(i64, i64),
    Refunded(i64, i64, i64),
    Released(i64),
}

fn life() -> impl Strategy<Value = Life> {
    let ago = -90_000..0_i64;
    prop_oneof![
        (1..9_i64, -5000..60_000_i64).prop_map(|(units, until)| Life::Held(units, until)),
        (1..9_i64, ago.clone()).prop_map(|(units, at)| Life::Committed(units, at)),
        (1..9_i64, ago, 1..9_i64).prop_map(|(units, at, back)| Life::Refunded(units, at, back)),
        (1..9_i64).prop_map(Life::Released),
    ]
}

fn reservation(id: &Arc<CounterId>, n: usize, life: &Life) -> Reservation {
    let (units, until) = match *life {
        Life::Held(units, until) => (units, NOW + until),
        Life::Committed(units, _) | Life::Refunded(units, ..) | Life::Released(units) => {
            (units, NOW)
        }
    };
    let committed = |ago: i64| Settled::Committed {
        at: at(NOW + ago),
        amounts: vec![units],
        resources: Vec::new(),
    };
    let mut history = Vec::new();
    let settled = match *life {
        Life::Held(..) => Settled::Open,
        Life::Committed(_, ago) => committed(ago),
        Life::Refunded(_, ago, back) => {
            let entry = HistoryEntry::new(HistoryEvent::Refunded, at(NOW), vec![back], "p");
            history.push(HistoryEntry { refund_id: "f".to_owned(), ..entry });
            committed(ago)
        }
        Life::Released(_) => Settled::Released { at: at(NOW - 1) },
    };
    let item = ItemRequest { metric: "m".to_owned(), amount: units, dimensions: Dimensions::new() };
    let charge = Charge {
        counter: Arc::clone(id),
        items: vec![0],
        token: i64::try_from(n).unwrap(),
        bound: Bound::Unlimited,
        enforced: true,
        taken: Vec::new(),
    };
    Reservation {
        key: ReservationKey::new("n", &n.to_string()),
        request: Some(Arc::new(Request {
            items: vec![item],
            ttl: Span::from_secs(60),
            commit: false,
            resources: Vec::new(),
            labels: Dimensions::new(),
            adjustment: false,
        })),
        charges: [charge].into(),
        create_time: at(NOW - 100_000),
        expire_time: at(until),
        settled,
        history,
        policy_revision: 1,
        principal: "p".to_owned(),
        purge_at: None,
    }
}

fn recount(id: &Arc<CounterId>, lives: &[Life]) -> Recount {
    let mut recount = Recount::default();
    for (n, life) in lives.iter().enumerate() {
        let reservation = reservation(id, n, life);
        recount.add(&reservation.charges[0], &reservation, at(NOW));
    }
    recount
}

/// What a hand does to a counter.
fn tamper(counter: &mut Counter, used: i64, hold: i64) {
    match &mut counter.used {
        Used::Total(total) => *total = (*total + used).max(0),
        Used::Recent(buckets) => {
            if let Some(mut bucket) = buckets.last_entry() {
                let units = bucket.get().units + used;
                bucket.get_mut().units = units.max(0);
            }
        }
    }
    let until = at(NOW + 7000);
    let group = counter.holds.entry(until).or_default();
    *group = (*group + hold).max(0);
    counter.holds.retain(|_, units| *units > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn what_differs_is_found_and_set_right(
        lives in proptest::collection::vec(life(), 0..12),
        used in -9..9_i64,
        hold in -9..9_i64,
        meanwhile in 0..5_i64,
    ) {
        for window in windows() {
            let id = counter_id(&window);
            let recount = recount(&id, &lives);
            let now = at(NOW);
            // A counter that is missing is made anew.
            let mut right = Counter::new(Arc::clone(&id));
            right.correct(&recount.correction(None, &window, now), now);
            prop_assert_eq!(recount.differences(Some(&right), &id, now), vec![]);
            let mut wrong = right.clone();
            tamper(&mut wrong, used, hold);
            let found = recount.differences(Some(&wrong), &id, now);
            let same = wrong.used(now) == right.used(now) && wrong.live(now).eq(right.live(now));
            prop_assert_eq!(found.is_empty(), same);
            for difference in &found {
                prop_assert!(difference.stored >= 0 && difference.expected >= 0);
            }
            // Others went on before it was written.
            let correction = recount.correction(Some(&wrong), &window, now);
            for counter in [&mut wrong, &mut right] {
                if meanwhile > 0 {
                    counter.charge(&id, meanwhile, None, now);
                }
            }
            wrong.correct(&correction, now);
            prop_assert_eq!(wrong.used(now), right.used(now));
            prop_assert!(wrong.live(now).eq(right.live(now)));
        }
    }
}

#[test]
fn kinds_tell_what_happened() {
    let id = counter_id(&Window::Lifetime);
    let kinds = |lives: &[Life], stored: Option<i64>| {
        let counter = stored.map(|used| {
            let mut counter = Counter::new(Arc::clone(&id));
            counter.used = Used::Total(used);
            counter
        });
        let found = recount(&id, lives).differences(counter.as_ref(), &id, at(NOW));
        found.iter().map(|d| (d.kind.to_string(), d.stored, d.expected)).collect::<Vec<_>>()
    };
    let told = |kind: &str, stored, expected| vec![(kind.to_owned(), stored, expected)];
    let committed = [Life::Committed(5, -1)];
    assert_eq!(kinds(&committed, Some(5)), []);
    assert_eq!(kinds(&committed, Some(7)), told("used", 7, 5));
    assert_eq!(kinds(&committed, None), told("missing counter", 0, 5));
    assert_eq!(kinds(&[], Some(2)), told("orphan charge", 2, 0));
    assert_eq!(kinds(&[], None), []);
    let refunded = [Life::Refunded(5, -1, 2)];
    assert_eq!(kinds(&refunded, Some(1)), told("doubled refund", 1, 3));
    assert_eq!(kinds(&refunded, Some(2)), told("used", 2, 3));
    assert_eq!(kinds(&[Life::Held(3, 500)], Some(0)), told("held", 0, 3));
    assert_eq!(kinds(&[Life::Held(3, 0)], Some(0)), [], "it has just run out");
}

#[test]
fn what_retention_may_have_begun_to_remove_is_passed_over() {
    let retention = Span::from_secs(100);
    let period = Window::Period { start: at(0), end: at(1000) };
    let over = |first_end, now| passed_over(&period, first_end, retention, at(now));
    assert!(!over(None, 100_999));
    assert!(over(None, 101_000));
    assert!(over(Some(at(500)), 100_500), "what was admitted before its end was put off");
    for window in [&windows()[0], &windows()[2]] {
        assert!(!passed_over(window, None, retention, Time::MAX));
    }
}
