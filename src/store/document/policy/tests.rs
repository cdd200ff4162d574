//! What the written form accepts, refuses and keeps.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::domain::policy::{Bound, CalendarSpec, CalendarUnit, MaxSpec, Mode, WindowSpec};
use crate::domain::time::Span;

proptest! {
    #[test]
    fn nothing_is_lost_in_json(spec in any::policy()) {
        let text = serde_json::to_string(&PolicyDoc::from_spec(&spec)).unwrap();
        let doc: PolicyDoc = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(doc.into_spec(), Ok(spec));
    }

    #[test]
    fn nothing_is_lost_in_bson(spec in any::policy()) {
        let doc = PolicyDoc::from_spec(&spec);
        let bytes = bson::serialize_to_vec(&doc).unwrap();
        let read: PolicyDoc = bson::deserialize_from_slice(&bytes).unwrap();
        prop_assert_eq!(read.into_spec(), Ok(spec.clone()));
        let document = bson::serialize_to_document(&doc).unwrap();
        let read: PolicyDoc = bson::deserialize_from_document(document).unwrap();
        prop_assert_eq!(read.into_spec(), Ok(spec));
    }

    #[test]
    fn nothing_is_lost_in_yaml(spec in any::policy()) {
        let text = serde_saphyr::to_string(&PolicyDoc::from_spec(&spec)).unwrap();
        let doc: PolicyDoc = serde_saphyr::from_str(&text).unwrap();
        prop_assert_eq!(doc.into_spec(), Ok(spec), "{}", text);
    }
}

/// A good policy with one limit, changed by `change`.
fn with_limit(change: impl FnOnce(&mut serde_json::Value)) -> serde_json::Value {
    let mut limit = json!({ "name": "l", "metric": "m", "window": "lifetime", "max": 3 });
    change(&mut limit);
    json!({ "namespace": "n", "metrics": { "m": {} }, "limits": [limit] })
}

fn read(value: serde_json::Value) -> Result<PolicySpec, Vec<String>> {
    let doc: PolicyDoc = serde_json::from_value(value).unwrap();
    doc.into_spec().map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn refuses(key: &str, value: serde_json::Value, fault: &str) {
    let faults = read(with_limit(|limit| limit[key] = value)).unwrap_err();
    assert_eq!(faults, [format!("limits[0].{fault}")]);
}

#[test]
fn what_is_left_out_has_its_default() {
    let spec = read(with_limit(|limit| {
        limit["window"] = json!({ "calendar": { "unit": "week" } });
    }))
    .unwrap();
    assert_eq!(spec.default_plan, None);
    assert!(spec.plans.is_empty() && spec.metrics["m"].requires.is_empty());
    let limit = &spec.limits[0];
    assert!(limit.conditions.is_empty() && limit.per.is_empty() && !limit.optional);
    assert_eq!((&limit.plan_of, limit.mode), (&None, Mode::Enforced));
    let WindowSpec::Calendar(calendar) = &limit.window else { panic!("{:?}", limit.window) };
    assert_eq!((calendar.unit, calendar.week_start), (CalendarUnit::Week, None));
    assert_eq!(calendar.time_zone, "UTC");
}

#[test]
fn defaults_are_not_written() {
    let value = with_limit(|_| {});
    let doc = PolicyDoc::from_spec(&read(value.clone()).unwrap());
    assert_eq!(serde_json::to_value(&doc).unwrap(), value);
}

#[test]
fn one_value_of_a_condition_needs_no_list_and_digits_no_quotes() {
    let spec = read(with_limit(|limit| {
        limit["where"] = json!({ "item_type": "game", "level": [1, "2"], "tier": 3 });
        limit["per"] = json!(["user", 7]);
    }))
    .unwrap();
    let conditions = &spec.limits[0].conditions;
    assert_eq!(conditions["item_type"], ["game"]);
    assert_eq!(conditions["level"], ["1", "2"]);
    assert_eq!(conditions["tier"], ["3"]);
    assert_eq!(spec.limits[0].per, ["user", "7"]);
}

#[test]
fn reads_every_max() {
    let max = |value| read(with_limit(|limit| limit["max"] = value)).unwrap().limits[0].max.clone();
    assert_eq!(max(json!(0)), MaxSpec::Same(Bound::AtMost(0)));
    assert_eq!(max(json!("unlimited")), MaxSpec::Same(Bound::Unlimited));
    // Whether a number is within bounds is not a matter of form.
    assert_eq!(max(json!(-1)), MaxSpec::Same(Bound::AtMost(-1)));
    let by_plan =
        [("free".to_owned(), Bound::AtMost(i64::MAX)), ("pro".to_owned(), Bound::Unlimited)];
    assert_eq!(
        max(json!({ "by_plan": { "free": i64::MAX, "pro": "unlimited" } })),
        MaxSpec::ByPlan(by_plan.into())
    );
}

#[test]
fn refuses_every_other_max_and_says_what_is_allowed() {
    let allowed = "must be 0 to 2^63-1, or unlimited, or a map with by_plan, not";
    let cases = [
        (json!("unlimeted"), "'unlimeted'"),
        (json!("3"), "'3'; write the number without quotes"),
        (json!(1.5), "'1.5'"),
        (json!(9_223_372_036_854_775_808_u64), "'9223372036854775808'"),
        (json!(true), "true"),
        (json!(null), "nothing"),
        (json!([3]), "a list"),
    ];
    for (value, shown) in cases {
        refuses("max", value, &format!("max: {allowed} {shown}"));
    }
    refuses("max", json!({}), "max.by_plan: is missing");
    refuses("max", json!({ "by_plan": 3 }), "max.by_plan: must be a map by name, not 3");
    refuses(
        "max",
        json!({ "by_plan": { "pro": "none" } }),
        "max.by_plan[pro]: must be 0 to 2^63-1, or unlimited, not 'none'",
    );
}

#[test]
fn reads_and_refuses_windows() {
    let window = |value| read(with_limit(|limit| limit["window"] = value));
    let fixed = window(json!({ "fixed": { "length": "1h30m" } })).unwrap();
    assert_eq!(fixed.limits[0].window, WindowSpec::Fixed(Span::from_secs(5400)));
    let month = json!({ "calendar": { "unit": "month" } });
    let billing = json!({ "billing": { "subject": "user", "without_period": month } });
    let month =
        CalendarSpec { unit: CalendarUnit::Month, time_zone: "UTC".to_owned(), week_start: None };
    assert_eq!(
        window(billing).unwrap().limits[0].window,
        WindowSpec::Billing {
            subject: Some("user".to_owned()),
            without_period: Some(Box::new(WindowSpec::Calendar(month))),
        }
    );
    let rolling = |buckets| WindowSpec::Rolling { length: Span::from_days(1), buckets };
    let read = |value| window(value).unwrap().limits[0].window.clone();
    assert_eq!(read(json!({ "rolling": { "length": "24h", "buckets": 96 } })), rolling(96));
    assert_eq!(read(json!({ "rolling": { "length": "24h" } })), rolling(60));
    refuses(
        "window",
        json!({ "billing": { "without_period": { "unit": "month" } } }),
        "window.billing.without_period.unit: is not a key here; allowed: calendar, fixed, billing \
         and rolling",
    );
    let one =
        "window: must be lifetime, or have exactly one of calendar, fixed, billing and rolling";
    refuses("window", json!({}), one);
    refuses("window", json!({ "fixed": { "length": "1s" }, "calendar": { "unit": "day" } }), one);
    refuses(
        "window",
        json!("forever"),
        "window: must be lifetime, or a map with calendar, fixed, billing or rolling, not 'forever'",
    );
    refuses(
        "window",
        json!({ "calendar": { "unit": "days" } }),
        "window.calendar.unit: must be hour, day, week, month or year, not 'days'",
    );
    refuses(
        "window",
        json!({ "fixed": { "length": 60 } }),
        "window.fixed.length: must be a length with its unit, such as 60s, not 60",
    );
}

#[test]
fn names_every_fault_at_once() {
    let text = r#"{
        "namespace": true, "default_plan": null, "plans": "free", "extra": 1,
        "metrics": { "m": { "requires": [1.5, []] }, "m": {} },
        "limits": [
            { "name": "a", "name": "b", "metric": "m", "window": "lifetime", "max": 1 },
            { "window": { "calendar": {} }, "optional": "yes", "mode": "shadow", "where": [] },
            "c"
        ]
    }"#;
    let doc: PolicyDoc = serde_json::from_str(text).unwrap();
    let faults: Vec<String> =
        doc.into_spec().unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "extra: is not a key here; allowed: namespace, default_plan, plans, metrics and limits",
            "namespace: true is not read as text: write it in quotes",
            "default_plan: must be a text, not nothing",
            "plans: must be a list of texts, not 'free'",
            "metrics[m].requires[0]: '1.5' is read as a number: write it in quotes",
            "metrics[m].requires[1]: must be a text, not a list",
            "metrics[m]: stands here twice",
            "limits[0].name: stands here twice",
            "limits[1].name: is missing",
            "limits[1].metric: is missing",
            "limits[1].where: must be a map by name, not a list",
            "limits[1].optional: must be true or false, not 'yes'",
            "limits[1].window.calendar.unit: is missing",
            "limits[1].max: is missing",
            "limits[1].mode: must be enforced or observed, not 'shadow'",
            "limits[2]: must be a map with name, metric, where, per, optional, plan_of, window, \
             max and mode, not 'c'",
        ]
    );
}

#[test]
fn a_document_that_is_no_policy_is_one_fault() {
    for value in [json!(null), json!(1), json!("policy"), json!([])] {
        let faults = read(value).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("must be a map with namespace"), "{faults:?}");
    }
}
