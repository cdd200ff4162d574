//! Billing periods: from an anchor, explicit ones, and where there are none.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, bounds, cases, days, limit, pair, user};

cases! {
    every_store: [
        b59_no_period_in_real_time,
        b59_overlaps_are_refused,
        b58_a_year_of_billing_in_real_time,
    ],
    manual_clock: [
        b13_anchors_on_the_31st_30th_and_29th,
        b13_a_reserve_meets_the_same_periods,
        b14_a_zone_west_of_utc,
        b14_a_zone_east_of_utc,
        b47_period_edges_of_anchors,
        b59_explicit_periods,
        b59_past_the_last_period,
        b58_closed_periods_are_kept,
    ],
}

/// A limit on the billing periods of user `s`.
pub async fn billed(world: &World, max: i64) -> Client {
    let rule = limit("posts", "units").per(&["user"]).max(max).billing();
    world.rules(Rules::of_units([rule])).await
}

/// The period of user `s` that contains an instant.
async fn asked(client: &Client, at: &str) -> (String, String) {
    let usage = client.usage_at("units", &[("user", "s")], Some(at)).await;
    bounds(usage.unwrap_or_else(|refused| panic!("{at}: {}", refused.message))[0].window.as_ref())
}

async fn b13_anchors_on_the_31st_30th_and_29th(world: &mut World) {
    let client = billed(world, 5).await;
    client.put(user("s").monthly(1, "2024-01-31T00:00:00Z", "UTC")).await.unwrap();
    for (at, period) in [
        ("2024-01-31T00:00:00Z", days("2024-01-31", "2024-02-29")),
        ("2024-02-28T12:00:00Z", days("2024-01-31", "2024-02-29")),
        ("2024-02-28T23:59:59.999Z", days("2024-01-31", "2024-02-29")),
        ("2024-02-29T00:00:00Z", days("2024-02-29", "2024-03-31")),
        ("2024-03-15T00:00:00Z", days("2024-02-29", "2024-03-31")),
        ("2024-03-31T00:00:00Z", days("2024-03-31", "2024-04-30")),
        ("2024-04-30T00:00:00Z", days("2024-04-30", "2024-05-31")),
        ("2024-05-31T00:00:00Z", days("2024-05-31", "2024-06-30")),
        ("2025-02-28T00:00:00Z", days("2025-02-28", "2025-03-31")),
        ("2100-02-28T00:00:00Z", days("2100-02-28", "2100-03-31")),
    ] {
        assert_eq!(asked(&client, at).await, period, "{at}");
    }
    let before = client.usage_at("units", &[("user", "s")], Some("2024-01-30T23:59:59Z")).await;
    let refused = before.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata["next_period"], "2024-01-31T00:00:00Z");
    client.put(user("s").monthly(1, "2024-01-30T00:00:00Z", "")).await.unwrap();
    assert_eq!(asked(&client, "2024-02-29T00:00:00Z").await, days("2024-02-29", "2024-03-30"));
    assert_eq!(asked(&client, "2024-03-30T00:00:00Z").await, days("2024-03-30", "2024-04-30"));
    client.put(user("s").monthly(1, "2025-01-29T00:00:00Z", "UTC")).await.unwrap();
    assert_eq!(asked(&client, "2025-03-01T00:00:00Z").await, days("2025-02-28", "2025-03-29"));
    assert_eq!(asked(&client, "2025-03-29T00:00:00Z").await, days("2025-03-29", "2025-04-29"));
    // A quarter, and 30 days whatever the months.
    client.put(user("s").monthly(3, "2023-11-30T00:00:00Z", "UTC")).await.unwrap();
    assert_eq!(asked(&client, "2024-02-29T00:00:00Z").await, days("2024-02-29", "2024-05-30"));
    let every = user("s").every(Span::from_days(30), "2024-01-31T00:00:00Z");
    client.put(every).await.unwrap();
    assert_eq!(asked(&client, "2024-03-01T00:00:00Z").await, days("2024-03-01", "2024-03-31"));
    client.take("any", 1).send().await.unwrap();
}

async fn b13_a_reserve_meets_the_same_periods(world: &mut World) {
    world.begin_at("2024-01-31T00:00:00Z").await;
    let client = billed(world, 1).await;
    client.put(user("s").monthly(1, "2024-01-31T00:00:00Z", "UTC")).await.unwrap();
    for (at, end) in [
        ("2024-01-31T00:00:00Z", Some("2024-02-29T00:00:00Z")),
        ("2024-02-28T12:00:00Z", None),
        ("2024-02-29T00:00:00Z", Some("2024-03-31T00:00:00Z")),
        ("2024-03-15T00:00:00Z", None),
        ("2024-03-30T23:59:59.999Z", None),
        ("2024-03-31T00:00:00Z", Some("2024-04-30T00:00:00Z")),
        ("2024-04-30T00:00:00Z", Some("2024-05-31T00:00:00Z")),
        ("2024-05-30T00:00:00Z", None),
        ("2024-05-31T00:00:00Z", Some("2024-06-30T00:00:00Z")),
    ] {
        world.set(at).await;
        let call = client.take(at, 1).at_once().send().await;
        let Some(end) = end else {
            call.denied(&["posts"]);
            continue;
        };
        let answer = call.unwrap_or_else(|refused| panic!("{at}: {}", refused.message));
        let charge = &answer.reservation.as_ref().unwrap().charges[0];
        assert_eq!(bounds(charge.window.as_ref()), pair(at, end));
        assert_eq!(bounds(answer.limits[0].window.as_ref()), pair(at, end));
        assert_eq!(asked(&client, at).await, pair(at, end));
    }
}

async fn b14_a_zone_west_of_utc(world: &mut World) {
    world.begin_at("2017-03-02T07:30:00Z").await;
    let client = billed(world, 1).await;
    // 23:30 on 1 March in Los Angeles.
    let anchored = user("s").monthly(1, "2017-03-02T07:30:00Z", "America/Los_Angeles");
    client.put(anchored).await.unwrap();
    let march = pair("2017-03-02T07:30:00Z", "2017-04-02T06:30:00Z");
    assert_eq!(asked(&client, "2017-03-15T00:00:00Z").await, march);
    client.take("march", 1).committed().await.unwrap();
    world.set("2017-04-02T06:29:59.999Z").await;
    let refused = client.take("april", 1).send().await.denied(&["posts"]);
    assert_eq!(refused.metadata["retry_time"], "2017-04-02T06:30:00Z");
    world.set("2017-04-02T06:30:00Z").await;
    client.take("april", 1).committed().await.unwrap();
    world.set("2017-04-02T07:30:00Z").await;
    client.take("again", 1).send().await.denied(&["posts"]);
    let december = asked(&client, "2017-12-02T07:30:00Z").await;
    assert_eq!(december, pair("2017-12-02T07:30:00Z", "2018-01-02T07:30:00Z"));
}

async fn b14_a_zone_east_of_utc(world: &mut World) {
    world.begin_at("2024-01-31T09:00:00Z").await;
    let client = billed(world, 1).await;
    // 10:00 on the last of each month in Berlin.
    let anchored = user("s").monthly(1, "2024-01-31T09:00:00Z", "Europe/Berlin");
    client.put(anchored).await.unwrap();
    let starts = [
        "2024-01-31T09:00:00Z",
        "2024-02-29T09:00:00Z",
        "2024-03-31T08:00:00Z",
        "2024-04-30T08:00:00Z",
    ];
    for both in starts.windows(2) {
        world.set(both[0]).await;
        assert_eq!(asked(&client, both[0]).await, pair(both[0], both[1]));
        client.take(both[0], 1).committed().await.unwrap();
        let refused = client.take("more", 1).send().await.denied(&["posts"]);
        assert_eq!(refused.metadata["retry_time"], both[1]);
    }
    // The far east and the half hours.
    for (zone, start, next) in [
        ("Pacific/Kiritimati", "2024-06-30T10:00:00Z", "2024-07-31T10:00:00Z"),
        ("Asia/Kolkata", "2024-06-30T18:30:00Z", "2024-07-31T18:30:00Z"),
        ("America/St_Johns", "2024-07-01T02:30:00Z", "2024-08-01T02:30:00Z"),
    ] {
        client.put(user("s").monthly(1, start, zone)).await.unwrap();
        assert_eq!(asked(&client, start).await, pair(start, next), "{zone}");
        assert_eq!(asked(&client, next).await.0, next, "{zone}");
    }
}

async fn b47_period_edges_of_anchors(world: &mut World) {
    world.begin_at("2024-02-28T23:59:59.999Z").await;
    let client = billed(world, 1).await;
    client.put(user("s").monthly(1, "2024-01-31T00:00:00Z", "UTC")).await.unwrap();
    let last = client.take("before", 1).committed().await.unwrap();
    client.take("full", 1).send().await.denied(&["posts"]);
    world.set("2024-02-29T00:00:00Z").await;
    let first = client.take("at", 1).committed().await.unwrap();
    let (before, window) = (last.limits[0].window.unwrap(), first.limits[0].window.unwrap());
    assert_eq!(before.end_time, window.start_time, "half-open, end to end");
    world.set("2024-02-29T00:00:00.001Z").await;
    let refused = client.take("after", 1).send().await.denied(&["posts"]);
    assert_eq!(refused.refusal.unwrap().limits[0].retry_time, window.end_time);
}

pub const FIRST: (&str, &str, &str) = ("", "2025-01-15T10:00:00Z", "2025-02-03T00:00:00Z");
pub const SECOND: (&str, &str, &str) = ("", "2025-02-10T00:00:00Z", "2025-03-10T00:00:00Z");

async fn b59_explicit_periods(world: &mut World) {
    world.begin_at("2025-01-15T09:59:59Z").await;
    let client = billed(world, 10).await;
    client.put(user("s").periods(&[FIRST, SECOND])).await.unwrap();
    let none = async |id: &str, next: Option<&str>| {
        let refused = client.take(id, 1).send().await.refused(Reason::PeriodUnavailable);
        assert_eq!(refused.metadata.get("next_period").map(String::as_str), next);
        assert_eq!(refused.metadata["subject"], "user/s");
        assert_eq!(refused.metadata["limit"], "posts");
        let usage = client.usage("units", &[("user", "s")]).await;
        usage.refused(Reason::PeriodUnavailable);
        let check = client.check(&[("units", 1)], &[("user", "s")]).await;
        check.refused(Reason::PeriodUnavailable);
    };
    none("early", Some(FIRST.1)).await;
    world.set(FIRST.1).await;
    client.take("four", 4).committed().await.unwrap();
    assert_eq!(client.stands("posts").await, (4, 0, 6));
    world.set("2025-02-02T23:59:59.999Z").await;
    client.take("held", 6).send().await.unwrap();
    client.take("over", 1).send().await.denied(&["posts"]);
    world.set("2025-02-03T00:00:00Z").await;
    none("gap", Some(SECOND.1)).await;
    // What was held when the period ended is settled all the same, there.
    let booked = client.commit_some("held", &[5]).await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (9, 0));
    world.set("2025-02-05T00:00:00Z").await;
    none("gap", Some(SECOND.1)).await;
    world.set(SECOND.1).await;
    assert_eq!(client.stands("posts").await, (0, 0, 10));
    client.take("gap", 10).committed().await.unwrap();
    let closed = client.usage_at("units", &[("user", "s")], Some(FIRST.1)).await.unwrap();
    assert_eq!((closed[0].used, closed[0].available), (9, Some(1)));
    assert_eq!(bounds(closed[0].window.as_ref()), pair(FIRST.1, FIRST.2));
    world.set(SECOND.2).await;
    none("late", None).await;
    // Nor was any of it counted by another calendar.
    let (reservations, counters) = world.records().await;
    assert_eq!((reservations.len(), counters.len()), (3, 2));
}

async fn b59_past_the_last_period(world: &mut World) {
    world.begin_at("2025-03-09T00:00:00Z").await;
    let client = billed(world, 2).await;
    // Roll: 28 days again and again; the gap before stays a gap.
    client.put(user("s").rolling_on(&[FIRST, SECOND])).await.unwrap();
    client.take("a", 2).committed().await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["posts"]);
    assert_eq!(refused.metadata["retry_time"], SECOND.2, "where the next one rolls on");
    world.set(SECOND.2).await;
    let rolled = client.take("b", 2).committed().await.unwrap();
    assert_eq!(bounds(rolled.limits[0].window.as_ref()), days("2025-03-10", "2025-04-07"));
    world.set("2025-04-06T23:59:59.999Z").await;
    client.take("c", 1).send().await.denied(&["posts"]);
    world.set("2025-05-10T00:00:00Z").await;
    let later = client.take("c", 1).committed().await.unwrap();
    assert_eq!(bounds(later.limits[0].window.as_ref()), days("2025-05-05", "2025-06-02"));
    let gap = client.usage_at("units", &[("user", "s")], Some("2025-02-05T00:00:00Z")).await;
    gap.refused(Reason::PeriodUnavailable);
    // The list arrives at last, with the bounds that were rolled to: it goes on.
    let third = ("", "2025-05-05T00:00:00Z", "2025-06-05T00:00:00Z");
    client.put(user("s").periods(&[third])).await.unwrap();
    assert_eq!(client.stands("posts").await, (1, 0, 1));
    // Deny: nothing after it, and nothing to wait for.
    client.take("d", 1).committed().await.unwrap();
    let refused = client.take("e", 1).send().await.denied(&["posts"]);
    assert_eq!((refused.retry, refused.metadata.get("retry_time")), (None, None));
    world.set(third.2).await;
    let refused = client.take("e", 1).send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata.get("next_period"), None);
}

async fn b59_no_period_in_real_time(world: &mut World) {
    let client = billed(world, 1).await;
    client.take("a", 1).send().await.refused(Reason::PeriodUnavailable);
    let past = ("", "2001-01-01T00:00:00Z", "2001-02-01T00:00:00Z");
    let ahead = ("", "2200-01-01T00:00:00Z", "2200-02-01T00:00:00Z");
    client.put(user("s").periods(&[ahead, past])).await.unwrap();
    let refused = client.take("a", 1).send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata["next_period"], ahead.1);
    client.put(user("s").rolling_on(&[past])).await.unwrap();
    let taken = client.take("a", 1).committed().await.unwrap();
    let window = taken.limits[0].window.unwrap();
    let length = window.end_time.unwrap().seconds - window.start_time.unwrap().seconds;
    assert_eq!(length, 31 * 86_400);
    client.take("b", 1).send().await.denied(&["posts"]);
    let stored = client.put(user("s").rolling_on(&[past])).await.unwrap();
    assert!(!stored.changed, "the same once more is no change");
}

async fn b59_overlaps_are_refused(world: &mut World) {
    let client = billed(world, 1).await;
    let meeting = [
        ("", "2001-01-01T00:00:00Z", "2001-02-01T00:00:00Z"),
        ("", "2001-02-01T00:00:00Z", "2199-01-01T00:00:00Z"),
    ];
    client.put(user("s").periods(&meeting)).await.unwrap();
    for (overlapping, field) in [
        (("", "2025-02-02T23:59:59.999Z", "2025-02-05T00:00:00Z"), "subject.billing.periods[1]"),
        (("", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), "subject.billing.periods[1]"),
        (("x", "2025-01-20T00:00:00Z", "2025-01-21T00:00:00Z"), "subject.billing.periods[1]"),
        ((FIRST.1, SECOND.1, SECOND.2), "subject.billing.periods[1].id"),
        (("", SECOND.1, SECOND.1), "subject.billing.periods[1].end_time"),
        (("", SECOND.2, SECOND.1), "subject.billing.periods[1].end_time"),
    ] {
        let refused = client.put(user("s").periods(&[FIRST, overlapping])).await;
        refused.invalid(&[field]);
    }
    // The good ones are still in force; that they meet is no overlap.
    client.take("a", 1).committed().await.unwrap();
    client.take("b", 1).send().await.denied(&["posts"]);
}

/// A yearly period is not forgotten after a month, or a year.
async fn b58_a_year_of_billing_in_real_time(world: &mut World) {
    let client = billed(world, 1).await;
    client.put(user("s").monthly(120, "2020-02-29T00:00:00Z", "UTC")).await.unwrap();
    let taken = client.take("a", 1).committed().await.unwrap();
    assert_eq!(bounds(taken.limits[0].window.as_ref()), days("2020-02-29", "2030-02-28"));
    client.take("b", 1).send().await.denied(&["posts"]);
    world.restart().await;
    let client = world.caller();
    client.take("b", 1).send().await.denied(&["posts"]);
}

async fn b58_closed_periods_are_kept(world: &mut World) {
    world.begin_at("2024-01-01T00:00:01Z").await;
    let client = billed(world, 1).await;
    client.put(user("s").monthly(12, "2024-01-01T00:00:00Z", "UTC")).await.unwrap();
    client.take("2024", 1).committed().await.unwrap();
    world.set("2024-12-31T12:00:00Z").await;
    client.take("2025", 1).send().await.denied(&["posts"]);
    world.set("2025-01-01T00:00:00Z").await;
    client.take("2025", 1).committed().await.unwrap();
    world.restart().await;
    let client = world.caller();
    let closed = client.usage_at("units", &[("user", "s")], Some("2024-06-01T00:00:00Z")).await;
    assert_eq!(closed.unwrap()[0].used, 1);
    let month = Span::from_days(30);
    for counter in world.records().await.1 {
        let (end, gone) = (counter.id.window.end().unwrap(), counter.purge_at(month).unwrap());
        assert!(gone >= end.plus(month).plus(month), "{counter:?}");
    }
}
