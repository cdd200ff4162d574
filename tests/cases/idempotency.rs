//! Ids: the same call once more is the same call, another is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use quota_authority::engine::Settings;
use quota_authority::store::SharedStore;
use quota_authority::store::clock::Clock;
use quota_authority::store::memory::MemoryStore;

use crate::world::{
    Client, Denied, PausedStore, Refused, Reserve, Rules, World, at_once, cases, limit, v1,
};

cases! {
    every_store: [
        b34_one_id_many_callers,
        b34_one_id_many_callers_for_the_last_unit,
        b34_one_id_many_callers_admitted_and_committed,
        b35_an_id_with_other_content,
        b35_an_id_with_other_content_while_the_first_runs,
        b35_the_same_content_replays_whatever_the_limit_says_now,
        b77_idempotency_scope,
        b77_ids_that_run_into_each_other,
    ],
}

/// Exactly one of the answers is the first; all say the same.
fn one_reservation(answers: Vec<Result<v1::ReserveResponse, Refused>>) {
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("an answer")).collect();
    let first = answers.iter().filter(|answer| !answer.replayed).count();
    assert_eq!(first, 1, "one call makes the reservation, the others find it");
    let reservation = answers[0].reservation.as_ref();
    assert!(answers.iter().all(|answer| answer.reservation.as_ref() == reservation));
}

async fn b34_one_id_many_callers(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100).await;
    let take = |n| world.client(n).take("k1", 1).send();
    one_reservation(at_once((0..50).map(take)).await);
    assert_eq!(client.stands("cap").await, (0, 1, 99));
    let commit = |n| {
        let client = world.client(n);
        async move { client.commit("k1").await }
    };
    let commits = at_once((0..50).map(commit)).await;
    let first = commits.iter().filter(|answer| !answer.as_ref().expect("an answer").replayed);
    assert_eq!(first.count(), 1);
    assert_eq!(client.stands("cap").await, (1, 0, 99));
    let release = |n| {
        let client = world.client(n);
        async move { client.release("k2").await }
    };
    client.take("k2", 1).send().await.unwrap();
    let releases = at_once((0..50).map(release)).await;
    let first = releases.iter().filter(|answer| !answer.as_ref().expect("an answer").replayed);
    assert_eq!(first.count(), 1);
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}

/// Where the id itself has taken the last unit, nobody may hear that there is
/// none left.
async fn b34_one_id_many_callers_for_the_last_unit(world: &mut World) {
    world.add_server().await;
    let client = world.cap(1).await;
    let rounds = world.rounds(100, 30);
    let mut strange = BTreeMap::new();
    for round in 0..rounds {
        let id = format!("k-{round}");
        let user = format!("u-{round}");
        let take = |n| {
            let call: Reserve = world.client(n).reserve(&id).item("units", 1).with("user", &user);
            call.send()
        };
        for answer in at_once((0..20).map(take)).await {
            if let Err(refused) = answer {
                *strange.entry(refused.reason.as_str_name()).or_insert(0) += 1;
            }
        }
        let limits = client.usage("units", &[("user", &user)]).await.unwrap();
        assert_eq!((limits[0].used, limits[0].held), (0, 1));
    }
    assert!(strange.is_empty(), "refused although the id is admitted: {strange:?}");
}

/// The same, arranged: one server looks for the id and finds nothing, another
/// admits it and the counter is full, then the first looks at the counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b34_an_id_admitted_elsewhere_between_two_reads() {
    let store: SharedStore = Arc::new(MemoryStore::new(Clock::System));
    let paused = PausedStore::new(Arc::clone(&store));
    let mut world = World::over(store, Settings::default()).await;
    world.add_server_over(Arc::clone(&paused) as SharedStore).await;
    let play = async |world: &mut World| {
        let (first, second) = (world.cap(2).await, world.client(1));
        // Once it has met an id that exists, a server reads ids before all else.
        let warm =
            |client: &Client| client.reserve("warm").item("units", 1).with("user", "w").send();
        warm(&first).await.unwrap();
        assert!(warm(&second).await.unwrap().replayed);
        paused.arm();
        let again = tokio::spawn(second.take("k", 2).send());
        let stopped = tokio::time::timeout(Duration::from_secs(10), paused.reached()).await;
        stopped.expect("the second server looks for the id");
        assert!(!first.take("k", 2).send().await.unwrap().replayed);
        paused.release();
        let again = again.await.expect("a call that ends");
        assert!(again.expect("the id is admitted, so it is no denial").replayed);
    };
    world.play(play).await;
}

async fn b34_one_id_many_callers_admitted_and_committed(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100).await;
    let take = |n| {
        let mut call = world.client(n).take("k1", 1).at_once();
        call.request.resources = vec!["post/1".to_owned()];
        call.send()
    };
    one_reservation(at_once((0..50).map(take)).await);
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}

/// Every way to say something else under the same id.
fn other_contents(call: &Reserve) -> Vec<(&'static str, Reserve)> {
    let change = |change: fn(&mut v1::ReserveRequest)| {
        let mut call = call.clone();
        change(&mut call.request);
        call
    };
    vec![
        ("items", change(|call| call.items[0].amount = Some(5))),
        ("items", change(|call| "others".clone_into(&mut call.items[0].metric))),
        ("items", change(|call| call.items.push(call.items[0].clone()))),
        ("items", change(|call| drop(call.dimensions.insert("user".into(), "t".into())))),
        ("items", change(|call| drop(call.dimensions.insert("color".into(), "red".into())))),
        ("ttl", change(|call| call.ttl.as_mut().unwrap().seconds = 61)),
        ("commit", change(|call| call.commit = true)),
        ("resources", change(|call| call.resources.push("post/1".into()))),
        ("labels", change(|call| drop(call.labels.insert("note".into(), "x".into())))),
    ]
}

fn two_metrics() -> Rules {
    Rules::of_units([limit("cap", "units").per(&["user"]).max(10)])
        .metric("others", &["user"])
        .limits([limit("other", "others").per(&["user"]).max(10)])
}

async fn b35_an_id_with_other_content(world: &mut World) {
    let client = world.rules(two_metrics()).await;
    let call = client.take("k1", 1).ttl(Span::from_secs(60));
    let first = call.clone().send().await.unwrap();
    for (differs, other) in other_contents(&call) {
        let refused = other.send().await.refused(Reason::ReservationIdReused);
        assert_eq!(refused.metadata["differs"], differs);
    }
    assert_eq!(client.stands("cap").await, (0, 1, 9));
    let others = client.usage("others", &[("user", "s")]).await.unwrap();
    assert_eq!((others[0].used, others[0].held), (0, 0));
    let again = call.clone().send().await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.reservation, first.reservation);
    // Said in another way, it is still the same: an amount of one is the
    // default, and so is a minute; dimensions may stand here or there.
    let mut same = client.reserve("k1").item_of("units", 1, &[("user", "s")]);
    same.request.items[0].amount = None;
    same.request.wait = Some(prost_types::Duration::default());
    assert!(same.send().await.unwrap().replayed);
    // Settled, it still refuses other content.
    client.commit("k1").await.unwrap();
    for (_, other) in other_contents(&call) {
        other.send().await.refused(Reason::ReservationIdReused);
    }
    assert!(call.send().await.unwrap().replayed);
}

async fn b35_an_id_with_other_content_while_the_first_runs(world: &mut World) {
    world.add_server().await;
    let client = world.rules(two_metrics()).await;
    let rounds = world.rounds(50, 15);
    for round in 0..rounds {
        let (id, user) = (format!("k-{round}"), format!("u-{round}"));
        let calls = (0..16).map(|n| {
            let amount = if n % 4 == 3 { 2 } else { 1 };
            world.client(n / 2).reserve(&id).item("units", amount).with("user", &user).send()
        });
        let answers = at_once(calls).await;
        let held = client.reservation(&id).await.unwrap().items[0].reserved_amount;
        for (n, answer) in answers.into_iter().enumerate() {
            let amount = if n % 4 == 3 { 2 } else { 1 };
            if amount == held {
                answer.expect("the content that was first");
            } else {
                answer.refused(Reason::ReservationIdReused);
            }
        }
        let limits = client.usage("units", &[("user", &user)]).await.unwrap();
        assert_eq!((limits[0].used, limits[0].held), (0, held));
    }
}

async fn b35_the_same_content_replays_whatever_the_limit_says_now(world: &mut World) {
    let client = world.cap(2).await;
    let call = client.take("k1", 2);
    let first = call.clone().send().await.unwrap();
    // Full, lowered, closed, gone: the id decides.
    assert!(call.clone().send().await.unwrap().replayed);
    world.cap(1).await;
    assert!(call.clone().send().await.unwrap().replayed);
    world.cap(0).await;
    assert!(call.clone().send().await.unwrap().replayed);
    let other = Rules::new().metric("others", &["user"]).limits([limit("other", "others").max(1)]);
    client.apply(other).await.unwrap();
    let again = call.clone().send().await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.reservation, first.reservation);
    client.take("k2", 2).send().await.refused(Reason::MetricNotFound);
    // Other content under the id is a mismatch, even where nothing knows it.
    client.take("k1", 1).send().await.refused(Reason::ReservationIdReused);
    client.commit("k1").await.unwrap();
    assert!(call.send().await.unwrap().replayed);
}

async fn b77_idempotency_scope(world: &mut World) {
    let tenants = [world.caller().within("t1"), world.caller().within("t2")];
    for tenant in &tenants {
        let cap = limit("cap", "units").per(&["user"]).max(3);
        tenant.apply(Rules::of_units([cap])).await.unwrap();
    }
    for tenant in &tenants {
        assert!(!tenant.take("1", 1).send().await.unwrap().replayed, "each has his own");
        assert_eq!(tenant.stands("cap").await, (0, 1, 2));
    }
    let [t1, t2] = &tenants;
    let reserved = t1.take("x", 2).send().await.unwrap().reservation.unwrap();
    let committed = t1.commit("x").await.unwrap();
    assert!(!committed.replayed, "a Commit is not taken for the Reserve of its id");
    let committed = committed.reservation.unwrap();
    assert_ne!(committed, reserved);
    assert_eq!(committed.state(), v1::ReservationState::Committed);
    // Nor the other way round: the Reserve once more makes no new hold.
    assert!(t1.take("x", 2).send().await.unwrap().replayed);
    t1.release("x").await.refused(Reason::AlreadyCommitted);
    assert_eq!(t1.stands("cap").await, (2, 1, 0));
    t2.commit("x").await.refused(Reason::ReservationNotFound);
    assert_eq!(t2.stands("cap").await, (0, 1, 2));
}

async fn b77_ids_that_run_into_each_other(world: &mut World) {
    // Joined by any of the separators somebody may have thought of, these
    // would be the same.
    let pairs = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a%2Fb", "c"),
        ("a", "b%2Fc"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("A", "b/c"),
    ];
    let cap = || limit("cap", "units").per(&["user"]).max(100);
    for (n, (namespace, id)) in pairs.into_iter().enumerate() {
        let client = world.client(n).within(namespace);
        client.apply(Rules::of_units([cap()])).await.unwrap();
        let amount = i64::try_from(n).unwrap() + 1;
        assert!(!client.take(id, amount).send().await.unwrap().replayed, "{namespace} {id}");
    }
    for (n, (namespace, id)) in pairs.into_iter().enumerate() {
        let client = world.client(n).within(namespace);
        let amount = i64::try_from(n).unwrap() + 1;
        let reservation = client.reservation(id).await.unwrap();
        assert_eq!((&*reservation.namespace, &*reservation.reservation_id), (namespace, id));
        assert_eq!(reservation.items[0].reserved_amount, amount);
    }
}
