//! What lets those go on who wait for room, and who may wait at all.

use std::sync::Arc;
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use quota_authority::engine::Settings;
use quota_authority::store::SharedStore;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::memory::MemoryStore;

use crate::waiting::{LONG, UnderWay, waits};
use crate::world::{Client, Denied, Rules, START, World, cases, instant, limit, user, v1};

cases! {
    every_store: [
        a_commit_of_less_wakes,
        a_refund_wakes,
        an_override_wakes,
        b52_more_than_the_limit_itself,
        b52_a_limit_that_is_raised,
        b70_a_wait_for_several_locks,
        b79_weighted_slots_with_waiters,
        one_server_wakes_those_of_another,
    ],
    manual_clock: [a_hold_that_runs_out_wakes, an_override_that_ends_may_help],
}

/// User `s` holds all of five; another call waits for one.
async fn full(world: &World) -> (Client, UnderWay) {
    let client = world.cap(5).await;
    client.take("A", 5).send().await.unwrap();
    let waiting = waits(&client, "W");
    client.until_waiting(1).await;
    (client, waiting)
}

async fn a_commit_of_less_wakes(world: &mut World) {
    let (client, waiting) = full(world).await;
    client.commit_some("A", &[4]).await.unwrap();
    waiting.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (4, 1, 0));
}

async fn a_refund_wakes(world: &mut World) {
    let client = world.cap(5).await;
    client.take("A", 5).committed().await.unwrap();
    let waiting = waits(&client, "W");
    client.until_waiting(1).await;
    let request = v1::RefundRequest {
        namespace: client.namespace.clone(),
        reservation_id: "A".to_owned(),
        refund_id: "back".to_owned(),
        amounts: vec![2],
        ..v1::RefundRequest::default()
    };
    client.quota.clone().refund(request).await.unwrap();
    waiting.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (3, 1, 1));
}

async fn an_override_wakes(world: &mut World) {
    let (client, waiting) = full(world).await;
    client.put(user("s").add("cap", 1, None)).await.unwrap();
    waiting.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 6, 0));
}

async fn a_hold_that_runs_out_wakes(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).ttl(Span::from_secs(3)).send().await.unwrap();
    let waiting = waits(&client, "W");
    client.until_waiting(1).await;
    world.pass(Span::from_secs(4)).await;
    let granted = waiting.answer().await.unwrap().reservation.unwrap();
    let created = quota_authority::api::times::time("", granted.create_time.unwrap()).unwrap();
    assert_eq!(created, world.now(), "the ttl counts from the grant");
}

async fn an_override_that_ends_may_help(world: &mut World) {
    let client = world.cap(2).await;
    client.put(user("s").set("cap", 1, Some("2024-05-15T13:00:00Z"))).await.unwrap();
    // Too much for now, but not for ever.
    let waiting = UnderWay::send(client.take("W", 2).wait(Span::from_secs(86_400)));
    client.until_waiting(1).await;
    world.set("2024-05-15T13:00:00Z").await;
    waiting.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 2, 0));
}

async fn b52_more_than_the_limit_itself(world: &mut World) {
    let client = world.cap(2).await;
    client.take("A", 1).send().await.unwrap();
    let never = client.take("four", 4).wait(Span::from_secs(30)).send().await.denied(&["cap"]);
    assert!(never.message.contains("can never fit"), "{}", never.message);
    assert_eq!((never.retry, client.waiting().await), (None, 0));
}

/// One that waits for what would fit goes on waiting while the limit is too low
/// for it, and one that has grown too large is told.
async fn b52_a_limit_that_is_raised(world: &mut World) {
    let (client, waiting) = full(world).await;
    let cap = |max| Rules::of_units([limit("cap", "units").per(&["user"]).max(max)]);
    client.apply(cap(6)).await.unwrap();
    waiting.answer().await.unwrap();
    let waiting = UnderWay::send(client.take("three", 3).wait(LONG));
    client.until_waiting(1).await;
    client.apply(cap(2)).await.unwrap();
    let never = waiting.answer().await.denied(&["cap"]);
    assert!(never.message.contains("can never fit"), "{}", never.message);
}

async fn b70_a_wait_for_several_locks(world: &mut World) {
    let writer = limit("writer", "edit").per(&["doc"]).max(1);
    let client = world.rules(Rules::new().metric("edit", &["doc"]).limits([writer])).await;
    let lock = |id: &str, docs: &[&str]| {
        docs.iter().fold(client.reserve(id), |call, doc| call.item_of("edit", 1, &[("doc", doc)]))
    };
    let waiting = async |doc: &str| client.usage("edit", &[("doc", doc)]).await.unwrap()[0].waiting;
    let all = ["A", "B", "C", "D"];
    lock("all", &all).send().await.unwrap();
    client.release("all").await.unwrap();
    for doc in all {
        lock(doc, &[doc]).send().await.unwrap();
    }
    for doc in ["A", "B", "D"] {
        client.release(doc).await.unwrap();
    }
    lock("none", &all).send().await.denied(&["writer"]);
    let again = UnderWay::send(lock("again", &all).wait(LONG));
    crate::support::eventually(Duration::from_secs(30), "it to wait", async || {
        (waiting("C").await == 1).then_some(())
    })
    .await;
    // It waits for C alone: the others are free meanwhile.
    assert_eq!(waiting("A").await, 0);
    lock("A again", &["A"]).send().await.unwrap();
    client.release("A again").await.unwrap();
    client.release("C").await.unwrap();
    let granted = again.answer().await.unwrap();
    assert_eq!(granted.reservation.unwrap().charges.len(), 4);
}

async fn b79_weighted_slots_with_waiters(world: &mut World) {
    let client = world.cap(6).await;
    client.take("a", 3).send().await.unwrap();
    client.take("b", 3).send().await.unwrap();
    let four = UnderWay::send(client.take("four", 4).wait(LONG));
    client.until_waiting(1).await;
    let two = UnderWay::send(client.take("two", 2).wait(LONG));
    client.until_waiting(2).await;
    client.release("a").await.unwrap();
    // Three are free, which the second could do with; the first is before it.
    client.take("one", 1).send().await.denied(&["cap"]);
    assert_eq!((client.stands("cap").await.1, client.waiting().await), (3, 2));
    client.release("b").await.unwrap();
    four.answer().await.unwrap();
    two.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 6, 0));
}

async fn one_server_wakes_those_of_another(world: &mut World) {
    world.add_server().await;
    let client = world.cap(1).await;
    let other = world.client(1);
    client.take("A", 1).send().await.unwrap();
    for n in 0..5 {
        let id = format!("{n}");
        let waiting = waits(&other, &id);
        other.until_waiting(1).await;
        assert_eq!(client.waiting().await, 0, "they wait elsewhere");
        client
            .release(if n == 0 { "A".to_owned() } else { format!("{}", n - 1) }.as_str())
            .await
            .unwrap();
        waiting.answer().await.unwrap();
    }
}

/// Beyond the bounds nobody waits, and is told so at once.
#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_wait() {
    let clock = Clock::Manual(ManualClock::at(instant(START)));
    let store: SharedStore = Arc::new(MemoryStore::new(clock));
    let settings = Settings { waiters: 3, waiters_per_namespace: 2, ..Settings::default() };
    World::over(store, settings)
        .await
        .play(async |world: &mut World| {
            let client = world.cap(1).await;
            client.take("A", 1).send().await.unwrap();
            let _first = waits(&client, "1");
            client.until_waiting(1).await;
            let _second = waits(&client, "2");
            client.until_waiting(2).await;
            let refused = waits(&client, "3").answer().await.refused(Reason::Overloaded);
            assert!(refused.retry.is_some());
            let other = client.clone().within("other");
            other
                .apply(Rules::of_units([limit("cap", "units").per(&["user"]).max(1)]))
                .await
                .unwrap();
            other.take("A", 1).send().await.unwrap();
            let _third = waits(&other, "1");
            other.until_waiting(1).await;
            waits(&other, "2").answer().await.refused(Reason::Overloaded);
        })
        .await;
}
