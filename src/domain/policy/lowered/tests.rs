use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::domain::counter::Used;
use crate::domain::policy::{
    Applied, LimitSpec, MetricSpec, Mode, PolicyRevision, PolicySpec, WindowSpec,
};
use crate::domain::subject::{Override, OverrideChange};
use crate::domain::time::Span;
use crate::domain::window::Window;

const MINUTE: Span = Span::from_secs(60);

fn at(seconds: i64) -> Time {
    Time::from_millis(seconds * 1000).unwrap()
}

fn same(max: i64) -> MaxSpec {
    MaxSpec::Same(Bound::AtMost(max))
}

fn by_plan(free: i64, pro: i64) -> MaxSpec {
    let bounds =
        [("free", free), ("pro", pro)].map(|(plan, n)| (plan.to_owned(), Bound::AtMost(n)));
    MaxSpec::ByPlan(bounds.into())
}

fn limit(max: MaxSpec) -> LimitSpec {
    LimitSpec {
        name: "l/1".to_owned(),
        metric: "m".to_owned(),
        conditions: [].into(),
        per: vec!["user".to_owned()],
        optional: false,
        plan_of: None,
        window: WindowSpec::Fixed(MINUTE),
        max,
        mode: Mode::Enforced,
    }
}

fn spec(limit: LimitSpec, default_plan: &str) -> PolicySpec {
    let requires = ["user", "team"].map(str::to_owned).into();
    PolicySpec {
        namespace: "n".to_owned(),
        default_plan: Some(default_plan.to_owned()),
        plans: ["free", "pro"].map(str::to_owned).into(),
        metrics: [("m".to_owned(), MetricSpec { requires })].into(),
        limits: vec![limit],
    }
}

fn apply(current: Option<&Policy>, spec: PolicySpec) -> Policy {
    let current = current.map(|policy| &policy.source);
    match PolicyRevision::after(current, spec, at(0), "test") {
        Applied::Changed { revision, .. } => Policy::new(*revision).unwrap(),
        Applied::Unchanged => panic!("nothing changed"),
    }
}

fn subject(id: &str, plan: &str, change: Option<OverrideChange>) -> Subject {
    let over = |change| Override { limit: "l/1".to_owned(), change, expire_time: None };
    Subject {
        namespace: "n".to_owned(),
        kind: "user".to_owned(),
        id: id.to_owned(),
        plan: plan.to_owned(),
        overrides: change.map(over).into_iter().collect(),
        ..Subject::default()
    }
}

/// Which of these counters of users, each with what it has used, are over.
fn over_at(
    (before, after): (&Policy, &Policy),
    used: &[(&str, i64)],
    subjects: &[Subject],
    now: Time,
) -> Vec<String> {
    let subjects: HashMap<SubjectKey, &Subject> = subjects.iter().map(|s| (s.key(), s)).collect();
    let mut found = Vec::new();
    for lowered in lowered(before, after) {
        for (user, used) in used {
            let key = [("user".to_owned(), (*user).to_owned())].into();
            let window = Window::Period { start: at(0), end: at(60) };
            let id = Arc::new(CounterId::new("n", "l/1", "m", 1, key, window));
            assert!(id.text.starts_with(&lowered.prefix()), "{}", id.text);
            let counter = Counter { used: Used::Total(*used), ..Counter::new(id) };
            let status = lowered.over(&counter, |key| subjects.get(key).copied(), now);
            found.extend(status.map(|status| {
                assert!(status.enforced && status.used == *used);
                (*user).to_owned()
            }));
        }
    }
    found
}

/// The same for a change of one limit, from the counters of users who have used
/// as much as their name says.
fn over(old: LimitSpec, new: LimitSpec, users: &[&str], subjects: &[Subject]) -> Vec<String> {
    let before = apply(None, spec(old, "free"));
    let after = apply(Some(&before), spec(new, "free"));
    let used: Vec<(&str, i64)> = users
        .iter()
        .map(|user| (*user, user.trim_end_matches(char::is_alphabetic).parse().unwrap()))
        .collect();
    over_at((&before, &after), &used, subjects, at(30))
}

#[test]
fn what_is_above_a_lower_max_is_over() {
    let users = ["0", "2", "3", "9"];
    assert_eq!(over(limit(same(5)), limit(same(2)), &users, &[]), ["3", "9"]);
    // It was over already, and is so by more now.
    assert_eq!(over(limit(same(2)), limit(same(0)), &users, &[]), ["2", "3", "9"]);
    let unlimited = || limit(MaxSpec::Same(Bound::Unlimited));
    assert_eq!(over(unlimited(), limit(same(2)), &users, &[]), ["3", "9"]);
    for raised in [limit(same(6)), unlimited()] {
        assert!(over(limit(same(5)), raised, &users, &[]).is_empty());
    }
}

#[test]
fn only_what_refuses_counts() {
    let observed = |max| LimitSpec { mode: Mode::Observed, ..limit(same(max)) };
    let users = ["5", "6"];
    assert_eq!(over(observed(5), limit(same(5)), &users, &[]), ["6"]);
    assert_eq!(over(observed(1), limit(same(5)), &users, &[]), ["6"], "it held nobody to it");
    assert!(over(limit(same(5)), observed(1), &users, &[]).is_empty());
    assert!(over(observed(5), observed(1), &users, &[]).is_empty());
}

#[test]
fn each_by_its_own_plan() {
    let users = ["4a", "4b", "4c"];
    let subjects = [subject("4a", "pro", None), subject("4b", "free", None)];
    assert_eq!(over(limit(by_plan(9, 9)), limit(by_plan(3, 9)), &users, &subjects), ["4b", "4c"]);
    assert_eq!(over(limit(by_plan(9, 9)), limit(by_plan(9, 3)), &users, &subjects), ["4a"]);
    assert!(over(limit(by_plan(3, 3)), limit(by_plan(3, 9)), &users, &subjects).is_empty());
    // From one max for everybody, and to it.
    assert_eq!(over(limit(same(9)), limit(by_plan(3, 9)), &users, &subjects), ["4b", "4c"]);
    assert_eq!(over(limit(by_plan(3, 9)), limit(same(3)), &users, &subjects), ["4a"]);
}

#[test]
fn subjects_of_a_plan_that_has_gone_are_not_forgotten() {
    let before = apply(None, spec(limit(by_plan(3, 9)), "free"));
    let without = PolicySpec { plans: vec!["free".to_owned()], ..spec(limit(same(3)), "free") };
    let after = apply(Some(&before), without);
    let subjects = [subject("a", "pro", None)];
    assert_eq!(over_at((&before, &after), &[("a", 5)], &subjects, at(30)), ["a"]);
}

#[test]
fn another_default_plan_lowers_for_those_without_one() {
    let before = apply(None, spec(limit(by_plan(3, 9)), "pro"));
    let after = apply(Some(&before), spec(limit(by_plan(3, 9)), "free"));
    let subjects = [subject("a", "pro", None), subject("b", "", None)];
    let used = [("a", 5), ("b", 5), ("c", 5)];
    assert_eq!(over_at((&before, &after), &used, &subjects, at(30)), ["b", "c"]);
    assert!(over_at((&after, &before), &used, &subjects, at(30)).is_empty());
}

#[test]
fn exceptions_are_respected() {
    let subjects = [
        subject("8set", "", Some(OverrideChange::Set(8))),
        subject("8add", "", Some(OverrideChange::Add(3))),
        subject("8more", "", Some(OverrideChange::Add(6))),
        subject("8less", "", Some(OverrideChange::Set(1))),
    ];
    let users = ["8set", "8add", "8more", "8less", "8none"];
    // Who may have as much as before is not over by this change.
    assert_eq!(over(limit(same(5)), limit(same(2)), &users, &subjects), ["8add", "8none"]);
}

#[test]
fn closed_windows_and_fresh_counters_are_left_alone() {
    let before = apply(None, spec(limit(same(5)), "free"));
    let after = apply(Some(&before), spec(limit(same(2)), "free"));
    let over = |now| over_at((&before, &after), &[("a", 3)], &[], now);
    assert_eq!(over(at(59)), ["a"]);
    assert!(over(at(60)).is_empty());
    let longer = LimitSpec { window: WindowSpec::Fixed(Span::from_secs(120)), ..limit(same(2)) };
    let restarted = apply(Some(&before), spec(longer, "free"));
    assert!(lowered(&before, &restarted).is_empty());
    let new = LimitSpec { name: "new".to_owned(), ..limit(same(0)) };
    let other = apply(Some(&before), spec(new, "free"));
    assert!(lowered(&before, &other).is_empty());
    // It comes back with what it has counted.
    let back = apply(Some(&other), spec(limit(same(2)), "free"));
    assert_eq!(over_at((&other, &back), &[("a", 3)], &[], at(1)), ["a"]);
}

#[test]
fn where_the_subject_cannot_be_told_the_largest_max_stands() {
    let of_team = |max| LimitSpec { plan_of: Some("team".to_owned()), ..limit(max) };
    let users = ["4", "8"];
    assert_eq!(over(of_team(by_plan(3, 9)), of_team(by_plan(3, 5)), &users, &[]), ["8"]);
    assert!(over(of_team(by_plan(9, 9)), of_team(by_plan(3, 9)), &users, &[]).is_empty());
    // The same max, but for whom is another question now.
    assert_eq!(over(limit(by_plan(9, 9)), of_team(by_plan(3, 5)), &users, &[]), ["8"]);
    assert_eq!(over(of_team(by_plan(3, 9)), limit(by_plan(3, 9)), &users, &[]), ["4", "8"]);
}

#[test]
fn live_holds_count() {
    let before = apply(None, spec(limit(same(5)), "free"));
    let after = apply(Some(&before), spec(limit(same(2)), "free"));
    let window = Window::Period { start: at(0), end: at(60) };
    let id = Arc::new(CounterId::new("n", "l/1", "m", 1, [].into(), window));
    let holds = [(at(10), 2), (at(50), 1)].into();
    let counter = Counter { used: Used::Total(1), holds, ..Counter::new(id) };
    let over = |now| lowered(&before, &after)[0].over(&counter, |_| None, now);
    let status = over(at(9)).unwrap();
    assert_eq!((status.used, status.held, status.available()), (1, 3, Some(0)));
    assert_eq!(over(at(10)), None);
}
