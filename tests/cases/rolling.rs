//! Rolling windows: no span of the length ever holds more than the max.

use quota_authority::domain::counter::Used;
use quota_authority::domain::time::{Span, Time};

use crate::world::{Client, Denied, Rules, World, bounds, cases, instant, limit, text, times, v1};

cases! {
    every_store: [
        b19_rolling_in_real_time,
        b19_holds_in_real_time,
        b29_rolling_refusals_take_nothing,
    ],
    manual_clock: [
        b19_rolling_windows,
        b19_as_few_buckets_as_one,
        b19_as_many_buckets_as_1440,
        b19_holds_count_until_they_are_settled,
        b19_a_commit_is_dated_when_it_commits,
        b19_a_release_or_an_expiry_frees_at_once,
        b19_a_partial_commit,
        b19_observed,
        b19_the_counter_stays_small,
        b19_buckets_outlive_a_restart,
        b29_what_can_never_fit,
        b31_a_lowered_and_a_raised_rolling_limit,
        b31_another_rolling_length,
        b58_a_long_rolling_window,
        b62_the_clock_steps_back,
    ],
}

const MINUTE: Span = Span::from_secs(60);

async fn rolling(world: &World, max: i64, length: Span, buckets: i32) -> Client {
    let rule = limit("roll", "units").per(&["user"]).max(max).rolling(length, buckets);
    world.rules(Rules::of_units([rule])).await
}

/// A rolling minute from noon on.
async fn minute(world: &mut World, max: i64) -> Client {
    world.begin_at("2024-05-15T12:00:00Z").await;
    rolling(world, max, MINUTE, 0).await
}

async fn admits(client: &Client, amount: i64) -> bool {
    client.check(&[("units", amount)], &[("user", "s")]).await.unwrap().admitted
}

async fn b19_rolling_windows(world: &mut World) {
    world.begin_at("2024-05-15T12:00:59Z").await;
    let client = rolling(world, 10, MINUTE, 60).await;
    for n in 0..10 {
        client.take(&format!("a {n}"), 1).committed().await.unwrap();
    }
    world.set("2024-05-15T12:01:01Z").await;
    for n in 0..10 {
        let refused = client.take(&format!("b {n}"), 1).send().await.denied(&["roll"]);
        assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:01:59Z");
    }
    world.set("2024-05-15T12:01:58.999Z").await;
    client.take("b", 1).send().await.denied(&["roll"]);
    assert!(!admits(&client, 1).await);
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    let window = bounds(usage[0].window.as_ref());
    assert_eq!(window.0, "2024-05-15T12:00:58.999Z", "the minute that ends now");
    assert_eq!(window.1, "2024-05-15T12:01:58.999Z");
    world.set("2024-05-15T12:01:59Z").await;
    assert!(admits(&client, 10).await);
    for n in 0..10 {
        client.take(&format!("b {n}"), 1).committed().await.unwrap();
    }
    client.take("c", 1).send().await.denied(&["roll"]);
}

/// Spends one unit at a time, as soon as each can be had, and holds the log to
/// the promise; gives how often it could in so many milliseconds.
async fn greedy(world: &mut World, buckets: i32, max: i64, length: i64) -> usize {
    world.begin_at("2024-05-15T12:00:00.123Z").await;
    let client = world.caller().within(&format!("{buckets} buckets"));
    let rule = limit("roll", "units").per(&["user"]).max(max);
    let rule = rule.rolling(Span::from_millis(length), buckets);
    client.apply(Rules::of_units([rule])).await.unwrap();
    let end = world.now().plus(Span::from_millis(length * 5));
    let (mut log, mut tried): (Vec<i64>, u64) = (Vec::new(), 0);
    while world.now() < end {
        tried += 1;
        match client.take(&format!("{tried}"), 1).at_once().send().await {
            // At odd distances, within a bucket and across.
            Ok(_) => {
                log.push(world.now().as_millis());
                world.pass(Span::from_millis(i64::try_from(tried * 37 % 251).unwrap())).await;
            }
            refused => {
                let at = refused.denied(&["roll"]).metadata["retry_time"].clone();
                let before = Time::saturating(instant(&at).as_millis() - 1);
                world.set(&before.to_string()).await;
                assert!(!admits(&client, 1).await, "1 ms before {at}");
                world.set(&at).await;
                assert!(admits(&client, 1).await, "at {at}");
            }
        }
    }
    for from in &log {
        let within = log.iter().filter(|at| (*from..from + length).contains(at)).count();
        assert!(within <= usize::try_from(max).unwrap(), "{within} within {length} ms of {from}");
    }
    log.len()
}

async fn b19_as_few_buckets_as_one(world: &mut World) {
    // All of a length come back together: no more than the max, though late.
    let count = greedy(world, 1, 5, 3000).await;
    assert!((15..=25).contains(&count), "{count}");
}

async fn b19_as_many_buckets_as_1440(world: &mut World) {
    let count = greedy(world, 1440, 5, 3000).await;
    assert!((24..=26).contains(&count), "{count}");
    let count = greedy(world, 60, 5, 3000).await;
    assert!((20..=26).contains(&count), "{count}");
}

async fn b19_holds_count_until_they_are_settled(world: &mut World) {
    let client = minute(world, 3).await;
    let hour = Span::from_secs(3600);
    client.take("held", 2).ttl(hour).send().await.unwrap();
    world.set("2024-05-15T12:30:00Z").await;
    // Longer than the window, and held all the same.
    assert_eq!(client.stands("roll").await, (0, 2, 1));
    let lapses = client.reservation("held").await.unwrap().expire_time;
    let refused = client.take("two", 2).send().await.denied(&["roll"]);
    assert_eq!(refused.refusal.unwrap().limits[0].retry_time, lapses);
    // Used and held return at different instants: at the first at which it fits.
    client.take("used", 1).committed().await.unwrap();
    let refused = client.take("one", 1).send().await.denied(&["roll"]);
    assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:31:00Z");
    let refused = client.take("three", 3).send().await.denied(&["roll"]);
    assert_eq!(refused.refusal.unwrap().limits[0].retry_time, lapses);
    world.set(&text(lapses.as_ref())).await;
    client.take("three", 3).send().await.unwrap();
}

async fn b19_a_commit_is_dated_when_it_commits(world: &mut World) {
    let client = minute(world, 1).await;
    client.take("a", 1).send().await.unwrap();
    world.set("2024-05-15T12:00:50Z").await;
    let booked = client.commit("a").await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (1, 0));
    // A rolling charge has no window of its own.
    assert_eq!(booked.reservation.unwrap().charges[0].window, None);
    for at in ["2024-05-15T12:01:00Z", "2024-05-15T12:01:49.999Z"] {
        world.set(at).await;
        let refused = client.take("b", 1).send().await.denied(&["roll"]);
        assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:01:50Z");
    }
    world.set("2024-05-15T12:01:50Z").await;
    client.take("b", 1).send().await.unwrap();
}

async fn b19_a_release_or_an_expiry_frees_at_once(world: &mut World) {
    let client = minute(world, 2).await;
    client.take("released", 1).send().await.unwrap();
    let lapsing = client.take("lapsing", 1).ttl(Span::from_secs(10)).send().await.unwrap();
    client.take("more", 1).send().await.denied(&["roll"]);
    client.release("released").await.unwrap();
    client.take("more", 1).committed().await.unwrap();
    let refused = client.take("last", 1).send().await.denied(&["roll"]);
    let lapses = text(lapsing.reservation.unwrap().expire_time.as_ref());
    assert_eq!(refused.metadata["retry_time"], lapses);
    world.set(&Time::saturating(instant(&lapses).as_millis() - 1).to_string()).await;
    client.take("last", 1).send().await.denied(&["roll"]);
    world.set(&lapses).await;
    client.take("last", 1).send().await.unwrap();
    assert_eq!(client.state("lapsing").await, v1::ReservationState::Expired);
}

async fn b19_a_partial_commit(world: &mut World) {
    let client = minute(world, 10).await;
    client.take("a", 10).send().await.unwrap();
    world.set("2024-05-15T12:00:20Z").await;
    client.commit_some("a", &[4]).await.unwrap();
    assert_eq!(client.stands("roll").await, (4, 0, 6));
    client.take("b", 6).at_once().send().await.unwrap();
    // Both within one bucket: they return together.
    world.set("2024-05-15T12:01:19.999Z").await;
    assert_eq!(client.stands("roll").await, (10, 0, 0));
    world.set("2024-05-15T12:01:20Z").await;
    assert_eq!(client.stands("roll").await, (0, 0, 10));
    // An item that came to nothing takes nothing.
    client.take("c", 5).item("units", 5).send().await.unwrap();
    client.commit_some("c", &[0, 1]).await.unwrap();
    assert_eq!(client.stands("roll").await, (1, 0, 9));
}

async fn b19_observed(world: &mut World) {
    world.begin_at("2024-05-15T12:00:00Z").await;
    let rule = limit("shadow", "units").per(&["user"]).max(2).rolling(MINUTE, 60).observed();
    let client = world.rules(Rules::of_units([rule])).await;
    for n in 0..5 {
        client.take(&format!("{n}"), 1).committed().await.unwrap();
    }
    let check = client.check(&[("units", 1)], &[("user", "s")]).await.unwrap();
    assert!(check.admitted);
    let status = &check.limits[0];
    assert!(status.exceeded && !status.enforced);
    assert_eq!((status.used, status.available), (5, Some(0)));
    assert_eq!(text(status.retry_time.as_ref()), "2024-05-15T12:01:00Z");
    world.set("2024-05-15T12:01:00Z").await;
    assert_eq!(client.stands("shadow").await, (0, 0, 2));
}

/// However much it is used, a counter has at most as many buckets as its
/// window, and one or two.
async fn b19_the_counter_stays_small(world: &mut World) {
    let rounds = world.rounds(10_000, 300);
    let client = rolling(world, i64::MAX, MINUTE, 60).await;
    for n in 0..rounds {
        client.take(&format!("{n}"), 1).committed().await.unwrap();
        world.pass(Span::from_millis(i64::try_from(n * 131 % 977).unwrap())).await;
        if n % 100 == 99 {
            let counters = world.records().await.1;
            let Used::Recent(buckets) = &counters[0].used else { panic!("{counters:?}") };
            assert!(buckets.len() <= 62, "{} buckets after {n}", buckets.len());
            assert!(counters[0].holds.len() <= 1);
        }
    }
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    assert!((60..=200).contains(&usage[0].used), "{}", usage[0].used);
}

async fn b19_buckets_outlive_a_restart(world: &mut World) {
    let client = minute(world, 5).await;
    client.take("a", 2).committed().await.unwrap();
    world.set("2024-05-15T12:00:10.500Z").await;
    client.take("b", 2).committed().await.unwrap();
    client.take("held", 1).send().await.unwrap();
    let before = world.records().await.1;
    world.restart().await;
    assert_eq!(world.records().await.1, before);
    let client = world.caller();
    assert_eq!(client.stands("roll").await, (4, 1, 0));
    world.set("2024-05-15T12:01:00Z").await;
    assert_eq!(client.stands("roll").await, (2, 1, 2));
    client.commit("held").await.unwrap();
    world.set("2024-05-15T12:01:10.500Z").await;
    assert_eq!(client.stands("roll").await, (1, 0, 4));
    world.restart().await;
    world.set("2024-05-15T12:02:00Z").await;
    assert_eq!(world.caller().stands("roll").await, (0, 0, 5));
}

async fn b19_rolling_in_real_time(world: &mut World) {
    let (client, seconds) = (rolling(world, 3, Span::from_secs(2), 0).await, Span::from_secs(2));
    client.take("all at once", 3).at_once().send().await.unwrap();
    let refused = client.take("over", 1).send().await.denied(&["roll"]);
    assert!(refused.retry.unwrap() <= std::time::Duration::from_secs(2));
    let at = instant(&refused.metadata["retry_time"]);
    world.pass(at.since(world.now())).await;
    // At the instant that was named, and not a whole window later.
    client.take("over", 1).committed().await.unwrap();
    world.pass(times(seconds, 2)).await;
    assert_eq!(client.stands("roll").await, (0, 0, 3));
    client.take("all", 3).committed().await.unwrap();
}

async fn b19_holds_in_real_time(world: &mut World) {
    let client = rolling(world, 1, Span::from_secs(2), 4).await;
    client.take("held", 1).ttl(Span::from_secs(30)).send().await.unwrap();
    world.pass(Span::from_millis(2500)).await;
    client.take("over", 1).send().await.denied(&["roll"]);
    client.commit("held").await.unwrap();
    client.take("over", 1).send().await.denied(&["roll"]);
    world.pass(Span::from_millis(2500)).await;
    client.take("over", 1).send().await.unwrap();
}

async fn b29_rolling_refusals_take_nothing(world: &mut World) {
    let client = rolling(world, 5, Span::from_days(30), 60).await;
    client.take("used", 3).committed().await.unwrap();
    client.take("five", 5).send().await.denied(&["roll"]);
    let never = client.take("million", 1_000_000).send().await.denied(&["roll"]);
    assert_eq!(never.retry, None);
    assert!(never.message.contains("can never fit"), "{}", never.message);
    assert_eq!(client.stands("roll").await, (3, 0, 2));
    client.take("two", 2).send().await.unwrap();
}

async fn b29_what_can_never_fit(world: &mut World) {
    let client = minute(world, 5).await;
    client.take("used", 3).committed().await.unwrap();
    let later = client.take("five", 5).send().await.denied(&["roll"]);
    assert_eq!(later.metadata["retry_time"], "2024-05-15T12:01:00Z");
    client.take("million", 1_000_000).send().await.denied(&["roll"]);
    assert_eq!(client.stands("roll").await, (3, 0, 2));
    client.take("two", 2).send().await.unwrap();
}

async fn b31_a_lowered_and_a_raised_rolling_limit(world: &mut World) {
    let client = minute(world, 5).await;
    client.take("a", 3).committed().await.unwrap();
    world.set("2024-05-15T12:00:30Z").await;
    client.take("b", 2).committed().await.unwrap();
    let applied = client
        .apply(Rules::of_units([limit("roll", "units").per(&["user"]).max(2).rolling(MINUTE, 0)]));
    assert!(applied.await.unwrap().restarted_limits.is_empty());
    assert_eq!(client.stands("roll").await, (5, 0, 0));
    // Under the lower max one waits for both.
    let refused = client.take("c", 1).send().await.denied(&["roll"]);
    assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:01:30Z");
    rolling(world, 6, MINUTE, 0).await;
    client.take("c", 1).committed().await.unwrap();
    let refused = client.take("d", 1).send().await.denied(&["roll"]);
    assert_eq!(refused.metadata["retry_time"], "2024-05-15T12:01:00Z");
}

async fn b31_another_rolling_length(world: &mut World) {
    let client = minute(world, 5).await;
    client.take("a", 5).committed().await.unwrap();
    client.apply(of_length(60, 60)).await.unwrap();
    assert_eq!(client.stands("roll").await, (5, 0, 0), "60 buckets are the default");
    client.take("held", 1).send().await.denied(&["roll"]);
    for (seconds, buckets) in [(60, 10), (10, 10)] {
        let applied = client.apply(of_length(seconds, buckets)).await.unwrap();
        assert_eq!(applied.restarted_limits, ["roll"]);
        assert_eq!(client.stands("roll").await, (0, 0, 5));
    }
    client.take("held", 2).send().await.unwrap();
    client.apply(of_length(20, 10)).await.unwrap();
    let booked = client.commit("held").await.unwrap();
    assert_eq!((booked.limits[0].used, booked.limits[0].held), (2, 0));
    assert_eq!(client.stands("roll").await, (0, 0, 5));
}

fn of_length(seconds: i64, buckets: i32) -> Rules {
    let rule = limit("roll", "units").per(&["user"]).max(5);
    Rules::of_units([rule.rolling(Span::from_secs(seconds), buckets)])
}

/// A year's window on day 365 still counts the first, and then no more.
async fn b58_a_long_rolling_window(world: &mut World) {
    world.begin_at("2023-01-01T00:00:01Z").await;
    let client = rolling(world, 1, Span::from_days(365), 365).await;
    client.take("a", 1).committed().await.unwrap();
    for at in ["2023-01-31T12:00:00Z", "2023-12-31T12:00:00Z", "2024-01-01T00:00:00.999Z"] {
        world.set(at).await;
        let refused = client.take("b", 1).send().await.denied(&["roll"]);
        assert_eq!(refused.metadata["retry_time"], "2024-01-01T00:00:01Z");
    }
    let month = Span::from_days(30);
    for counter in world.records().await.1 {
        assert!(counter.purge_at(month) > Some(instant("2024-01-01T00:00:01Z")), "{counter:?}");
    }
    world.set("2024-01-01T00:00:01Z").await;
    client.take("b", 1).committed().await.unwrap();
}

async fn b62_the_clock_steps_back(world: &mut World) {
    world.begin_at("2024-05-15T12:00:40Z").await;
    let rules = Rules::of_units([
        limit("roll", "units").per(&["user"]).max(10).rolling(MINUTE, 60),
        limit("slots", "lease").per(&["user"]).max(1),
    ]);
    let client = world.rules(rules.metric("lease", &["user"])).await;
    client.take("used", 9).committed().await.unwrap();
    client.take("held", 1).ttl(Span::from_secs(10)).send().await.unwrap();
    let lease = |id: &str| client.reserve(id).item("lease", 1).with("user", "s");
    let lease_of = lease("lease").ttl(Span::from_secs(10)).send().await.unwrap();
    let lapses = text(lease_of.reservation.unwrap().expire_time.as_ref());
    world.begin_at("2024-05-15T12:00:10Z").await;
    let client = world.caller();
    let lease = |id: &str| client.reserve(id).item("lease", 1).with("user", "s");
    let refused = client.take("a", 1).send().await.denied(&["roll"]);
    assert!(refused.retry.unwrap() <= std::time::Duration::from_mins(1), "{refused:?}");
    let refused = client.take("a", 10).send().await.denied(&["roll"]);
    assert!(refused.retry.unwrap() <= std::time::Duration::from_mins(1), "{refused:?}");
    assert_eq!(client.stands("roll").await, (9, 1, 0));
    lease("other").send().await.denied(&["slots"]);
    assert_eq!(client.state("lease").await, v1::ReservationState::Held);
    // Both live until their instant, which is the step later by true time.
    world.set(&Time::saturating(instant(&lapses).as_millis() - 1).to_string()).await;
    assert_eq!(client.stands("roll").await, (9, 1, 0));
    lease("other").send().await.denied(&["slots"]);
    world.set(&lapses).await;
    assert_eq!(client.stands("roll").await, (9, 0, 1));
    lease("other").send().await.unwrap();
    client.take("a", 1).committed().await.unwrap();
    world.set("2024-05-15T12:01:40Z").await;
    assert_eq!(client.stands("roll").await, (1, 0, 9));
}
