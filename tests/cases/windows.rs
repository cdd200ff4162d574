//! Windows: fixed and calendar, their edges, and what belongs to which.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, cases, instant, limit, pair, text, v1};
use v1::CalendarUnit::{Day, Hour, Month, Year};

cases! {
    every_store: [b01_a_hold_of_a_window_that_has_closed_in_real_time],
    manual_clock: [
        b01_a_commit_books_in_the_old_window,
        b01_a_release_gives_back_to_the_old_window,
        b19_fixed_windows,
        b46_days_of_25_hours,
        b46_a_month_with_a_clock_change,
        b46_a_day_whose_midnight_comes_twice,
        b46_days_of_23_hours_and_days_left_out,
        b46_an_hour_that_comes_twice,
        b47_period_edges,
        b47_weeks_start_where_they_are_told_to,
        b14_calendar_months_of_distant_zones,
        b58_long_periods,
    ],
}

const MINUTE: Span = Span::from_secs(60);

async fn minutes(world: &World, max: i64) -> Client {
    let rule = limit("minute", "units").per(&["user"]).max(max).fixed(MINUTE);
    world.rules(Rules::of_units([rule])).await
}

async fn b01_a_commit_books_in_the_old_window(world: &mut World) {
    world.begin_at("2024-05-15T12:00:00Z").await;
    let client = minutes(world, 5).await;
    client.take("c1", 3).committed().await.unwrap();
    // Held before the end, committed in part after it.
    client.take("c2", 2).send().await.unwrap();
    world.set("2024-05-15T12:00:59.999Z").await;
    client.take("over", 1).send().await.denied(&["minute"]);
    world.set("2024-05-15T12:01:01Z").await;
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    // A minute's hold, rounded up, is still live at 61 s only if it was made
    // after 12:00:00; this one was, at 0 s, and has run out by now.
    let late = client.commit("c2").await;
    late.refused(Reason::ReservationExpired);

    world.set("2024-05-15T12:01:59Z").await;
    client.take("c3", 3).send().await.unwrap();
    world.set("2024-05-15T12:02:01Z").await;
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    let booked = client.commit_some("c3", &[2]).await.unwrap();
    let status = &booked.limits[0];
    assert_eq!((status.used, status.held), (2, 0));
    assert_eq!(text(status.window.as_ref().unwrap().end_time.as_ref()), "2024-05-15T12:02:00Z");
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    for (at, used) in
        [("2024-05-15T12:00:30Z", 3), ("2024-05-15T12:01:30Z", 2), ("2024-05-15T12:02:59Z", 0)]
    {
        let usage = client.usage_at("units", &[("user", "s")], Some(at)).await.unwrap();
        assert_eq!((usage[0].used, usage[0].held), (used, 0), "{at}");
    }
    for n in 0..6 {
        let call = client.take(&format!("new {n}"), 1).send().await;
        if n < 5 {
            call.expect("the new window has all its room");
        } else {
            call.denied(&["minute"]);
        }
    }
}

async fn b01_a_release_gives_back_to_the_old_window(world: &mut World) {
    world.begin_at("2024-05-15T12:00:59Z").await;
    let client = minutes(world, 5).await;
    client.take("old", 5).send().await.unwrap();
    world.set("2024-05-15T12:01:01Z").await;
    for n in 0..5 {
        client.take(&format!("new {n}"), 1).send().await.unwrap();
    }
    // Given back to where it came from: neither below zero nor room here.
    let released = client.release("old").await.unwrap();
    assert_eq!((released.limits[0].used, released.limits[0].held), (0, 0));
    assert_eq!(client.stands("minute").await, (0, 5, 0));
    client.take("more", 1).send().await.denied(&["minute"]);
    // Nor by running out.
    world.set("2024-05-15T12:01:59Z").await;
    client.release("new 0").await.unwrap();
    client.take("lapses", 1).ttl(Span::from_secs(2)).send().await.unwrap();
    world.set("2024-05-15T12:02:30Z").await;
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    client.take("all", 5).send().await.unwrap();
}

async fn b01_a_hold_of_a_window_that_has_closed_in_real_time(world: &mut World) {
    let rule = limit("second", "units").per(&["user"]).max(5).fixed(Span::from_secs(1));
    let client = world.rules(Rules::of_units([rule])).await;
    let held = client.take("old", 3).send().await.unwrap();
    let window = held.reservation.unwrap().charges.remove(0).window;
    world.pass(Span::from_secs(1)).await;
    assert_eq!(client.stands("second").await, (0, 0, 5));
    let booked = client.commit("old").await.unwrap();
    assert_eq!((booked.limits[0].used, &booked.limits[0].window), (3, &window));
    let fresh = client.take("new", 5).send().await.unwrap();
    assert_ne!(fresh.limits[0].window, window);
    let window = window.unwrap();
    let at = text(window.start_time.as_ref());
    let usage = client.usage_at("units", &[("user", "s")], Some(&at)).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held, usage[0].window), (3, 0, Some(window)));
}

async fn b19_fixed_windows(world: &mut World) {
    world.begin_at("2024-05-15T12:00:59Z").await;
    let client = minutes(world, 10).await;
    for n in 0..10 {
        client.take(&format!("a {n}"), 1).committed().await.unwrap();
    }
    let refused = client.take("over", 1).send().await.denied(&["minute"]);
    assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:01:00Z");
    world.set("2024-05-15T12:01:01Z").await;
    for n in 0..10 {
        client.take(&format!("b {n}"), 1).committed().await.unwrap();
    }
    client.take("over", 1).send().await.denied(&["minute"]);
    // Aligned to the epoch, whatever the length.
    let odd = limit("odd", "units").per(&["user"]).max(10).fixed(Span::from_secs(7));
    client.apply(Rules::of_units([odd])).await.unwrap();
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    let window = usage[0].window.as_ref().unwrap();
    assert_eq!(window.start_time.as_ref().unwrap().seconds % 7, 0);
    assert_eq!(window.end_time.as_ref().unwrap().seconds % 7, 0);
}

/// One call a period, at the instants of `calls`: whether each is admitted, and
/// the period it was in.
async fn calendar(world: &mut World, rule: (v1::CalendarUnit, &str), calls: &[(&str, bool)]) {
    let (unit, zone) = rule;
    world.begin_at(calls[0].0).await;
    let client = world.caller().within(&format!("{unit:?} {zone} {}", calls[0].0));
    let rule = limit("once", "units").per(&["user"]).max(1).calendar(unit, zone);
    client.apply(Rules::of_units([rule])).await.unwrap();
    for (at, admitted) in calls {
        world.set(at).await;
        let call = client.take(at, 1).at_once().send().await;
        if *admitted {
            call.unwrap_or_else(|refused| panic!("{unit:?} {zone} at {at}: {}", refused.message));
        } else {
            call.denied(&["once"]);
        }
    }
}

/// The period of a calendar at an instant.
async fn period(world: &mut World, rule: (v1::CalendarUnit, &str), at: &str) -> (String, String) {
    world.begin_at(at).await;
    let client = world.caller().within(&format!("{:?} {}", rule.0, rule.1));
    let rule = limit("once", "units").per(&["user"]).max(1).calendar(rule.0, rule.1);
    client.apply(Rules::of_units([rule])).await.unwrap();
    let now = client.usage("units", &[("user", "s")]).await.unwrap();
    let asked = client.usage_at("units", &[("user", "s")], Some(at)).await.unwrap();
    assert_eq!(now[0].window, asked[0].window, "now and at are the same");
    let window = now[0].window.as_ref().unwrap();
    (text(window.start_time.as_ref()), text(window.end_time.as_ref()))
}

async fn b46_days_of_25_hours(world: &mut World) {
    let calls = [
        ("2024-10-26T22:00:00Z", true),
        ("2024-10-27T22:30:00Z", false),
        ("2024-10-27T22:59:59.999Z", false),
        ("2024-10-27T23:00:00Z", true),
    ];
    calendar(world, (Day, "Europe/Berlin"), &calls).await;
}

async fn b46_a_month_with_a_clock_change(world: &mut World) {
    let month = pair("2013-02-28T23:00:00Z", "2013-03-31T22:00:00Z");
    for at in ["2013-03-31T00:59:59Z", "2013-03-31T01:00:00Z", "2013-03-31T21:59:59.999Z"] {
        assert_eq!(period(world, (Month, "Europe/Berlin"), at).await, month, "{at}");
    }
    let calls = [
        ("2013-03-31T00:59:59Z", true),
        ("2013-03-31T01:00:00Z", false),
        ("2013-03-31T21:59:59Z", false),
        ("2013-03-31T22:00:00Z", true),
    ];
    calendar(world, (Month, "Europe/Berlin"), &calls).await;
}

async fn b46_a_day_whose_midnight_comes_twice(world: &mut World) {
    let calls = [
        ("2023-11-05T03:59:59Z", true),
        ("2023-11-05T04:00:00Z", true),
        ("2023-11-05T04:30:00Z", false),
        ("2023-11-05T05:00:00Z", false),
        ("2023-11-05T05:30:00Z", false),
        ("2023-11-06T04:59:59Z", false),
        ("2023-11-06T05:00:00Z", true),
    ];
    calendar(world, (Day, "America/Havana"), &calls).await;
    let day = pair("2023-11-05T04:00:00Z", "2023-11-06T05:00:00Z");
    for at in ["2023-11-05T04:00:00Z", "2023-11-05T05:00:00Z", "2023-11-06T04:59:59Z"] {
        assert_eq!(period(world, (Day, "America/Havana"), at).await, day, "{at}");
    }
    let before = period(world, (Day, "America/Havana"), "2023-11-05T03:59:59.999Z").await;
    assert_eq!(before.1, day.0);
}

async fn b46_days_of_23_hours_and_days_left_out(world: &mut World) {
    let short = pair("2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z");
    assert_eq!(period(world, (Day, "Europe/Berlin"), "2024-03-31T01:00:00Z").await, short);
    // No midnight: Beirut went from 23:59 to 01:00.
    let beirut = pair("2024-03-30T22:00:00Z", "2024-03-31T21:00:00Z");
    assert_eq!(period(world, (Day, "Asia/Beirut"), "2024-03-30T22:00:00Z").await, beirut);
    // No such day: Samoa had no 30 December 2011.
    let samoa = pair("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z");
    assert_eq!(period(world, (Day, "Pacific/Apia"), "2011-12-30T09:59:59Z").await, samoa);
    let next = pair("2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z");
    assert_eq!(period(world, (Day, "Pacific/Apia"), "2011-12-30T10:00:00Z").await, next);
    let calls = [("2011-12-30T09:59:59Z", true), ("2011-12-30T10:00:00Z", true)];
    calendar(world, (Day, "Pacific/Apia"), &calls).await;
}

async fn b46_an_hour_that_comes_twice(world: &mut World) {
    let calls = [
        ("2024-10-27T00:30:00Z", true),
        ("2024-10-27T00:59:59.999Z", false),
        ("2024-10-27T01:00:00Z", true),
        ("2024-10-27T01:30:00Z", false),
        ("2024-10-27T02:00:00Z", true),
    ];
    calendar(world, (Hour, "Europe/Berlin"), &calls).await;
    let kolkata = pair("2024-05-15T12:30:00Z", "2024-05-15T13:30:00Z");
    assert_eq!(period(world, (Hour, "Asia/Kolkata"), "2024-05-15T13:29:59Z").await, kolkata);
}

async fn edges(world: &mut World, rule: Rules, name: &str, boundary: &str) {
    let at = |offset: i64| {
        let millis = instant(boundary).as_millis() + offset;
        jiff::Timestamp::from_millisecond(millis).unwrap().to_string()
    };
    world.begin_at(&at(-1)).await;
    let client = world.caller().within(&format!("{name} {boundary}"));
    client.apply(rule).await.unwrap();
    let last = client.take("before", 1).committed().await.unwrap();
    let before = last.limits[0].window.unwrap();
    assert_eq!(text(before.end_time.as_ref()), boundary, "{name}");
    client.take("full", 1).send().await.denied(&["once"]);
    world.set(boundary).await;
    let first = client.take("at", 1).committed().await.unwrap();
    let window = first.limits[0].window.unwrap();
    assert_eq!(window.start_time, before.end_time, "{name}: half-open, end to end");
    world.set(&at(1)).await;
    let refused = client.take("after", 1).send().await.denied(&["once"]);
    assert_eq!(refused.refusal.unwrap().limits[0].retry_time, window.end_time);
}

async fn b47_period_edges(world: &mut World) {
    let once = || limit("once", "units").per(&["user"]).max(1);
    let rules = [
        ("hour", once().calendar(Hour, ""), "2025-03-10T07:00:00Z"),
        ("day", once().calendar(Day, "UTC"), "2025-03-10T00:00:00Z"),
        ("monday", once().week(v1::Weekday::Monday), "2025-03-10T00:00:00Z"),
        ("unsaid", once().week(v1::Weekday::Unspecified), "2025-03-10T00:00:00Z"),
        ("sunday", once().week(v1::Weekday::Sunday), "2025-03-09T00:00:00Z"),
        ("month", once().calendar(Month, "UTC"), "2025-04-01T00:00:00Z"),
        ("year", once().calendar(Year, "UTC"), "2026-01-01T00:00:00Z"),
        ("leap", once().calendar(Month, "UTC"), "2024-03-01T00:00:00Z"),
        ("fixed", once().fixed(MINUTE), "2025-03-10T07:13:00Z"),
        ("before the epoch", once().fixed(MINUTE), "1969-12-31T23:59:00Z"),
    ];
    for (name, rule, boundary) in rules {
        edges(world, Rules::of_units([rule]), name, boundary).await;
    }
}

async fn b47_weeks_start_where_they_are_told_to(world: &mut World) {
    for (start, sunday, monday) in
        [(v1::Weekday::Monday, false, true), (v1::Weekday::Sunday, true, false)]
    {
        world.begin_at("2025-03-08T12:00:00Z").await;
        let client = world.caller().within(start.as_str_name());
        let rule = limit("week", "units").per(&["user"]).max(1).week(start);
        client.apply(Rules::of_units([rule])).await.unwrap();
        client.take("saturday", 1).committed().await.unwrap();
        for (at, resets) in [("2025-03-09T00:00:00Z", sunday), ("2025-03-10T00:00:00Z", monday)] {
            world.set(at).await;
            let admitted = client.check(&[("units", 1)], &[("user", "s")]).await.unwrap().admitted;
            let call = client.take(at, 1).committed().await;
            assert_eq!(call.is_ok(), resets, "{start:?} {at}");
            assert_eq!(admitted, resets);
        }
    }
    let misplaced = v1::window_rule::Kind::Calendar(v1::CalendarWindow {
        unit: Month.into(),
        time_zone: String::new(),
        week_start: v1::Weekday::Monday.into(),
    });
    let rule = limit("month", "units").per(&["user"]).max(1).window(misplaced);
    let refused = world.caller().apply(Rules::of_units([rule])).await;
    refused.invalid(&["policy.limits[0].window.calendar.week_start"]);
    for zone in ["Mars/Olympus", "europe", "+25:00"] {
        let rule = limit("day", "units").per(&["user"]).max(1).calendar(Day, zone);
        let refused = world.caller().apply(Rules::of_units([rule])).await;
        refused.invalid(&["policy.limits[0].window.calendar.time_zone"]);
    }
}

async fn b14_calendar_months_of_distant_zones(world: &mut World) {
    for (zone, august) in [
        ("Pacific/Auckland", "2024-07-31T12:00:00Z"),
        ("Asia/Kolkata", "2024-07-31T18:30:00Z"),
        ("Pacific/Kiritimati", "2024-07-31T10:00:00Z"),
        ("America/St_Johns", "2024-08-01T02:30:00Z"),
    ] {
        assert_eq!(period(world, (Month, zone), "2024-08-15T00:00:00Z").await.0, august, "{zone}");
        let rule = limit("once", "units").per(&["user"]).max(1).calendar(Month, zone);
        edges(world, Rules::of_units([rule]), zone, august).await;
    }
}

async fn b58_long_periods(world: &mut World) {
    let calls = [
        ("2025-01-01T00:00:01Z", true),
        ("2025-01-31T12:00:00Z", false),
        ("2025-01-31T23:59:59.999Z", false),
        ("2025-02-01T00:00:00Z", true),
    ];
    calendar(world, (Month, "UTC"), &calls).await;
    let calls = [
        ("2024-01-01T00:00:01Z", true),
        ("2024-12-31T12:00:00Z", false),
        ("2025-01-01T00:00:00Z", true),
    ];
    calendar(world, (Year, "UTC"), &calls).await;
    // The closed periods still say what was used in them, also after a restart.
    world.restart().await;
    for (namespace, at) in [
        ("Month UTC 2025-01-01T00:00:01Z", "2025-01-20T00:00:00Z"),
        ("Year UTC 2024-01-01T00:00:01Z", "2024-06-01T00:00:00Z"),
    ] {
        let client = world.caller().within(namespace);
        let usage = client.usage_at("units", &[("user", "s")], Some(at)).await.unwrap();
        assert_eq!((usage[0].used, usage[0].available), (1, Some(0)), "{namespace}");
    }
    // Nothing of it may be removed before its window has closed, and a while.
    let month = Span::from_days(30);
    let (reservations, counters) = world.records().await;
    for counter in counters {
        let (end, gone) = (counter.id.window.end().unwrap(), counter.purge_at(month).unwrap());
        assert!(gone >= end.plus(month).plus(month), "{counter:?}");
    }
    for reservation in reservations {
        let end = reservation.charges[0].counter.window.end().unwrap();
        assert!(reservation.purge_at.unwrap() >= end.plus(month), "{reservation:?}");
    }
}
