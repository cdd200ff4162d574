//! Holds that run out: at their instant, in every answer, and only once.

use std::time::{Duration, Instant};

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::support::eventually;
use crate::world::{Client, Denied, Rules, World, at_once, cases, instant, limit, text, times, v1};

cases! {
    every_store: [
        b08_a_commit_that_comes_too_late,
        b08_a_commit_that_comes_too_late_to_free_room,
        b16_reads_agree_with_admissions,
        b43_many_holds_of_one_instant,
    ],
    manual_clock: [b08_the_very_instant, b16_a_hold_shrinks_group_by_group, b22_the_clock_runs_back],
    mongo_only: [b17_real_time],
}

async fn b08_a_commit_that_comes_too_late(world: &mut World) {
    let second = world.second(4);
    let client = world.cap(1).await;
    client.take("ra", 1).ttl(times(second, 5)).send().await.unwrap();
    client.take("rb", 1).ttl(times(second, 60)).send().await.denied(&["cap"]);
    world.pass(times(second, 6)).await;
    client.take("rb", 1).ttl(times(second, 60)).send().await.unwrap();
    world.pass(second).await;
    let late = client.commit("ra").await.refused(Reason::ReservationExpired);
    assert_ne!(late.code, client.commit("rx").await.refused(Reason::ReservationNotFound).code);
    let expired = client.reservation("ra").await.unwrap();
    assert_eq!(expired.state(), v1::ReservationState::Expired);
    assert_eq!(late.metadata["expire_time"], text(expired.expire_time.as_ref()));
    assert_eq!(client.commit("rb").await.unwrap().limits[0].used, 1);
    assert_eq!(client.stands("cap").await, (1, 0, 0));
}

async fn b08_a_commit_that_comes_too_late_to_free_room(world: &mut World) {
    let second = world.second(4);
    let client = world.cap(10).await;
    let call = client.take("ra", 4).item("units", 1).ttl(times(second, 5));
    call.clone().send().await.unwrap();
    world.pass(times(second, 6)).await;
    // All of it, a part, too much: it is gone, and that is the reason.
    for amounts in [vec![], vec![4, 1], vec![1, 0], vec![5, 5]] {
        client.commit_some("ra", &amounts).await.refused(Reason::ReservationExpired);
    }
    let release = client.settle("ra").release_with("", true).await;
    release.refused(Reason::ReservationExpired);
    // Nobody works on a hold that he has lost.
    call.clone().send().await.refused(Reason::ReservationExpired);
    call.at_once().send().await.refused(Reason::ReservationIdReused);
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    // Its history says so, with the amounts, though nobody wrote it.
    let reservation = client.reservation("ra").await.unwrap();
    let [reserved, expired] = reservation.history.as_slice() else { panic!("{reservation:?}") };
    assert_eq!((&*reserved.event, &*expired.event), ("reserved", "expired"));
    assert_eq!(expired.amounts, [4, 1]);
    assert_eq!(expired.time, reservation.expire_time);
    assert!(reservation.settle_time.is_none());
    assert_eq!(reservation.charges[0].amount, 0);
}

async fn b08_the_very_instant(world: &mut World) {
    let client = world.cap(1).await;
    let take = |id: &str| client.take(id, 1).ttl(Span::from_secs(5));
    let expire_time = take("ra").send().await.unwrap().reservation.unwrap().expire_time;
    let expiry = text(expire_time.as_ref());
    let (asked, most) = (instant("2024-05-15T12:30:05Z"), instant("2024-05-15T12:30:05.156Z"));
    assert!((asked..=most).contains(&instant(&expiry)), "{expiry}");
    // One millisecond before, it is held; at the instant, it is not.
    let before = instant(&expiry).as_millis() - 1;
    world.set(&jiff::Timestamp::from_millisecond(before).unwrap().to_string()).await;
    let refused = take("rb").send().await.denied(&["cap"]);
    assert_eq!(refused.refusal.unwrap().limits[0].retry_time, expire_time);
    assert_eq!(refused.retry, Some(Duration::from_millis(1)));
    assert_eq!(client.stands("cap").await, (0, 1, 0));
    assert_eq!(client.state("ra").await, v1::ReservationState::Held);
    world.set(&expiry).await;
    assert_eq!(client.stands("cap").await, (0, 0, 1));
    assert_eq!(client.state("ra").await, v1::ReservationState::Expired);
    client.commit("ra").await.refused(Reason::ReservationExpired);
    take("rb").send().await.unwrap();
}

async fn b16_reads_agree_with_admissions(world: &mut World) {
    let second = world.second(2);
    let client = world.cap(10).await;
    client.take("ra", 10).ttl(times(second, 3)).send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 10, 0));
    world.pass(times(second, 4)).await;
    // No write has touched the counter since: every read derives it.
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    let check = client.check(&[("units", 10)], &[("user", "s")]).await.unwrap();
    assert!(check.admitted);
    assert_eq!(client.state("ra").await, v1::ReservationState::Expired);
    let granted = client.take("rb", 10).send().await.unwrap();
    assert_eq!((granted.limits[0].held, granted.limits[0].available), (10, Some(0)));
    assert_eq!(client.stands("cap").await, (0, 10, 0));
}

async fn b16_a_hold_shrinks_group_by_group(world: &mut World) {
    let client = world.cap(10).await;
    for (id, secs) in [("a", 2), ("b", 4), ("c", 6)] {
        client.take(id, 3).ttl(Span::from_secs(secs)).send().await.unwrap();
    }
    for (held, id) in [(9, "x"), (6, "y"), (3, "z")] {
        assert_eq!(client.stands("cap").await, (0, held, 10 - held));
        client.take(id, 11 - held).send().await.denied(&["cap"]);
        world.pass(Span::from_millis(2064)).await;
    }
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    for id in ["a", "b", "c"] {
        client.commit(id).await.refused(Reason::ReservationExpired);
    }
    client.take("all", 10).send().await.unwrap();
}

/// Where the clock steps back, nothing that was over is live again: time never
/// runs back for a counter.
async fn b22_the_clock_runs_back(world: &mut World) {
    let client = world.cap(1).await;
    client.take("ra", 1).ttl(Span::from_secs(10)).send().await.unwrap();
    world.pass(Span::from_secs(20)).await;
    client.take("rb", 1).ttl(Span::from_secs(10)).send().await.unwrap();
    world.begin_at("2024-05-15T12:30:01Z").await;
    let client = world.caller();
    assert_eq!(client.stands("cap").await, (0, 1, 0));
    client.commit("ra").await.refused(Reason::ReservationExpired);
    assert_eq!(client.state("ra").await, v1::ReservationState::Expired);
    let refused = client.take("rc", 1).send().await.denied(&["cap"]);
    assert!(refused.retry.unwrap() <= Duration::from_millis(10_320), "{:?}", refused.retry);
    client.commit("rb").await.unwrap();
}

/// Tries until it is admitted; gives how long that took.
async fn again(client: &Client, metric: &str, dimension: &str, value: &str) -> Duration {
    let begun = Instant::now();
    let mut tries = 0;
    eventually(Duration::from_secs(10), "what has run out to be free", async || {
        tries += 1;
        let id = format!("{metric} {value} {tries}");
        client.reserve(&id).item(metric, 1).with(dimension, value).send().await.ok()
    })
    .await;
    begun.elapsed()
}

/// Against a real database with its default settings; its own cleaner wakes
/// once a minute, and nothing may depend on it.
async fn b17_real_time(world: &mut World) {
    let rules =
        Rules::new().metric("edit", &["doc"]).metric("units", &["user"]).metric("tick", &["user"]);
    let client = world
        .rules(rules.limits([
            limit("writer", "edit").per(&["doc"]).max(1),
            limit("cap", "units").per(&["user"]).max(1),
            limit("second", "tick").per(&["user"]).max(1).fixed(Span::from_secs(1)),
        ]))
        .await;
    let round = |n: usize| {
        let client = client.clone();
        async move {
            let value = format!("{n}");
            let lease = client.reserve(&format!("lease {n}")).item("edit", 1).with("doc", &value);
            let begun = Instant::now();
            let lease = lease.ttl(Span::from_secs(2)).send().await.unwrap().reservation.unwrap();
            let hold = client.reserve(&format!("hold {n}")).item("units", 1).with("user", &value);
            hold.ttl(Span::from_secs(1)).send().await.unwrap();
            let tick = client.reserve(&format!("tick {n}")).item("tick", 1).with("user", &value);
            tick.committed().await.unwrap();
            let (lease_took, hold_took, tick_took) = tokio::join!(
                again(&client, "edit", "doc", &value),
                again(&client, "units", "user", &value),
                again(&client, "tick", "user", &value),
            );
            let set_up = begun.elapsed().saturating_sub(lease_took.max(hold_took).max(tick_took));
            assert!(lease_took + set_up >= Duration::from_secs(2), "{lease_took:?} {lease:?}");
            assert!(hold_took + set_up >= Duration::from_secs(1), "{hold_took:?}");
            for took in [lease_took, hold_took, tick_took] {
                assert!(took < Duration::from_secs(5), "{took:?}");
            }
        }
    };
    futures_util::future::join_all((0..20).map(round)).await;
}

async fn b43_many_holds_of_one_instant(world: &mut World) {
    world.add_server().await;
    world.add_server().await;
    let total = i64::try_from(world.rounds(20_000, 1_000)).unwrap();
    let client = world.cap(total).await;
    let ttl = Span::from_secs(if world.manual() { 60 } else { 4 });
    let begun = world.now();
    let workers = 100;
    let hold = |worker: i64| {
        let client = world.client(usize::try_from(worker).unwrap());
        async move {
            for n in 0..total / workers {
                let call = client.take(&format!("{worker}-{n}"), 1).ttl(ttl);
                call.send().await.expect("room for all of them");
            }
        }
    };
    at_once((0..workers).map(hold)).await;
    if world.manual() {
        assert_eq!(client.stands("cap").await, (0, total, 0));
        client.take("over", 1).send().await.denied(&["cap"]);
    }
    // The last of them may have been made just now.
    let lapse = ttl.as_millis() + ttl.as_millis() / 32 + 2000;
    world.pass(Span::from_millis(lapse)).await;
    assert!(world.now() > begun.plus(ttl));
    let share = total / 50;
    let all = |n: usize| world.client(n).take(&format!("after {n}"), share).send();
    for answer in at_once((0..50).map(all)).await {
        answer.expect("every expired hold has given its unit back");
    }
    assert_eq!(client.stands("cap").await, (0, total, 0));
    let late = client.release("0-0").await;
    late.refused(Reason::ReservationExpired);
    let release = |n: usize| {
        let client = world.client(n + 1);
        async move { client.release(&format!("after {n}")).await }
    };
    for answer in at_once((0..50).map(release)).await {
        answer.expect("a live hold");
    }
    assert_eq!(client.stands("cap").await, (0, 0, total));
}
