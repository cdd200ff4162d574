//! Nothing lives only in a server.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Rules, World, cases, limit, v1};

cases! {
    every_store: [b49_restart, b49_settled_by_another_server],
    manual_clock: [b49_what_ran_out_meanwhile],
}

fn rules() -> Rules {
    Rules::of_units([limit("cap", "units").per(&["user"]).max(10)])
        .metric("edit", &["doc"])
        .limits([limit("writer", "edit").per(&["doc"]).max(1)])
}

async fn b49_restart(world: &mut World) {
    world.add_server().await;
    let client = world.rules(rules()).await;
    let lease = client.reserve("lease").item("edit", 1).with("doc", "doc-1");
    let before = lease.send().await.unwrap();
    client.take("hold", 2).send().await.unwrap();
    client.take("used", 3).committed().await.unwrap();
    client.take("gone", 1).send().await.unwrap();
    client.release("gone").await.unwrap();
    let held = client.reservation("hold").await.unwrap();
    let stands = client.stands("cap").await;

    world.restart().await;
    let client = world.client(1);
    let b = client.reserve("B").item("edit", 1).with("doc", "doc-1").send().await;
    b.denied(&["writer"]);
    assert_eq!(client.reservation("hold").await.unwrap(), held);
    assert_eq!(client.stands("cap").await, stands);
    let again = client.reserve("lease").item("edit", 1).with("doc", "doc-1").send().await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.reservation, before.reservation);
    client.take("gone", 1).send().await.refused(Reason::AlreadyReleased);
    client.commit("used").await.unwrap();
    client.commit("hold").await.unwrap();
    client.release("lease").await.unwrap();
    client.reserve("B").item("edit", 1).with("doc", "doc-1").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (5, 0, 5));
}

async fn b49_settled_by_another_server(world: &mut World) {
    world.add_server().await;
    world.add_server().await;
    world.rules(rules()).await;
    for n in 0..9 {
        let id = format!("{n}");
        world.client(n).take(&id, 1).send().await.unwrap();
        if n % 2 == 0 {
            world.client(n + 1).commit(&id).await.unwrap();
            assert!(world.client(n + 2).commit(&id).await.unwrap().replayed);
        } else {
            world.client(n + 1).release(&id).await.unwrap();
            world.client(n + 2).commit(&id).await.refused(Reason::AlreadyReleased);
        }
        let expected = i64::try_from(n / 2 + 1).unwrap();
        for server in 0..3 {
            assert_eq!(world.client(server).stands("cap").await, (expected, 0, 10 - expected));
        }
    }
}

async fn b49_what_ran_out_meanwhile(world: &mut World) {
    let client = world.rules(rules()).await;
    client.take("short", 4).ttl(Span::from_secs(5)).send().await.unwrap();
    client.take("long", 5).ttl(Span::from_secs(600)).send().await.unwrap();
    world.begin_at("2024-05-15T12:30:06Z").await;
    let client = world.caller();
    assert_eq!(client.stands("cap").await, (0, 5, 5));
    assert_eq!(client.state("short").await, v1::ReservationState::Expired);
    client.commit("short").await.refused(Reason::ReservationExpired);
    client.take("new", 5).send().await.unwrap();
    client.commit("long").await.unwrap();
}
