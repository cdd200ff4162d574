//! Slots and locks: lifetime limits whose reservations are held and released,
//! never committed.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Reserve, Rules, World, cases, limit, times, v1};

cases! {
    every_store: [
        b22_a_late_release_frees_nobody_else,
        b22_fencing_tokens_grow,
        b73_expiry_is_the_holders_own,
        b74_the_same_owner_again,
        b79_weighted_slots,
        b86_own_earlier_hold,
    ],
    manual_clock: [b53_slots_of_different_lengths],
}

/// A lock for each document.
async fn writers(world: &World) -> Client {
    let writer = limit("writer", "edit").per(&["doc"]).max(1);
    world.rules(Rules::new().metric("edit", &["doc"]).limits([writer])).await
}

fn acquire(client: &Client, id: &str, lease: Span) -> Reserve {
    client.reserve(id).item("edit", 1).with("doc", "doc-1").ttl(lease)
}

async fn b22_a_late_release_frees_nobody_else(world: &mut World) {
    let second = world.second(2);
    let client = writers(world).await;
    acquire(&client, "LA", times(second, 2)).send().await.unwrap();
    world.pass(times(second, 3)).await;
    acquire(&client, "LB", times(second, 60)).send().await.unwrap();
    client.release("LA").await.refused(Reason::ReservationExpired);
    client.settle("LA").release_with("", true).await.refused(Reason::ReservationExpired);
    client.commit("LA").await.refused(Reason::ReservationExpired);
    let refused = acquire(&client, "LC", times(second, 60)).send().await.denied(&["writer"]);
    assert!(refused.retry.is_some(), "it helps to wait for a lease");
    assert_eq!(client.state("LB").await, v1::ReservationState::Held);
    let usage = client.usage("edit", &[("doc", "doc-1")]).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held), (0, 1));
    client.release("LB").await.unwrap();
    acquire(&client, "LC", times(second, 60)).send().await.unwrap();
}

async fn b22_fencing_tokens_grow(world: &mut World) {
    writers(world).await;
    let mut last = 0;
    for n in 0..10 {
        let (id, client) = (format!("L{n}"), world.caller());
        let lease = acquire(&client, &id, Span::from_secs(60));
        let granted = lease.clone().send().await.unwrap().reservation.unwrap();
        let token = granted.charges[0].fencing_token;
        assert!(token > last, "{token} after {last}");
        last = token;
        let again = lease.send().await.unwrap().reservation.unwrap();
        assert_eq!(again.charges[0].fencing_token, token, "a replay brings no new token");
        if n == 5 {
            world.restart().await;
        }
        world.caller().release(&id).await.unwrap();
    }
}

async fn b53_slots_of_different_lengths(world: &mut World) {
    let slots = limit("slots", "units").per(&["user"]).max(2);
    let client = world.rules(Rules::of_units([slots])).await;
    let take = |id: &str, secs| client.take(id, 1).ttl(Span::from_secs(secs)).send();
    let at = |millis: i64| Span::from_millis(millis);
    take("A", 30).await.unwrap();
    take("B", 2).await.unwrap();
    world.pass(at(1000)).await;
    client.release("A").await.unwrap();
    world.pass(at(100)).await;
    take("C", 60).await.unwrap();
    world.pass(at(100)).await;
    take("D", 60).await.denied(&["slots"]);
    world.pass(at(1800)).await;
    take("D", 60).await.unwrap();
    world.pass(at(100)).await;
    take("E", 60).await.denied(&["slots"]);
    // A's old expiry frees nothing.
    world.pass(at(27_900)).await;
    take("E", 60).await.denied(&["slots"]);
    assert_eq!(client.stands("slots").await, (0, 2, 0));
    world.pass(at(30_000 + 1875)).await;
    take("E", 60).await.unwrap();
}

async fn b73_expiry_is_the_holders_own(world: &mut World) {
    let second = world.second(10);
    let client = writers(world).await;
    acquire(&client, "A", times(second, 30)).send().await.unwrap();
    for _ in 0..2 {
        world.pass(times(second, 6)).await;
        let lease = Span::from_secs(1);
        acquire(&client, "B", lease).send().await.denied(&["writer"]);
    }
    world.pass(times(second, 19)).await;
    acquire(&client, "B", Span::from_secs(5)).send().await.unwrap();
}

async fn b74_the_same_owner_again(world: &mut World) {
    let client = writers(world).await;
    let lease = |id: &str, owner: &str| {
        let mut call = acquire(&client, id, Span::from_secs(60));
        call.request.labels.insert("owner".to_owned(), owner.to_owned());
        call.send()
    };
    lease("k1", "o").await.unwrap();
    lease("k2", "o").await.denied(&["writer"]);
    client.release("k2").await.refused(Reason::ReservationNotFound);
    client.settle("k2").release_with("cleaning up", true).await.unwrap();
    lease("k3", "other").await.denied(&["writer"]);
    client.release("k1").await.unwrap();
    lease("k3", "other").await.unwrap();
    lease("k1", "o").await.refused(Reason::AlreadyReleased);
}

async fn b79_weighted_slots(world: &mut World) {
    let slots = limit("slots", "units").per(&["user"]).max(6);
    let client = world.rules(Rules::of_units([slots])).await;
    let take = |id: &str, weight| client.take(id, weight).send();
    let in_use = async || client.stands("slots").await.1;
    take("a", 3).await.unwrap();
    assert_eq!(in_use().await, 3);
    take("b", 3).await.unwrap();
    assert_eq!(in_use().await, 6);
    take("c", 1).await.denied(&["slots"]);
    assert_eq!(in_use().await, 6);
    client.release("a").await.unwrap();
    assert_eq!(in_use().await, 3);
    take("d", 4).await.denied(&["slots"]);
    assert_eq!(in_use().await, 3);
    take("e", 2).await.unwrap();
    assert_eq!(in_use().await, 5);
    take("f", 1).await.unwrap();
    assert_eq!(in_use().await, 6);
    let never = take("g", 7).await.denied(&["slots"]);
    assert_eq!(never.retry, None, "no waiting makes seven fit into six");
}

async fn b86_own_earlier_hold(world: &mut World) {
    let client = world.cap(1).await;
    client.take("k1", 1).send().await.unwrap();
    client.take("k2", 1).send().await.denied(&["cap"]);
    // Both items of one call are two, also of the same subject.
    client.take("k3", 1).item("units", 1).send().await.denied(&["cap"]);
    assert!(!client.check(&[("units", 1)], &[("user", "s")]).await.unwrap().admitted);
    client.take("k2", 1).at_once().send().await.denied(&["cap"]);
    assert_eq!(client.state("k1").await, v1::ReservationState::Held);
    client.commit("k1").await.unwrap();
    client.take("k2", 1).send().await.denied(&["cap"]);
    assert_eq!(client.stands("cap").await, (1, 0, 0));
}
