//! Billing and windows that make no sense: refused whole, with every fault.

use prost_types::{Duration, Timestamp};
use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{
    Client, Denied, LimitRule, Owner, Refused, Rules, World, cases, limit, owner, period, user, v1,
};
use v1::billing_anchor::Interval::{Every, EveryMonths};
use v1::window_rule::Kind;

cases! {
    every_store: [
        b59_faults_of_anchors,
        b59_faults_of_periods,
        b59_all_faults_at_once,
        b59_faults_of_billing_windows,
        b59_faults_of_rolling_windows,
    ],
}

const ZERO: Timestamp = Timestamp { seconds: 0, nanos: 0 };
const HOUR: Duration = Duration { seconds: 3600, nanos: 0 };

/// A good limit and a good subject, which are still in force after the call.
async fn good(world: &World) -> Client {
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    let client = world.rules(Rules::of_units([rule])).await;
    client.put(user("s").monthly(1, "2001-01-31T00:00:00Z", "UTC")).await.unwrap();
    client
}

async fn is_still_good(client: &Client) {
    client.take("one", 1).send().await.unwrap();
    client.take("two", 1).send().await.denied(&["posts"]);
}

fn anchored(start: Option<Timestamp>, interval: v1::billing_anchor::Interval, zone: &str) -> Owner {
    user("s").anchored(v1::BillingAnchor {
        start_time: start,
        interval: Some(interval),
        time_zone: zone.to_owned(),
    })
}

async fn b59_faults_of_anchors(world: &mut World) {
    let client = good(world).await;
    let months = |months| anchored(Some(ZERO), EveryMonths(months), "UTC");
    let every = |seconds, nanos| anchored(Some(ZERO), Every(Duration { seconds, nanos }), "");
    let at = |seconds, nanos| anchored(Some(Timestamp { seconds, nanos }), EveryMonths(1), "");
    let nothing = user("s").anchored(v1::BillingAnchor::default());
    for (bad, fields, says) in [
        (months(0), &["every_months"][..], "1 to 120"),
        (months(121), &["every_months"], "1 to 120"),
        (months(-1), &["every_months"], "1 to 120"),
        (months(i32::MIN), &["every_months"], "1 to 120"),
        (every(59 * 60, 0), &["every"], "1h to 3660d"),
        (every(3599, 999_000_000), &["every"], "1h to 3660d"),
        (every(3660 * 86_400, 1_000_000), &["every"], "1h to 3660d"),
        (every(i64::MAX, 0), &["every"], "longer than"),
        (every(0, 0), &["every"], "1h to 3660d"),
        (every(-3600, 0), &["every"], "negative"),
        (every(3600, 1), &["every"], "whole milliseconds"),
        (every(3600, i32::MAX), &["every"], "999999999"),
        (at(0, 999_999), &["start_time"], "whole milliseconds"),
        (at(i64::MAX, 0), &["start_time"], "years 1 to 9999"),
        (at(0, -1_000_000), &["start_time"], "years 1 to 9999"),
        (anchored(None, EveryMonths(1), "UTC"), &["start_time"], "must be given"),
        (anchored(Some(ZERO), EveryMonths(1), "Mars/Olympus"), &["time_zone"], "'Mars/Olympus'"),
        (anchored(Some(ZERO), Every(HOUR), "+02:00"), &["time_zone"], "'+02:00'"),
        (nothing, &["start_time", ""], "must"),
        (anchored(None, EveryMonths(0), "x"), &["start_time", "every_months", "time_zone"], "must"),
        (
            anchored(None, Every(Duration { seconds: 1, nanos: 1 }), "x"),
            &["start_time", "every", "time_zone"],
            "must",
        ),
    ] {
        let says_it = format!("{bad:?}");
        let refused = client.put(bad).await.refused(Reason::InvalidField);
        let path = |field: &&str| match *field {
            "" => "subject.billing.anchor".to_owned(),
            field => format!("subject.billing.anchor.{field}"),
        };
        assert_eq!(refused.fields(), fields.iter().map(path).collect::<Vec<_>>(), "{says_it}");
        assert!(refused.violations[0].description.contains(says), "{says}: {refused:?}");
    }
    // The longest and shortest there are.
    for longest in [months(120), months(1), every(3600, 0), every(3660 * 86_400, 0)] {
        client.put(longest).await.unwrap();
    }
    client.put(user("s").monthly(1, "2001-01-31T00:00:00Z", "UTC")).await.unwrap();
    is_still_good(&client).await;
}

async fn b59_faults_of_periods(world: &mut World) {
    let client = good(world).await;
    let of = |periods| user("s").billing(v1::Billing { periods, ..v1::Billing::default() });
    let whole = period("", "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z");
    let bounded =
        |start_time, end_time| v1::BillingPeriod { id: String::new(), start_time, end_time };
    let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
    let day = |n: i64| bounded(at(n * 86_400, 0), at((n + 1) * 86_400, 0));
    let path = |rest: &str| format!("subject.billing.periods{rest}");
    for (bad, fields) in [
        (vec![bounded(None, at(1, 0))], vec![path("[0].start_time")]),
        (vec![whole.clone(), bounded(at(0, 0), None)], vec![path("[1].end_time")]),
        (vec![bounded(None, None)], vec![path("[0].start_time"), path("[0].end_time")]),
        (
            vec![bounded(at(0, 1), at(1, 1_000_001))],
            vec![path("[0].start_time"), path("[0].end_time")],
        ),
        (vec![bounded(at(5, 0), at(5, 0))], vec![path("[0].end_time")]),
        (vec![bounded(at(5, 0), at(4, 0)), whole.clone()], vec![path("[0].end_time")]),
        (vec![whole.clone(), whole.clone()], vec![path("[1]")]),
        ((0..129).map(day).collect(), vec![path("")]),
        (vec![v1::BillingPeriod { id: "a\n".to_owned(), ..whole.clone() }], vec![path("[0].id")]),
        (vec![v1::BillingPeriod { id: "x".repeat(257), ..whole.clone() }], vec![path("[0].id")]),
    ] {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        client.put(of(bad)).await.invalid(&fields);
    }
    client.put(of((0..128).map(day).collect())).await.unwrap();
    let refused = client.put(of((0..129).map(day).collect())).await.refused(Reason::InvalidField);
    assert!(refused.violations[0].description.contains("at most 128"), "{refused:?}");
    client.put(user("s").monthly(1, "2001-01-31T00:00:00Z", "UTC")).await.unwrap();
    is_still_good(&client).await;
}

async fn b59_all_faults_at_once(world: &mut World) {
    let client = good(world).await;
    let whole = period("", "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z");
    let anchor = v1::BillingAnchor {
        start_time: Some(ZERO),
        interval: Some(EveryMonths(1)),
        time_zone: String::new(),
    };
    let roll = v1::OnLapse::Roll.into();
    let billing =
        |periods, anchor, on_lapse| user("s").billing(v1::Billing { periods, anchor, on_lapse });
    let both = billing(vec![whole.clone()], Some(anchor.clone()), 0);
    client.put(both).await.invalid(&["subject.billing"]);
    let rolls = billing(vec![], Some(anchor.clone()), roll);
    client.put(rolls).await.invalid(&["subject.billing.on_lapse"]);
    client.put(billing(vec![], None, roll)).await.invalid(&["subject.billing.on_lapse"]);
    client.put(billing(vec![whole], None, 7)).await.invalid(&["subject.billing.on_lapse"]);
    // Of form and of content, of billing and of all else.
    let mut bad = owner("", "s").plan("gold").set("posts", -1, None).billing(v1::Billing {
        anchor: Some(v1::BillingAnchor { start_time: None, ..anchor }),
        on_lapse: roll,
        periods: vec![],
    });
    bad.0.overrides.push(v1::Override { limit: "posts".to_owned(), ..v1::Override::default() });
    let refused: Refused = client.put(bad).await.refused(Reason::InvalidField);
    for field in [
        "subject.kind",
        "subject.billing.on_lapse",
        "subject.billing.anchor.start_time",
        "subject.overrides[0].set",
        "subject.overrides[1]",
        "subject.overrides[1].limit",
    ] {
        assert!(refused.fields().contains(&field), "{field} of {:?}", refused.fields());
    }
    is_still_good(&client).await;
}

async fn refuses(client: &Client, rule: LimitRule, fields: &[&str]) {
    let path = |field: &&str| format!("policy.limits[0].{field}").trim_end_matches('.').to_owned();
    let paths: Vec<String> = fields.iter().map(path).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let rules = Rules::new().metric("units", &["user", "item"]).limits([rule]);
    client.apply(rules.plans(&["free"], "free")).await.invalid(&paths);
}

async fn b59_faults_of_billing_windows(world: &mut World) {
    let client = good(world).await;
    let on = |per: &[&str]| limit("posts", "units").per(per).max(1);
    // Each counter needs the periods of one subject.
    refuses(&client, on(&["item"]).billing_of("user", None), &["window.billing.subject"]).await;
    refuses(&client, on(&["user", "item"]).billing(), &["window.billing.subject"]).await;
    refuses(&client, on(&[]).billing(), &["window.billing.subject"]).await;
    let whose = on(&["user", "item"]).plan_of("user").by_plan(&[("free", 1)]).billing();
    let rules = Rules::new().metric("units", &["user", "item"]).limits([whose]);
    client.apply(rules.plans(&["free"], "free")).await.unwrap();
    // A plan's subject that is no part of the key does not do either.
    let plan = on(&["item"]).plan_of("user").by_plan(&[("free", 1)]).billing();
    refuses(&client, plan, &["window.billing.subject"]).await;
    let nested = Kind::Billing(Box::default());
    let length = Some(Duration { seconds: 60, nanos: 0 });
    let rolling = Kind::Rolling(v1::RollingWindow { length, buckets: 0 });
    for without in [nested, rolling] {
        let rule = on(&["user"]).billing_of("", Some(without));
        refuses(&client, rule, &["window.billing.without_period"]).await;
    }
    let short = Kind::Fixed(v1::FixedWindow { length: Some(Duration::default()) });
    let rule = on(&["user"]).billing_of("", Some(short));
    refuses(&client, rule, &["window.billing.without_period.fixed.length"]).await;
    let empty = v1::WindowRule { kind: None };
    let billing =
        v1::BillingWindow { subject: String::new(), without_period: Some(Box::new(empty)) };
    let rule = on(&["user"]).window(Kind::Billing(Box::new(billing)));
    refuses(&client, rule, &["window.billing.without_period"]).await;
    let zone = Kind::Calendar(v1::CalendarWindow {
        unit: v1::CalendarUnit::Month.into(),
        time_zone: "Mars/Olympus".to_owned(),
        ..v1::CalendarWindow::default()
    });
    let rule = on(&["item"]).billing_of("user", Some(zone));
    let both = ["window.billing.subject", "window.billing.without_period.calendar.time_zone"];
    refuses(&client, rule, &both).await;
    // A dimension that may be missing makes a limit that can be escaped.
    let rule = on(&["user", "team"]).billing_of("team", None);
    refuses(&client, rule, &[""]).await;
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    client.apply(Rules::of_units([rule])).await.unwrap();
    is_still_good(&client).await;
}

async fn b59_faults_of_rolling_windows(world: &mut World) {
    let client = good(world).await;
    let on = || limit("posts", "units").per(&["user"]).max(1);
    let rolling = |seconds, nanos, buckets| {
        let length = Some(Duration { seconds, nanos });
        on().window(Kind::Rolling(v1::RollingWindow { length, buckets }))
    };
    let (length, buckets) = ("window.rolling.length", "window.rolling.buckets");
    for bad in [(0, 999_000_000), (3660 * 86_400, 1_000_000), (-60, 0), (60, 1), (i64::MAX, 0)] {
        refuses(&client, rolling(bad.0, bad.1, 0), &[length]).await;
    }
    for bad in [-1, 1441, i32::MAX, i32::MIN] {
        refuses(&client, rolling(60, 0, bad), &[buckets]).await;
    }
    refuses(&client, rolling(0, 0, 1441), &[length, buckets]).await;
    let lacking = v1::RollingWindow { length: None, buckets: 1 };
    refuses(&client, on().window(Kind::Rolling(lacking)), &[length]).await;
    for good in [rolling(1, 0, 1440), rolling(3660 * 86_400, 0, 1), rolling(3600, 0, 60)] {
        client.apply(Rules::of_units([good])).await.unwrap();
        client.check(&[("units", 1)], &[("user", "s")]).await.unwrap();
    }
    // The default, written out or not, is the same.
    let applied = client.apply(Rules::of_units([on().rolling(Span::from_secs(3600), 0)])).await;
    assert!(!applied.unwrap().changed);
    is_still_good(&client).await;
}
