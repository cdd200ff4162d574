//! What the conversion keeps and what it refuses.

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::domain::policy::{CalendarSpec, CalendarUnit};
use crate::store::document::policy::PolicyDoc;

proptest! {
    #[test]
    fn nothing_is_lost_on_the_wire(spec in PolicyDoc::any_spec()) {
        let bytes = spec_to_policy(&spec).encode_to_vec();
        let policy = v1::Policy::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(policy_to_spec(policy), Ok(spec));
    }
}

fn limit_with(kind: Option<v1::window_rule::Kind>, max: Option<v1::max::Kind>) -> v1::Limit {
    v1::Limit {
        name: "l".to_owned(),
        metric: "m".to_owned(),
        window: kind.map(|kind| v1::WindowRule { kind: Some(kind) }),
        max: max.map(|kind| v1::Max { kind: Some(kind) }),
        ..v1::Limit::default()
    }
}

fn faults(limits: Vec<v1::Limit>) -> Vec<String> {
    let policy = v1::Policy { limits, ..v1::Policy::default() };
    policy_to_spec(policy).unwrap_err().iter().map(ToString::to_string).collect()
}

fn fixed(length: Option<prost_types::Duration>) -> v1::Limit {
    limit_with(Some(v1::window_rule::Kind::Fixed(v1::FixedWindow { length })), ONE)
}

const ONE: Option<v1::max::Kind> = Some(v1::max::Kind::Amount(1));

#[test]
fn what_is_unset_has_its_default() {
    let calendar = v1::CalendarWindow { unit: 3, time_zone: String::new(), week_start: 0 };
    let limit = limit_with(Some(v1::window_rule::Kind::Calendar(calendar)), ONE);
    let spec = policy_to_spec(v1::Policy { limits: vec![limit], ..v1::Policy::default() }).unwrap();
    assert_eq!(spec.default_plan, None);
    let limit = &spec.limits[0];
    assert_eq!((&limit.plan_of, limit.mode), (&None, Mode::Enforced));
    let time_zone = "UTC".to_owned();
    let week = CalendarSpec { unit: CalendarUnit::Week, time_zone, week_start: None };
    assert_eq!(limit.window, WindowSpec::Calendar(week));
}

#[test]
fn names_every_fault_at_once() {
    use v1::window_rule::Kind;
    let plans = [
        ("a", None),
        ("b", Some(v1::plan_max::Kind::Unlimited(false))),
        ("c", Some(v1::plan_max::Kind::Amount(-1))),
    ];
    let plans = plans.map(|(plan, kind)| (plan.to_owned(), v1::PlanMax { kind })).into();
    let calendar = |unit, week_start| {
        Some(Kind::Calendar(v1::CalendarWindow { unit, week_start, time_zone: String::new() }))
    };
    let billing = Box::new(v1::BillingWindow {
        subject: String::new(),
        without_period: Some(Box::default()),
    });
    let limits = vec![
        limit_with(None, None),
        v1::Limit { mode: 7, ..limit_with(calendar(0, 8), Some(v1::max::Kind::Unlimited(false))) },
        limit_with(calendar(9, 0), Some(v1::max::Kind::ByPlan(v1::MaxByPlan { plans }))),
        limit_with(Some(Kind::Billing(billing)), ONE),
        limit_with(Some(Kind::Rolling(v1::RollingWindow::default())), ONE),
    ];
    assert_eq!(
        faults(limits),
        [
            "policy.limits[0].window: must be set: one of lifetime, calendar, fixed, \
             billing and rolling",
            "policy.limits[0].max: must be set: one of amount, unlimited and by_plan",
            "policy.limits[1].window.calendar.unit: must be set: hour, day, week, month or year",
            "policy.limits[1].window.calendar.week_start: 8 is not a Weekday",
            "policy.limits[1].max.unlimited: must be true; for a maximum set amount",
            "policy.limits[1].mode: 7 is not a LimitMode",
            "policy.limits[2].window.calendar.unit: 9 is not a CalendarUnit",
            "policy.limits[2].max.by_plan[a]: must be set: one of amount and unlimited",
            "policy.limits[2].max.by_plan[b].unlimited: must be true; for a maximum set amount",
            "policy.limits[3].window.billing.without_period: must be set: one of lifetime, calendar, \
             fixed, billing and rolling",
            "policy.limits[4].window.rolling.length: must be set",
        ]
    );
}

#[test]
fn refuses_lengths_that_are_none() {
    let cases = [
        (-1, 0, "must not be negative"),
        (0, -1_000_000, "must not be negative"),
        (1, 1_000_000_000, "has 1000000000 nanos; at most 999999999 are allowed"),
        (1, 1, "must be whole milliseconds"),
        (i64::MAX, 0, "is longer than 2^63-1 ms"),
    ];
    for (seconds, nanos, message) in cases {
        let found = faults(vec![fixed(Some(prost_types::Duration { seconds, nanos }))]);
        assert_eq!(found, [format!("policy.limits[0].window.fixed.length: {message}")]);
    }
    let found = faults(vec![fixed(None)]);
    assert_eq!(found, ["policy.limits[0].window.fixed.length: must be set"]);
}
