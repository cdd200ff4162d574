//! Policies of every form, for tests of what reads and writes them.

use jiff::civil::Weekday;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use crate::domain::policy::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
use crate::domain::time::Span;

/// Names that some format could take for something else.
const TRICKY: [&str; 40] = [
    "1",
    "-1",
    "+1",
    "007",
    "0x10",
    "0o7",
    "1_000",
    "1.50",
    "1e3",
    ".inf",
    ".nan",
    "yes",
    "no",
    "on",
    "true",
    "True",
    "null",
    "NULL",
    "~",
    "=",
    "<<",
    "a.b",
    "$set",
    "$symbol",
    "$minKey",
    "$oid",
    "a: b",
    "# a",
    "a #b",
    "- a",
    "*a",
    "&a",
    "!a",
    "|",
    ">",
    "%",
    "@",
    " a ",
    "'a\"",
    "2026-01-01",
];

/// A name: mostly ordinary, often one that has to be quoted.
pub fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        proptest::sample::select(&TRICKY[..]).prop_map(str::to_owned),
        r"\PC{1,40}",
        "[a-z ]{100,256}",
    ]
}

/// A policy of any form, mostly one without sense.
pub fn policy() -> impl Strategy<Value = PolicySpec> {
    let metric = vec(name(), 0..3).prop_map(|requires| MetricSpec { requires });
    (
        name(),
        option::of(name()),
        vec(name(), 0..4),
        btree_map(name(), metric, 0..3),
        vec(limit(), 0..4),
    )
        .prop_map(|(namespace, default_plan, plans, metrics, limits)| PolicySpec {
            namespace,
            default_plan,
            plans,
            metrics,
            limits,
        })
}

fn limit() -> impl Strategy<Value = LimitSpec> {
    (
        (name(), name(), btree_map(name(), vec(name(), 0..3), 0..3), vec(name(), 0..3)),
        (any::<bool>(), option::of(name()), window(), max()),
        prop_oneof![Just(Mode::Enforced), Just(Mode::Observed)],
    )
        .prop_map(
            |((name, metric, conditions, per), (optional, plan_of, window, max), mode)| LimitSpec {
                name,
                metric,
                conditions,
                per,
                optional,
                plan_of,
                window,
                max,
                mode,
            },
        )
}

fn window() -> impl Strategy<Value = WindowSpec> {
    let billing = (option::of(name()), option::of(plain_window().prop_map(Box::new)));
    let rolling = (0..100_000_i64, 1..2000_i64);
    prop_oneof![
        4 => plain_window(),
        1 => billing.prop_map(|(subject, without_period)| {
            WindowSpec::Billing { subject, without_period }
        }),
        1 => rolling.prop_map(|(secs, buckets)| {
            WindowSpec::Rolling { length: Span::from_secs(secs), buckets }
        }),
    ]
}

fn plain_window() -> impl Strategy<Value = WindowSpec> {
    let calendar = (unit(), name(), option::of(weekday()))
        .prop_map(|(unit, time_zone, week_start)| CalendarSpec { unit, time_zone, week_start });
    prop_oneof![
        Just(WindowSpec::Lifetime),
        calendar.prop_map(WindowSpec::Calendar),
        (0..=i64::MAX).prop_map(|millis| WindowSpec::Fixed(Span::from_millis(millis))),
        (0..100_000_i64).prop_map(|secs| WindowSpec::Fixed(Span::from_secs(secs))),
    ]
}

fn unit() -> impl Strategy<Value = CalendarUnit> {
    proptest::sample::select(vec![
        CalendarUnit::Hour,
        CalendarUnit::Day,
        CalendarUnit::Week,
        CalendarUnit::Month,
        CalendarUnit::Year,
    ])
}

fn weekday() -> impl Strategy<Value = Weekday> {
    (1..=7_i8).prop_map(|day| Weekday::from_monday_one_offset(day).unwrap())
}

fn max() -> impl Strategy<Value = MaxSpec> {
    prop_oneof![
        bound().prop_map(MaxSpec::Same),
        btree_map(name(), bound(), 0..4).prop_map(MaxSpec::ByPlan),
    ]
}

fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        Just(Bound::Unlimited),
        any::<i64>().prop_map(Bound::AtMost),
        (0..100_i64).prop_map(Bound::AtMost),
    ]
}
