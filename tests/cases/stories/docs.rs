//! The documents: one writer at a time.

use quota_authority::api::Reason;
use quota_authority::domain::time::{Span, Time};

use super::bundled;
use crate::world::{Client, Denied, Reserve, World, at_once, cases, instant, text, v1};

cases! {
    every_store: [
        story_one_writer_at_a_time,
        story_a_writer_crashes_in_real_time,
        story_many_want_to_write,
    ],
    manual_clock: [story_a_writer_crashes],
}

fn edit(client: &Client, id: &str) -> Reserve {
    client.reserve(id).item("edit", 1).with("doc", "doc-1").ttl(Span::from_secs(30))
}

fn token(granted: &v1::ReserveResponse) -> i64 {
    granted.reservation.as_ref().unwrap().charges[0].fencing_token
}

async fn story_one_writer_at_a_time(world: &mut World) {
    let client = bundled(world, "docs").await;
    let first = edit(&client, "anna").send().await.unwrap();
    let expires = text(first.reservation.as_ref().unwrap().expire_time.as_ref());
    // A second is refused, and told when he could write at the latest.
    let refused = edit(&client, "ben").send().await.denied(&["one-writer"]);
    assert_eq!(refused.metadata["retry_time"], expires);
    assert!(refused.retry.unwrap() <= std::time::Duration::from_secs(31));
    let other = client.reserve("ben elsewhere").item("edit", 1).with("doc", "doc-2");
    other.send().await.unwrap();
    // Who writes may ask again, and is told the same.
    let again = edit(&client, "anna").send().await.unwrap();
    assert!(again.replayed && token(&again) == token(&first));
    client.release("anna").await.unwrap();
    let second = edit(&client, "ben").send().await.unwrap();
    assert!(token(&second) > token(&first), "the later writer has the larger token");
    // What the first one lets go now is not the second one's hold.
    assert!(client.release("anna").await.unwrap().replayed);
    edit(&client, "cleo").send().await.denied(&["one-writer"]);
}

async fn story_a_writer_crashes(world: &mut World) {
    world.begin_at("2024-05-15T12:00:00Z").await;
    let client = bundled(world, "docs").await;
    let crashed = edit(&client, "anna").send().await.unwrap();
    let expires = text(crashed.reservation.as_ref().unwrap().expire_time.as_ref());
    world.set(&Time::saturating(instant(&expires).as_millis() - 1).to_string()).await;
    let refused = edit(&client, "ben").send().await.denied(&["one-writer"]);
    assert_eq!(refused.retry, Some(std::time::Duration::from_millis(1)));
    world.set(&expires).await;
    let next = edit(&client, "ben").send().await.unwrap();
    assert!(token(&next) > token(&crashed));
    // She comes back, and learns that she has lost it.
    edit(&client, "anna").send().await.refused(Reason::ReservationExpired);
    client.release("anna").await.refused(Reason::ReservationExpired);
    client.commit("anna").await.refused(Reason::ReservationExpired);
    assert_eq!(client.state("anna").await, v1::ReservationState::Expired);
    edit(&client, "cleo").send().await.denied(&["one-writer"]);
    // The server goes and comes: the lock is where it was.
    world.restart().await;
    let client = world.caller().within("docs");
    edit(&client, "cleo").send().await.denied(&["one-writer"]);
    client.release("ben").await.unwrap();
    let third = edit(&client, "cleo").send().await.unwrap();
    assert!(token(&third) > token(&next));
}

async fn story_a_writer_crashes_in_real_time(world: &mut World) {
    let client = bundled(world, "docs").await;
    let crashed = edit(&client, "anna").ttl(Span::from_secs(1)).send().await.unwrap();
    let refused = edit(&client, "ben").send().await.denied(&["one-writer"]);
    let at = instant(&refused.metadata["retry_time"]);
    world.pass(at.since(world.now())).await;
    let next = edit(&client, "ben").send().await.unwrap();
    assert!(token(&next) > token(&crashed));
    client.release("anna").await.refused(Reason::ReservationExpired);
}

/// Never two at once, and every one that follows has a larger token.
async fn story_many_want_to_write(world: &mut World) {
    world.add_server().await;
    let clients = [bundled(world, "docs").await, world.client(1).within("docs")];
    let mut last = 0;
    for round in 0..5 {
        let calls = (0..20).map(|n| {
            let client = clients[n % 2].clone();
            async move {
                let id = format!("{round}/{n}");
                edit(&client, &id).send().await.map(|granted| (id, token(&granted)))
            }
        });
        let granted: Vec<_> = at_once(calls).await.into_iter().flatten().collect();
        let [(id, token)] = granted.as_slice() else { panic!("{granted:?} at once") };
        assert!(*token > last);
        last = *token;
        clients[1].release(id).await.unwrap();
    }
}
