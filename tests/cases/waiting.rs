//! Reserves that wait for room: who is served, in which order, and how a wait
//! ends that is not.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use tokio::task::JoinHandle;

use crate::support::{Fault, Proxy};
use crate::world::{Client, Denied, Refused, Reserve, World, cases, v1};

cases! {
    every_store: [
        b05_the_dead_hold_up_nobody,
        b25_all_are_served_in_the_order_of_their_arrival,
        b26_waits_and_deadlines,
        b35_other_content_while_the_first_waits,
        b35_the_same_content_while_the_first_waits,
        b49_a_waiter_is_sent_away_by_a_server_that_goes,
        nobody_passes_those_who_wait,
        whoever_gives_up_makes_way,
        a_release_that_comes_first_wins,
    ],
}

/// Longer than any of these tests.
pub const LONG: Span = Span::from_secs(60);
/// Enough for anything that is to happen at once, with every core busy.
const SOON: Duration = Duration::from_secs(10);

pub type Answer = Result<v1::ReserveResponse, Refused>;

/// A call under way, which is given up when this is dropped.
pub struct UnderWay(JoinHandle<Answer>);

impl UnderWay {
    pub fn send(call: Reserve) -> Self {
        Self(tokio::spawn(call.send()))
    }

    pub async fn answer(mut self) -> Answer {
        let answer = tokio::time::timeout(SOON, &mut self.0).await;
        answer.expect("an answer soon").expect("a call that ends")
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub fn waits(client: &Client, id: &str) -> UnderWay {
    UnderWay::send(client.take(id, 1).wait(LONG))
}

async fn b05_the_dead_hold_up_nobody(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let line = Proxy::start(world.address(0));
    let mut dead = Vec::new();
    for n in 0..5 {
        let caller = world.client_at(line.address()).await;
        let request = client.take(&format!("dead {n}"), 1).wait(LONG).request;
        dead.push(tokio::spawn(async move { caller.quota.clone().reserve(request).await }));
        client.until_waiting(n + 1).await;
    }
    line.set(Fault::Refuse);
    let living = waits(&client, "W");
    client.until_waiting(1).await;
    client.release("A").await.unwrap();
    living.answer().await.unwrap();
    for (n, call) in dead.into_iter().enumerate() {
        assert!(call.await.unwrap().is_err());
        client.reservation(&format!("dead {n}")).await.refused(Reason::ReservationNotFound);
    }
    assert_eq!(client.stands("cap").await, (0, 1, 0));
}

/// Twenty one after another; each works for 50 ms.
async fn b25_all_are_served_in_the_order_of_their_arrival(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let released = Arc::new(Mutex::new(Instant::now()));
    let mut calls = Vec::new();
    for n in 0..20 {
        let (client, served, released) = (client.clone(), served.clone(), released.clone());
        calls.push(tokio::spawn(async move {
            let id = format!("{n}");
            client.take(&id, 1).wait(LONG).send().await.expect("all are served");
            served.lock().unwrap().push((n, released.lock().unwrap().elapsed()));
            tokio::time::sleep(Duration::from_millis(50)).await;
            *released.lock().unwrap() = Instant::now();
            client.release(&id).await.unwrap();
        }));
        world.caller().until_waiting(n + 1).await;
    }
    *released.lock().unwrap() = Instant::now();
    client.release("A").await.unwrap();
    for call in calls {
        tokio::time::timeout(SOON, call).await.expect("all are served soon").unwrap();
    }
    let served = served.lock().unwrap().clone();
    let (order, mut gaps): (Vec<i32>, Vec<Duration>) = served.into_iter().unzip();
    assert_eq!(order, (0..20).collect::<Vec<_>>());
    gaps.sort();
    eprintln!("from release to grant: median {:?}, longest {:?}", gaps[10], gaps[19]);
    assert_eq!(client.waiting().await, 0);
}

async fn b26_waits_and_deadlines(world: &mut World) {
    let client = world.cap(1).await;
    let secs = |secs| Span::from_secs(secs);
    client.take("free", 1).wait(Span::ZERO).send().await.unwrap();
    client.take("at once", 1).wait(Span::ZERO).send().await.denied(&["cap"]);
    let mut negative = client.take("negative", 1);
    negative.request.wait = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    negative.send().await.invalid(&["wait"]);

    // Its own deadline comes first.
    let begun = Instant::now();
    let ended = client.take("deadline", 1).wait(secs(10)).within(Duration::from_secs(2)).await;
    ended.refused(Reason::WaitTimedOut);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1700) && took < SOON, "{took:?}");

    let begun = Instant::now();
    let ended = client.take("wait", 1).wait(secs(1)).within(Duration::from_secs(30)).await;
    let refused = ended.refused(Reason::WaitTimedOut);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(1) && took < SOON, "{took:?}");
    assert!(refused.message.contains("waited 1s"), "{}", refused.message);
    assert_eq!(
        (refused.metadata["waited"].as_str(), refused.metadata["held"].as_str()),
        ("1s", "1")
    );
    let limits = refused.refusal.expect("the limits that had no room").limits;
    assert_eq!((limits[0].limit.as_str(), limits[0].exceeded), ("cap", true));
    assert!(refused.quota_failure.is_some());
    assert!(refused.retry.is_some(), "the hold will run out");

    // Nothing is granted afterwards.
    client.release("free").await.unwrap();
    for id in ["deadline", "wait", "at once"] {
        client.reservation(id).await.refused(Reason::ReservationNotFound);
    }
    assert_eq!((client.stands("cap").await, client.waiting().await), ((0, 0, 1), 0));
}

async fn b35_other_content_while_the_first_waits(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let first = waits(&client, "k1");
    client.until_waiting(1).await;
    let others = [
        client.take("k1", 5),
        client.take("k1", 5).wait(LONG),
        client.take("k1", 1).ttl(Span::from_secs(7)),
        client.reserve("k1").item("units", 1).with("user", "somebody else"),
        client.take("k1", 1).at_once(),
    ];
    for other in others {
        other.send().await.refused(Reason::ReservationIdReused);
    }
    assert_eq!(client.waiting().await, 1);
    client.release("A").await.unwrap();
    assert!(!first.answer().await.unwrap().replayed);
    client.take("k1", 5).send().await.refused(Reason::ReservationIdReused);
}

async fn b35_the_same_content_while_the_first_waits(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let first = waits(&client, "k1");
    client.until_waiting(1).await;
    client.take("k1", 1).send().await.denied(&["cap"]);
    let again = waits(&client, "k1");
    client.until_waiting(2).await;
    client.release("A").await.unwrap();
    let (first, again) = (first.answer().await.unwrap(), again.answer().await.unwrap());
    assert!(!first.replayed && again.replayed);
    assert_eq!(first.reservation, again.reservation);
    assert_eq!((client.stands("cap").await, client.waiting().await), ((0, 1, 0), 0));
}

async fn b49_a_waiter_is_sent_away_by_a_server_that_goes(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let waiting = waits(&client, "W");
    client.until_waiting(1).await;
    drop(client);
    let begun = Instant::now();
    world.restart().await;
    assert!(begun.elapsed() < SOON, "it holds nothing up");
    let refused = waiting.answer().await.refused(Reason::StoreUnavailable);
    assert!(refused.message.contains("shutting down"), "{}", refused.message);
    assert!(refused.retry.is_some());

    let client = world.caller();
    client.take("B", 1).send().await.denied(&["cap"]);
    let again = waits(&client, "W");
    client.until_waiting(1).await;
    client.release("A").await.unwrap();
    assert!(!again.answer().await.unwrap().replayed);
}

async fn nobody_passes_those_who_wait(world: &mut World) {
    let client = world.cap(5).await;
    client.take("A", 3).send().await.unwrap();
    let large = UnderWay::send(client.take("large", 4).wait(LONG));
    client.until_waiting(1).await;
    // There is room for these, and somebody waits for it.
    let passed = client.take("small", 1).send().await.denied(&["cap"]);
    assert!(passed.message.contains("1 other waits for it"), "{}", passed.message);
    assert_eq!(passed.metadata["available"], "2");
    let check = client.check(&[("units", 1)], &[("user", "s")]).await.unwrap();
    assert!(!check.admitted && check.limits[0].waiting == 1, "{check:?}");
    let behind = UnderWay::send(client.take("behind", 1).wait(LONG));
    client.until_waiting(2).await;
    // Nobody waits for these.
    client.reserve("other").item("units", 1).with("user", "t").send().await.unwrap();
    assert_eq!(client.take("A", 3).send().await.unwrap().limits[0].waiting, 2, "a replay");
    client.release("A").await.unwrap();
    large.answer().await.unwrap();
    behind.answer().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 5, 0));
}

async fn whoever_gives_up_makes_way(world: &mut World) {
    let client = world.cap(5).await;
    client.take("A", 3).send().await.unwrap();
    let large = UnderWay::send(client.take("large", 4).wait(LONG));
    client.until_waiting(1).await;
    let small = UnderWay::send(client.take("small", 2).wait(LONG));
    client.until_waiting(2).await;
    drop(large);
    small.answer().await.unwrap();
    assert_eq!((client.stands("cap").await, client.waiting().await), ((0, 5, 0), 0));
    client.reservation("large").await.refused(Reason::ReservationNotFound);
}

async fn a_release_that_comes_first_wins(world: &mut World) {
    let client = world.cap(1).await;
    client.take("A", 1).send().await.unwrap();
    let waiting = waits(&client, "W");
    client.until_waiting(1).await;
    client.release("W").await.refused(Reason::ReservationNotFound);
    client.settle("W").release_with("changed my mind", true).await.unwrap();
    waiting.answer().await.refused(Reason::AlreadyReleased);
    assert_eq!((client.stands("cap").await, client.waiting().await), ((0, 1, 0), 0));
}
