//! Records to write.

use std::collections::BTreeMap;
use std::sync::Arc;

use quota_authority::domain::counter::{Bucket, Counter, CounterId, Used};
use quota_authority::domain::event::{Event, EventKind};
use quota_authority::domain::name::{Dimensions, ReservationKey, ResourceKey, SubjectKey};
use quota_authority::domain::policy::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, Mode, PolicyRevision,
    PolicySpec, WindowSpec,
};
use quota_authority::domain::reservation::{
    Charge, HistoryEntry, HistoryEvent, ItemRequest, Request, Reservation, Settled,
};
use quota_authority::domain::subject::{Override, OverrideChange, Subject};
use quota_authority::domain::time::{Span, Time};
use quota_authority::domain::window::{
    Anchor, Billing, BillingPeriod, Interval, OnLapse, Rolling, Window,
};
use quota_authority::store::{Binding, Change, ChangeSet, Extent, Removal};

/// Far enough ahead that no retention removes a record during a test.
pub const FAR: i64 = 4_000_000_000_000;

pub fn at(millis: i64) -> Time {
    Time::from_millis(millis).unwrap()
}

pub fn dimensions(pairs: &[(&str, &str)]) -> Dimensions {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub fn counter_id(namespace: &str, key: &str) -> Arc<CounterId> {
    let window = Window::Period { start: at(1_700_000_000_000), end: at(FAR) };
    Arc::new(CounterId::new(namespace, "l.$/", "m", 3, dimensions(&[("$user.id", key)]), window))
}

pub fn counter(namespace: &str, key: &str, used: i64) -> Counter {
    Counter {
        id: counter_id(namespace, key),
        used: Used::Total(used),
        holds: BTreeMap::from([(at(FAR), 4), (at(FAR + 16), i64::MAX / 2)]),
        as_of: at(1_700_000_000_001),
        token: 1_700_000_000_001_000,
        first_end: Some(at(1_700_000_000_000)),
    }
}

/// Counters in windows of every kind, each before and after a change: the
/// bounds of the billing period are corrected by it.
pub fn windowed(namespace: &str) -> Vec<[Counter; 2]> {
    let billing = |end| Window::Billing { id: "a/b".into(), start: at(0), end: at(end) };
    let rolling = Rolling::new(Span::from_days(1), 96);
    let bucket = |units, last| Bucket { units, last: at(last) };
    let buckets = [(at(900_000), bucket(3, 900_001)), (at(1_800_000), bucket(i64::MAX, 2_000_000))];
    let of = |key: &str, window, used| {
        let key = dimensions(&[("key", key)]);
        let id = Arc::new(CounterId::new(namespace, "l", "m", 1, key, window));
        Counter { id, used, ..counter(namespace, "x", 0) }
    };
    let total = Used::Total;
    vec![
        [of("a", Window::Lifetime, total(1)), of("a", Window::Lifetime, total(2))],
        [of("b", billing(FAR), total(1)), of("b", billing(FAR + 1), total(2))],
        [
            of("c", Window::Rolling(rolling), Used::Recent(BTreeMap::new())),
            of("c", Window::Rolling(rolling), Used::Recent(buckets.into())),
        ],
    ]
}

/// A subject with each kind of billing.
pub fn billed(namespace: &str) -> Vec<Subject> {
    let period =
        |id: &str, start, end| BillingPeriod { id: id.to_owned(), start: at(start), end: at(end) };
    let anchor = |interval| {
        let time_zone = "Europe/Berlin".to_owned();
        Billing::Anchor(Anchor { start: at(1), interval, time_zone })
    };
    let periods = |on_lapse| Billing::Periods {
        periods: vec![period("", 5, FAR), period("$a.b", 1, 5)],
        on_lapse,
    };
    let all = [
        periods(OnLapse::Deny),
        periods(OnLapse::Roll),
        anchor(Interval::Months(3)),
        anchor(Interval::Every(Span::from_days(30))),
    ];
    let billed = all.into_iter().enumerate();
    let billed = billed.map(|(n, billing)| Subject {
        billing: Some(billing),
        ..subject(namespace, &format!("billed-{n}"))
    });
    billed.collect()
}

pub fn reservation(namespace: &str, id: &str) -> Arc<Reservation> {
    Arc::new(made(namespace, id))
}

fn made(namespace: &str, id: &str) -> Reservation {
    let item = |amount| ItemRequest {
        metric: "m".to_owned(),
        amount,
        dimensions: dimensions(&[("$user.id", "a.b"), ("", "")]),
    };
    let charge = |bound, key: &str| Charge {
        counter: counter_id(namespace, key),
        items: vec![0, 1],
        token: 17,
        bound,
        enforced: bound == Bound::Unlimited,
        taken: vec![(at(1_700_000_000_000), 3)],
    };
    Reservation {
        key: ReservationKey::new(namespace, id),
        request: Some(Arc::new(Request {
            items: vec![item(1), item(i64::MAX)],
            ttl: Span::from_secs(60),
            commit: false,
            resources: vec!["planned".to_owned()],
            labels: dimensions(&[("who", "me")]),
            adjustment: false,
        })),
        charges: [charge(Bound::AtMost(i64::MAX), "x"), charge(Bound::Unlimited, "y")].into(),
        create_time: at(1_700_000_000_000),
        expire_time: at(FAR),
        settled: Settled::Open,
        history: vec![HistoryEntry {
            time: at(1_700_000_000_000),
            event: HistoryEvent::Reserved,
            amounts: vec![1, i64::MAX],
            principal: "anonymous".to_owned(),
            reason: "because".to_owned(),
            refund_id: "r/1".to_owned(),
            unfreed: vec![(1, 2)],
            times: 3,
        }],
        policy_revision: 9,
        principal: "anonymous".to_owned(),
        purge_at: Some(at(FAR)),
    }
}

pub fn settled(reservation: Arc<Reservation>) -> Arc<Reservation> {
    let mut reservation = Reservation::clone(&reservation);
    reservation.settled = Settled::Committed {
        at: at(1_700_000_000_500),
        amounts: vec![1, 0],
        resources: vec!["planned".to_owned(), "a/b".to_owned()],
    };
    let (event, time) = (HistoryEvent::Committed, at(1_700_000_000_500));
    reservation.history.push(HistoryEntry::new(event, time, vec![1, 0], "anonymous"));
    reservation.purge_at = None;
    Arc::new(reservation)
}

/// The record that a Release leaves where no Reserve came.
pub fn never_reserved(namespace: &str, id: &str) -> Arc<Reservation> {
    Arc::new(Reservation {
        request: None,
        charges: Arc::default(),
        settled: Settled::Released { at: at(1_700_000_000_000) },
        ..made(namespace, id)
    })
}

pub fn subject(namespace: &str, id: &str) -> Subject {
    let over = |change, expire_time| Override { limit: "l".to_owned(), change, expire_time };
    Subject {
        namespace: namespace.to_owned(),
        kind: "user.$".to_owned(),
        id: id.to_owned(),
        plan: "pro".to_owned(),
        billing: None,
        overrides: vec![
            over(OverrideChange::Set(0), None),
            over(OverrideChange::Add(-5), Some(at(FAR))),
        ],
        frozen: true,
        labels: dimensions(&[("k", "v")]),
        update_time: at(1_700_000_000_000),
    }
}

pub fn policy(namespace: &str, revision: i64) -> PolicyRevision {
    let limit = |name: &str, window, max| LimitSpec {
        name: name.to_owned(),
        metric: "m.$".to_owned(),
        conditions: BTreeMap::from([("a.b".to_owned(), vec!["$x".to_owned(), "1".to_owned()])]),
        per: vec!["$user.id".to_owned()],
        optional: true,
        plan_of: Some("org".to_owned()),
        window,
        max,
        mode: Mode::Observed,
    };
    let by_plan = BTreeMap::from([
        ("free".to_owned(), Bound::AtMost(0)),
        ("pro".to_owned(), Bound::Unlimited),
    ]);
    let week = WindowSpec::Calendar(CalendarSpec {
        unit: CalendarUnit::Week,
        time_zone: "Asia/Shanghai".to_owned(),
        week_start: Some(jiff::civil::Weekday::Sunday),
    });
    let billing = WindowSpec::Billing {
        subject: Some("org".to_owned()),
        without_period: Some(Box::new(WindowSpec::Fixed(Span::from_secs(60)))),
    };
    let rolling = WindowSpec::Rolling { length: Span::from_millis(1001), buckets: 7 };
    PolicyRevision {
        revision,
        spec: PolicySpec {
            namespace: namespace.to_owned(),
            default_plan: Some("free".to_owned()),
            plans: vec!["free".to_owned(), "pro".to_owned()],
            metrics: BTreeMap::from([(
                "m.$".to_owned(),
                MetricSpec { requires: vec!["$user.id".to_owned()] },
            )]),
            limits: vec![
                limit("by plan", week, MaxSpec::ByPlan(by_plan)),
                limit("billed", billing, MaxSpec::Same(Bound::Unlimited)),
                limit("rolls", rolling, MaxSpec::Same(Bound::AtMost(1))),
                limit("all", WindowSpec::Lifetime, MaxSpec::Same(Bound::AtMost(i64::MAX))),
            ],
        },
        generations: BTreeMap::from([("all".to_owned(), 2), ("by plan".to_owned(), 1)]),
        retired: vec![(
            limit(
                "old",
                WindowSpec::Fixed(Span::from_millis(90_061_001)),
                MaxSpec::Same(Bound::Unlimited),
            ),
            7,
        )],
        create_time: at(1_700_000_000_000),
        principal: "somebody".to_owned(),
        from_file: revision % 2 == 1,
    }
}

pub fn event(namespace: &str) -> Event {
    Event {
        namespace: namespace.to_owned(),
        time: at(1_700_000_000_000),
        kind: EventKind::PolicyApplied,
        principal: "somebody".to_owned(),
        reason: String::new(),
        reservation_id: String::new(),
        subject: String::new(),
        limits: Vec::new(),
        details: dimensions(&[("revision", "1")]),
        purge_at: Some(at(FAR)),
    }
}

pub fn put<T>(expected: Option<i64>, version: i64, value: T) -> Change<T> {
    Change {
        expected,
        version,
        value,
        purge_at: Some(at(FAR)),
        proven: false,
        extent: Extent::Usual,
    }
}

/// The removal of a [`subject`] of namespace `n`.
pub fn remove(id: &str, expected: i64) -> Removal<SubjectKey> {
    Removal { key: subject("n", id).key(), expected }
}

pub fn bind(namespace: &str, resource: &str, owner: &str) -> Binding {
    Binding {
        resource: ResourceKey::new(namespace, resource),
        owner: ReservationKey::new(namespace, owner),
        purge_at: None,
    }
}

pub fn counters(changes: Vec<Change<Counter>>) -> ChangeSet {
    ChangeSet { counters: changes, ..ChangeSet::default() }
}

pub fn reservations(changes: Vec<Change<Arc<Reservation>>>) -> ChangeSet {
    ChangeSet { reservations: changes, ..ChangeSet::default() }
}
