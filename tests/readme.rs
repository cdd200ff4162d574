//! The tables of the README say what the program does: they are made here and
//! compared. `UPDATE_README=1 cargo test --test readme` writes them anew.

#[path = "support/readme.rs"]
mod readme;

use std::fmt::Write as _;

use quota_authority::api::policy_file;
use quota_authority::domain::policy::{Applied, Policy, PolicyRevision};
use quota_authority::domain::time::Time;
use quota_authority::domain::window::{
    Anchor, Billing, BillingPeriod, Interval, OnLapse, Window, WindowRule,
};

/// A leap day's last half hour; half an hour before clocks go forward in
/// Berlin; and after they went back in Havana, where midnight came twice.
const INSTANTS: [&str; 3] =
    ["2024-02-29T23:30:00Z", "2024-03-31T00:30:00Z", "2025-11-02T05:30:00Z"];

/// Windows as a policy writes them.
const WRITTEN: [&str; 10] = [
    "lifetime",
    "{ calendar: { unit: hour, time_zone: Asia/Kolkata } }",
    "{ calendar: { unit: day, time_zone: Europe/Berlin } }",
    "{ calendar: { unit: day, time_zone: America/Havana } }",
    "{ calendar: { unit: week, time_zone: Europe/Berlin } }",
    "{ calendar: { unit: week, time_zone: UTC, week_start: sunday } }",
    "{ calendar: { unit: month, time_zone: Pacific/Auckland } }",
    "{ calendar: { unit: year, time_zone: UTC } }",
    "{ fixed: { length: 7d } }",
    "{ rolling: { length: 24h } }",
];

/// What a subject may have instead of nothing, for billing windows.
fn subjects() -> [(&'static str, Option<Billing>); 4] {
    let anchor = Anchor {
        start: instant("2024-01-31T09:00:00Z"),
        interval: Interval::Months(1),
        time_zone: "Europe/Berlin".to_owned(),
    };
    let periods = |on_lapse| {
        let (start, end) = (instant("2024-02-15T00:00:00Z"), instant("2024-03-15T00:00:00Z"));
        let periods = vec![BillingPeriod { id: String::new(), start, end }];
        Some(Billing::Periods { periods, on_lapse })
    };
    [
        ("anchor 31 January 2024, 10:00 in Berlin, every month", Some(Billing::Anchor(anchor))),
        ("one period, 15 February to 15 March 2024, then `deny`", periods(OnLapse::Deny)),
        ("the same, then `roll`", periods(OnLapse::Roll)),
        ("no billing; `without_period` is the calendar month, UTC", None),
    ]
}

const BILLING: &str =
    "{ billing: { without_period: { calendar: { unit: month, time_zone: UTC } } } }";

fn instant(text: &str) -> Time {
    let timestamp: jiff::Timestamp = text.parse().expect("an instant");
    Time::from_millis(timestamp.as_millisecond()).expect("within bounds")
}

/// The rule of a window, as a policy file's reader finds it.
fn rule(window: &str) -> WindowRule {
    let text = format!(
        "namespace: n\nmetrics: {{ m: {{ requires: [user] }} }}\n\
         limits: [{{ name: l, metric: m, per: [user], window: {window}, max: 1 }}]\n"
    );
    let spec = policy_file::parse(&text).expect("a good policy");
    let Applied::Changed { revision, .. } =
        PolicyRevision::after(None, spec, Time::default(), "test")
    else {
        unreachable!("there was none");
    };
    let policy = Policy::new(*revision).expect("a good policy");
    policy.limit("l", 1).expect("its limit").window.clone()
}

fn cell(window: Option<&Window>, now: Time) -> String {
    let short = |at: Time| at.to_string().replace(":00Z", "").replace('T', " ");
    match window.map(|window| window.span(now)) {
        None => "refused".to_owned(),
        Some(None) => "for ever".to_owned(),
        Some(Some((start, end))) => format!("{} to {}", short(start), short(end)),
    }
}

fn row(table: &mut String, name: &str, rule: &WindowRule, billing: Option<&Billing>) {
    let cells = INSTANTS.map(instant).map(|now| cell(rule.containing(now, billing).as_ref(), now));
    writeln!(table, "| {name} | {} |", cells.join(" | ")).expect("a string takes it");
}

fn windows() -> String {
    let short = |at: &str| at.replace(":00Z", "").replace('T', " ");
    let mut table = format!(
        "| window | at {} | at {} | at {} |\n| --- | --- | --- | --- |\n",
        short(INSTANTS[0]),
        short(INSTANTS[1]),
        short(INSTANTS[2])
    );
    for written in WRITTEN {
        row(&mut table, &format!("`{written}`"), &rule(written), None);
    }
    let billing = rule(BILLING);
    for (name, subject) in subjects() {
        row(&mut table, &format!("`billing`: {name}"), &billing, subject.as_ref());
    }
    table
}

#[test]
fn the_windows_are_as_the_readme_says() {
    readme::holds("readme", "windows", &windows());
}
