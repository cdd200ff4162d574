//! Whose billing periods they are: of several subjects, of one that has none,
//! of one that is frozen.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::billing::{FIRST, SECOND, billed};
use crate::world::{Denied, Rules, World, bounds, cases, days, limit, owner, pair, text, user, v1};
use v1::window_rule::Kind;

cases! {
    manual_clock: [
        b59_without_period,
        b59_billing_begins_while_on_the_fallback,
        b59_subjects_of_two_users_in_one_call,
        b59_periods_of_an_organisation,
        b59_frozen_comes_first,
    ],
}

async fn b59_without_period(world: &mut World) {
    world.begin_at("2024-05-15T12:30:10Z").await;
    let month = v1::CalendarWindow {
        unit: v1::CalendarUnit::Month.into(),
        time_zone: "Asia/Kolkata".to_owned(),
        week_start: v1::Weekday::Unspecified.into(),
    };
    let minute = v1::FixedWindow { length: Some(prost_types::Duration { seconds: 60, nanos: 0 }) };
    for (name, kind, window) in [
        ("calendar", Kind::Calendar(month), Some(("2024-04-30T18:30:00Z", "2024-05-31T18:30:00Z"))),
        ("fixed", Kind::Fixed(minute), Some(("2024-05-15T12:30:00Z", "2024-05-15T12:31:00Z"))),
        ("lifetime", Kind::Lifetime(v1::LifetimeWindow {}), None),
    ] {
        let client = world.caller().within(name);
        let rule = limit("posts", "units").per(&["user"]).max(1).billing_of("", Some(kind));
        client.apply(Rules::of_units([rule])).await.unwrap();
        // Never seen, and seen without any billing: the same.
        client.take("one", 1).committed().await.unwrap();
        client.put(user("s")).await.unwrap();
        client.take("two", 1).send().await.denied(&["posts"]);
        client.put(user("s").billing(v1::Billing::default())).await.unwrap();
        let refused = client.take("two", 1).send().await.denied(&["posts"]);
        let status = &refused.refusal.as_ref().unwrap().limits[0];
        assert_eq!(
            status.window.as_ref().map(|window| bounds(Some(window))),
            window.map(|(start, end)| pair(start, end)),
            "{name}"
        );
        assert_eq!(
            status.retry_time.as_ref().map(|at| text(Some(at))),
            window.map(|(_, end)| end.to_owned())
        );
        // Who has periods gets no other when they leave a gap.
        client.put(user("s").periods(&[FIRST])).await.unwrap();
        client.take("two", 1).send().await.refused(Reason::PeriodUnavailable);
    }
    // Without a fallback there is no period for a stranger.
    let client = billed(world, 1).await;
    let refused = client.take("one", 1).send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata.get("next_period"), None);
    client.put(user("s").monthly(1, "2024-05-01T00:00:00Z", "")).await.unwrap();
    client.take("one", 1).send().await.unwrap();
}

async fn b59_billing_begins_while_on_the_fallback(world: &mut World) {
    world.begin_at("2024-05-01T00:00:00Z").await;
    let month = Kind::Calendar(v1::CalendarWindow {
        unit: v1::CalendarUnit::Month.into(),
        ..v1::CalendarWindow::default()
    });
    let rule = limit("posts", "units").per(&["user"]).max(3).billing_of("", Some(month));
    let client = world.rules(Rules::of_units([rule])).await;
    client.take("free", 2).committed().await.unwrap();
    client.take("held", 1).ttl(Span::from_secs(3600)).send().await.unwrap();
    // He subscribes: a period of its own, though it begins with the month.
    client.put(user("s").monthly(1, "2024-05-01T00:00:00Z", "UTC")).await.unwrap();
    assert_eq!(client.stands("posts").await, (0, 0, 3));
    client.take("paid", 3).committed().await.unwrap();
    // What he held before is booked before.
    let booked = client.commit("held").await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (3, 0));
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    // The subscription goes: the month goes on with what was used of it.
    client.put(user("s")).await.unwrap();
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    client.take("more", 1).send().await.denied(&["posts"]);
}

/// Items of two users in one call: each is counted in his own period.
async fn b59_subjects_of_two_users_in_one_call(world: &mut World) {
    world.begin_at("2024-05-15T00:00:00Z").await;
    let client = billed(world, 3).await;
    let (anna, ben) = ([("user", "anna")], [("user", "ben")]);
    client.put(user("anna").monthly(1, "2024-05-10T00:00:00Z", "UTC")).await.unwrap();
    let both = |id: &str, amount| {
        client.reserve(id).item_of("units", amount, &anna).item_of("units", amount, &ben)
    };
    let refused = both("a", 1).send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata["subject"], "user/ben");
    assert_eq!(client.usage("units", &anna).await.unwrap()[0].held, 0, "all or nothing");
    client.put(user("ben").monthly(1, "2024-05-01T00:00:00Z", "UTC")).await.unwrap();
    let taken = both("a", 2).send().await.unwrap().reservation.unwrap();
    let mut windows: Vec<_> = taken.charges.iter().map(|c| bounds(c.window.as_ref())).collect();
    windows.sort();
    assert_eq!(windows, [days("2024-05-01", "2024-06-01"), days("2024-05-10", "2024-06-10")]);
    world.set("2024-05-15T00:00:30Z").await;
    client.commit("a").await.unwrap();
    // Both refuse; the one whose period ends later binds more.
    let refused = both("b", 2).send().await.denied(&["posts", "posts"]);
    assert_eq!(refused.metadata["key"], "user=anna");
    assert_eq!(refused.metadata["retry_time"], "2024-06-10T00:00:00Z");
    let used = async |who| client.usage("units", who).await.unwrap()[0].used;
    assert_eq!((used(&anna).await, used(&ben).await), (2, 2));
    world.set("2024-06-01T00:00:00Z").await;
    assert_eq!((used(&anna).await, used(&ben).await), (2, 0));
    both("b", 1).send().await.unwrap();
}

/// Counted per user and organisation, in the periods of the organisation.
async fn b59_periods_of_an_organisation(world: &mut World) {
    world.begin_at("2024-05-15T00:00:00Z").await;
    let rule = limit("seats", "units").per(&["user", "org"]).plan_of("user");
    let rule = rule.by_plan(&[("free", 1), ("pro", 2)]).billing_of("org", None);
    let rules = Rules::new().metric("units", &["user", "org"]).limits([rule]);
    let client = world.rules(rules.plans(&["free", "pro"], "free")).await;
    client.put(owner("org", "o").monthly(1, "2024-05-10T00:00:00Z", "UTC")).await.unwrap();
    // The user's own periods are none of it.
    client.put(user("s").plan("pro").monthly(1, "2024-05-01T00:00:00Z", "UTC")).await.unwrap();
    let take = |id: &str, who: &str| {
        client.reserve(id).item("units", 1).with("user", who).with("org", "o")
    };
    let taken = take("a", "s").committed().await.unwrap();
    assert_eq!(bounds(taken.limits[0].window.as_ref()), days("2024-05-10", "2024-06-10"));
    take("b", "s").committed().await.unwrap();
    let refused = take("c", "s").send().await.denied(&["seats"]);
    assert_eq!(refused.metadata["retry_time"], "2024-06-10T00:00:00Z");
    take("d", "t").committed().await.unwrap();
    take("e", "t").send().await.denied(&["seats"]);
    let other = client.reserve("f").item("units", 1).with("user", "s").with("org", "p");
    let refused = other.send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata["subject"], "org/p");
}

/// Every Reserve that names a frozen subject says that, in a gap too: it is
/// not the period that he has to wait for.
async fn b59_frozen_comes_first(world: &mut World) {
    world.begin_at("2025-01-20T00:00:00Z").await;
    let client = billed(world, 1).await;
    client.put(user("s").periods(&[FIRST, SECOND])).await.unwrap();
    client.take("a", 1).send().await.unwrap();
    client.put(user("s").periods(&[FIRST, SECOND]).frozen()).await.unwrap();
    client.take("b", 1).send().await.refused(Reason::SubjectFrozen);
    world.set("2025-02-05T00:00:00Z").await;
    client.take("b", 1).send().await.refused(Reason::SubjectFrozen);
    let check = client.check(&[("units", 1)], &[("user", "s")]).await;
    check.refused(Reason::SubjectFrozen);
    // To look at it is no Reserve.
    client.usage("units", &[("user", "s")]).await.refused(Reason::PeriodUnavailable);
    client.usage_at("units", &[("user", "s")], Some(FIRST.1)).await.unwrap();
}
