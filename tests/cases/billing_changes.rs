//! Billing that changes while people are counted: corrected bounds, the next
//! period alone, another plan, another policy.

use std::sync::Arc;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use quota_authority::engine::Settings;
use quota_authority::store::clock::Clock;
use quota_authority::store::memory::MemoryStore;

use crate::world::{
    Client, Denied, Owner, Rules, World, bounds, cases, limit, pair, text, user, v1,
};

cases! {
    every_store: [
        b32_plan_and_period_change_between_reserve_and_commit,
        b34_the_id_decides_before_period_and_frost,
        b55_names_of_periods,
    ],
    manual_clock: [
        b32_plan_change_on_billing,
        b59_corrected_bounds_keep_the_counter,
        b59_a_corrected_end_keeps_the_counter_of_a_period_without_id,
        b59_a_corrected_start_by_id_only,
        b59_a_shortened_period_ends_at_once,
        b59_only_the_next_period_is_sent,
        b59_from_explicit_periods_to_an_anchor,
        b01_settled_after_the_period,
        b31_another_subject_or_fallback_starts_afresh,
    ],
}

/// What a change of billing was is in its event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b89_changes_of_billing_leave_a_trace() {
    let store = Arc::new(MemoryStore::new(Clock::System));
    let world = World::over(Arc::<MemoryStore>::clone(&store), Settings::default()).await;
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    let client = world.rules(Rules::of_units([rule])).await;
    client.put(user("s").rolling_on(&[AUGUST, SEPTEMBER])).await.unwrap();
    client.put(user("s").monthly(3, AUGUST.1, "Asia/Kolkata")).await.unwrap();
    client.put(user("s").every(Span::from_days(30), AUGUST.1)).await.unwrap();
    client.put(user("s")).await.unwrap();
    let events = store.events();
    let said: Vec<&str> = events
        .iter()
        .filter(|event| event.subject == "user/s")
        .map(|event| event.details["billing after"].as_str())
        .collect();
    let expected = [
        "2024-08-15T00:00:00Z to 2024-09-15T00:00:00Z (in_1), \
         2024-09-15T00:00:00Z to 2024-10-15T00:00:00Z (in_2), and so on",
        "from 2024-08-15T00:00:00Z every 3 months in Asia/Kolkata",
        "from 2024-08-15T00:00:00Z every 30d",
        "",
    ];
    assert_eq!(said, expected);
    assert_eq!(events.last().unwrap().details["billing before"], expected[2]);
}

/// Who sends an admitted call again is answered as before, on whatever server
/// and whatever has become of his period meanwhile.
async fn b34_the_id_decides_before_period_and_frost(world: &mut World) {
    world.add_server().await;
    world.add_server().await;
    let (first, second, third) = (world.client(0), world.client(1), world.client(2));
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    first.apply(Rules::of_units([rule])).await.unwrap();
    let now = ("", "2001-01-01T00:00:00Z", "2199-01-01T00:00:00Z");
    first.put(user("s").periods(&[now])).await.unwrap();
    first.take("a", 1).send().await.unwrap();
    let past = ("", "2001-01-01T00:00:00Z", "2002-01-01T00:00:00Z");
    first.put(user("s").periods(&[past])).await.unwrap();
    // The others have never heard of that id.
    assert!(second.take("a", 1).send().await.unwrap().replayed);
    second.take("a", 2).send().await.refused(Reason::ReservationIdReused);
    second.take("b", 1).send().await.refused(Reason::PeriodUnavailable);
    first.put(user("s").periods(&[now]).frozen()).await.unwrap();
    assert!(third.take("a", 1).send().await.unwrap().replayed);
    third.take("b", 1).send().await.refused(Reason::SubjectFrozen);
    third.commit("a").await.unwrap();
    assert!(second.commit("a").await.unwrap().replayed);
}

/// Each name of a period is a counter of its own, whatever is in it.
async fn b55_names_of_periods(world: &mut World) {
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    let client = world.rules(Rules::of_units([rule])).await;
    let long = "é".repeat(128);
    for (n, name) in ["a", "a.b", "$a", "a/b", "a b", "A", "lifetime", "billing:a", &long]
        .into_iter()
        .enumerate()
    {
        let period = (name, "2001-01-01T00:00:00Z", "2199-01-01T00:00:00Z");
        client.put(user("s").periods(&[period])).await.unwrap();
        assert_eq!(client.stands("posts").await, (0, 0, 1), "{name}");
        client.take(&format!("{n}"), 1).committed().await.unwrap();
        client.take("over", 1).send().await.denied(&["posts"]);
    }
    assert_eq!(world.records().await.1.len(), 9);
}

const AUGUST: (&str, &str, &str) = ("in_1", "2024-08-15T00:00:00Z", "2024-09-15T00:00:00Z");
const SEPTEMBER: (&str, &str, &str) = ("in_2", "2024-09-15T00:00:00Z", "2024-10-15T00:00:00Z");

/// A limit on the billing periods of user `s`, from 20 August on.
async fn in_august(world: &mut World, max: i64) -> Client {
    world.begin_at("2024-08-20T00:00:00Z").await;
    let rule = limit("posts", "units").per(&["user"]).max(max).billing();
    world.rules(Rules::of_units([rule])).await
}

async fn b32_plan_change_on_billing(world: &mut World) {
    world.begin_at("2024-05-10T00:00:00Z").await;
    let plans = [("starter", 20_000), ("growth", 50_000), ("pro", 100_000)];
    let rule = limit("cap", "units").per(&["user"]).by_plan(&plans).billing();
    let rules = Rules::of_units([rule]).plans(&["starter", "growth", "pro"], "");
    let client = world.rules(rules).await;
    let on = |plan: &str| user("s").plan(plan).monthly(1, "2024-01-01T00:00:00Z", "UTC");
    client.put(on("starter")).await.unwrap();
    client.take("starter", 20_000).committed().await.unwrap();
    let refused = client.take("over", 1).send().await.denied(&["cap"]);
    assert_eq!(refused.metadata["retry_time"], "2024-06-01T00:00:00Z");
    client.put(on("pro")).await.unwrap();
    client.take("over", 1).committed().await.unwrap();
    assert_eq!(client.stands("cap").await, (20_001, 0, 79_999));
    client.take("more", 39_999).committed().await.unwrap();
    client.take("held", 10).send().await.unwrap();
    client.put(on("growth")).await.unwrap();
    assert_eq!(client.stands("cap").await, (60_000, 10, 0));
    client.release("held").await.unwrap();
    let refused = client.take("down", 1).send().await.denied(&["cap"]);
    let status = &refused.refusal.as_ref().unwrap().limits[0];
    assert_eq!((status.used, status.held, status.available), (60_000, 0, Some(0)));
    assert_eq!(text(status.retry_time.as_ref()), "2024-06-01T00:00:00Z");
    assert_eq!(refused.metadata["retry_time"], "2024-06-01T00:00:00Z");
    let seconds = 22 * 86_400;
    assert_eq!(refused.retry, Some(std::time::Duration::from_secs(seconds)));
    world.set("2024-05-31T23:59:59.999Z").await;
    client.take("down", 1).send().await.denied(&["cap"]);
    world.set("2024-06-01T00:00:00Z").await;
    assert_eq!(client.stands("cap").await, (0, 0, 50_000));
    client.take("down", 1).committed().await.unwrap();
    let closed = client.usage_at("units", &[("user", "s")], Some("2024-05-01T00:00:00Z")).await;
    assert_eq!(closed.unwrap()[0].used, 60_000);
}

async fn b59_corrected_bounds_keep_the_counter(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[AUGUST])).await.unwrap();
    client.take("used", 2).committed().await.unwrap();
    client.take("held", 1).ttl(Span::from_secs(86_400)).send().await.unwrap();
    client.take("over", 1).send().await.denied(&["posts"]);
    // It began a day earlier and ends a week later: the same period.
    let corrected = ("in_1", "2024-08-14T00:00:00Z", "2024-09-22T00:00:00Z");
    client.put(user("s").periods(&[corrected])).await.unwrap();
    let refused = client.take("over", 1).send().await.denied(&["posts"]);
    assert_eq!(refused.metadata["retry_time"], "2024-08-21T00:04:42.624Z", "the hold lapses");
    let status = &refused.refusal.unwrap().limits[0];
    assert_eq!(bounds(status.window.as_ref()), pair(corrected.1, corrected.2));
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held), (2, 1));
    assert_eq!(bounds(usage[0].window.as_ref()), pair(corrected.1, corrected.2));
    client.release("held").await.unwrap();
    let taken = client.take("last", 1).committed().await.unwrap();
    assert_eq!(bounds(taken.limits[0].window.as_ref()), pair(corrected.1, corrected.2));
    let charge = &taken.reservation.as_ref().unwrap().charges[0];
    assert_eq!(bounds(charge.window.as_ref()), pair(corrected.1, corrected.2));
    // What was charged before says what held then.
    let before = client.reservation("used").await.unwrap();
    assert_eq!(bounds(before.charges[0].window.as_ref()), pair(AUGUST.1, AUGUST.2));
    let refused = client.take("over", 1).send().await.denied(&["posts"]);
    assert_eq!(refused.metadata.get("retry_time"), None, "the last period: nothing follows");
}

async fn b59_a_corrected_end_keeps_the_counter_of_a_period_without_id(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[("", AUGUST.1, AUGUST.2)])).await.unwrap();
    client.take("used", 3).committed().await.unwrap();
    let longer = ("", AUGUST.1, "2024-10-01T00:00:00Z");
    client.put(user("s").periods(&[longer])).await.unwrap();
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    assert_eq!(bounds(usage[0].window.as_ref()), pair(longer.1, longer.2));
    client.take("over", 1).send().await.denied(&["posts"]);
    world.set("2024-09-20T00:00:00Z").await;
    client.take("over", 1).send().await.denied(&["posts"]);
    world.set(longer.2).await;
    client.take("over", 1).send().await.refused(Reason::PeriodUnavailable);
}

async fn b59_a_corrected_start_by_id_only(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[("", AUGUST.1, AUGUST.2)])).await.unwrap();
    client.take("used", 3).committed().await.unwrap();
    // Its start is its id: named so, it may begin elsewhere.
    let moved = (AUGUST.1, "2024-08-16T00:00:00Z", AUGUST.2);
    client.put(user("s").periods(&[moved])).await.unwrap();
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    assert_eq!(bounds(usage[0].window.as_ref()), pair(moved.1, moved.2));
    // Without it, it is another period.
    client.put(user("s").periods(&[("", moved.1, moved.2)])).await.unwrap();
    assert_eq!(client.stands("posts").await, (0, 0, 3));
}

/// Cancelled before its end: what is held is settled, nothing new gets in.
async fn b59_a_shortened_period_ends_at_once(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[AUGUST])).await.unwrap();
    client.take("held", 2).send().await.unwrap();
    let ended = ("in_1", AUGUST.1, "2024-08-20T00:00:00Z");
    client.put(user("s").periods(&[ended])).await.unwrap();
    client.take("new", 1).send().await.refused(Reason::PeriodUnavailable);
    assert!(client.take("held", 2).send().await.unwrap().replayed);
    client.commit_some("held", &[1]).await.unwrap();
    let closed = client.usage_at("units", &[("user", "s")], Some(AUGUST.1)).await.unwrap();
    assert_eq!((closed[0].used, closed[0].held), (1, 0));
    assert_eq!(bounds(closed[0].window.as_ref()), pair(ended.1, ended.2));
    client.put(user("s").periods(&[AUGUST])).await.unwrap();
    assert_eq!(client.stands("posts").await, (1, 0, 2));
}

/// A webhook that knows of one period at a time.
async fn b59_only_the_next_period_is_sent(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[AUGUST])).await.unwrap();
    client.take("august", 2).committed().await.unwrap();
    world.set("2024-09-14T23:59:30Z").await;
    client.take("held", 1).send().await.unwrap();
    // It comes a little early: until then there is no period.
    client.put(user("s").periods(&[SEPTEMBER])).await.unwrap();
    let refused = client.take("early", 1).send().await.refused(Reason::PeriodUnavailable);
    assert_eq!(refused.metadata["next_period"], SEPTEMBER.1);
    world.set(SEPTEMBER.1).await;
    client.take("september", 3).committed().await.unwrap();
    let booked = client.commit("held").await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (3, 0));
    assert_eq!(bounds(booked.limits[0].window.as_ref()), pair(AUGUST.1, AUGUST.2));
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    // Of the one before nothing is known any more, until it is sent again.
    let closed = client.usage_at("units", &[("user", "s")], Some(AUGUST.1)).await;
    closed.refused(Reason::PeriodUnavailable);
    client.put(user("s").periods(&[SEPTEMBER, AUGUST])).await.unwrap();
    let closed = client.usage_at("units", &[("user", "s")], Some(AUGUST.1)).await.unwrap();
    assert_eq!((closed[0].used, closed[0].held), (3, 0));
}

async fn b59_from_explicit_periods_to_an_anchor(world: &mut World) {
    let client = in_august(world, 3).await;
    client.put(user("s").periods(&[("", AUGUST.1, AUGUST.2)])).await.unwrap();
    client.take("used", 2).committed().await.unwrap();
    client.put(user("s").monthly(1, AUGUST.1, "UTC")).await.unwrap();
    assert_eq!(client.stands("posts").await, (2, 0, 1));
    client.take("over", 2).send().await.denied(&["posts"]);
    client.put(user("s").every(Span::from_days(31), AUGUST.1)).await.unwrap();
    assert_eq!(client.stands("posts").await, (2, 0, 1));
    world.set(AUGUST.2).await;
    client.take("over", 2).committed().await.unwrap();
    client.put(user("s").periods(&[("", SEPTEMBER.1, SEPTEMBER.2)])).await.unwrap();
    assert_eq!(client.stands("posts").await, (2, 0, 1));
    // Another start is another period.
    client.put(user("s").monthly(1, "2024-09-01T00:00:00Z", "UTC")).await.unwrap();
    assert_eq!(client.stands("posts").await, (0, 0, 3));
}

async fn b01_settled_after_the_period(world: &mut World) {
    let client = in_august(world, 5).await;
    client.put(user("s").periods(&[AUGUST, SEPTEMBER])).await.unwrap();
    world.set("2024-09-14T23:59:59.999Z").await;
    for (id, amount) in [("committed", 2), ("released", 1), ("lapsing", 2)] {
        client.take(id, amount).send().await.unwrap();
    }
    client.take("over", 1).send().await.denied(&["posts"]);
    world.set(SEPTEMBER.1).await;
    assert_eq!(client.stands("posts").await, (0, 0, 5));
    client.take("new", 5).committed().await.unwrap();
    let booked = client.commit("committed").await.unwrap();
    assert_eq!(bounds(booked.limits[0].window.as_ref()), pair(AUGUST.1, AUGUST.2));
    client.release("released").await.unwrap();
    let august = async || {
        let usage = client.usage_at("units", &[("user", "s")], Some(AUGUST.1)).await.unwrap();
        (usage[0].used, usage[0].held)
    };
    assert_eq!(august().await, (2, 2));
    world.set("2024-09-15T00:02:00Z").await;
    assert_eq!(august().await, (2, 0));
    assert_eq!(client.stands("posts").await, (5, 0, 0));
    client.take("more", 1).send().await.denied(&["posts"]);
}

/// Nothing that changes in between moves a charge.
async fn b32_plan_and_period_change_between_reserve_and_commit(world: &mut World) {
    let plans = [("free", 2), ("pro", 9)];
    let rule = || limit("posts", "units").per(&["user"]).by_plan(&plans);
    let rules = |rule| Rules::of_units([rule]).plans(&["free", "pro"], "free");
    let client = world.rules(rules(rule().billing())).await;
    let long = |id: &str, plan: &str| -> Owner {
        user("s").plan(plan).periods(&[(id, "2001-01-01T00:00:00Z", "2199-01-01T00:00:00Z")])
    };
    client.put(long("first", "free")).await.unwrap();
    for id in ["a", "b"] {
        client.take(id, 1).send().await.unwrap();
    }
    client.take("c", 1).send().await.denied(&["posts"]);
    // Another period and another plan.
    client.put(long("second", "pro")).await.unwrap();
    client.take("c", 9).send().await.unwrap();
    let booked = client.commit("a").await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (1, 1));
    assert_eq!(booked.limits[0].bound, Some(v1::limit_status::Bound::Max(9)), "the plan of now");
    assert_eq!(client.stands("posts").await, (0, 9, 0));
    // Another window altogether.
    let applied = client.apply(rules(rule().fixed(Span::from_days(3660)))).await.unwrap();
    assert_eq!(applied.restarted_limits, ["posts"]);
    assert_eq!(client.stands("posts").await, (0, 0, 9));
    client.release("b").await.unwrap();
    let booked = client.commit_some("c", &[5]).await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (5, 0));
    assert_eq!(client.stands("posts").await, (0, 0, 9));
    // And back: what was counted by billing periods stays behind.
    let applied = client.apply(rules(rule().billing())).await.unwrap();
    assert_eq!(applied.restarted_limits, ["posts"]);
    assert_eq!(client.stands("posts").await, (0, 0, 9));
    client.put(long("first", "free").frozen()).await.unwrap();
    assert!(client.take("a", 1).send().await.unwrap().replayed);
}

async fn b31_another_subject_or_fallback_starts_afresh(world: &mut World) {
    world.begin_at("2024-05-15T00:00:00Z").await;
    let rules = |subject: &str, unit: Option<v1::CalendarUnit>| {
        let without = unit.map(|unit| {
            let calendar = v1::CalendarWindow { unit: unit.into(), ..Default::default() };
            v1::window_rule::Kind::Calendar(calendar)
        });
        let rule = limit("posts", "units").per(&["user"]).max(3).billing_of(subject, without);
        Rules::of_units([rule])
    };
    let client = world.rules(rules("", Some(v1::CalendarUnit::Month))).await;
    client.take("used", 3).committed().await.unwrap();
    // The same in other words.
    let applied = client.apply(rules("user", Some(v1::CalendarUnit::Month))).await.unwrap();
    assert!(applied.changed && applied.restarted_limits.is_empty());
    assert_eq!(client.stands("posts").await, (3, 0, 0));
    for unit in [Some(v1::CalendarUnit::Day), None] {
        let applied = client.apply(rules("user", unit)).await.unwrap();
        assert_eq!(applied.restarted_limits, ["posts"]);
    }
    client.take("more", 1).send().await.refused(Reason::PeriodUnavailable);
}
