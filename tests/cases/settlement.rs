//! Commit and Release: once, never more than was held, and nothing given back
//! that was not taken.

use quota_authority::api::Reason;

use crate::world::{Client, Denied, Rules, World, at_once, cases, limit, v1};

cases! {
    every_store: [
        b07_no_more_than_was_held,
        b07_item_by_item,
        b44_partial_commit,
        b65_two_partial_commits,
        b65_two_partial_commits_at_once,
        b67_wrong_state_calls,
        b67_unknown_and_foreign_ids_look_alike,
        b67_release_before_reserve,
        b67_resources,
        b67_resources_bound_at_once,
        b67_a_refused_binding_holds_up_nobody,
        b68_release,
        b76_settlement_repeated,
    ],
}

async fn b07_no_more_than_was_held(world: &mut World) {
    let client = world.cap(10).await;
    client.take("r1", 3).send().await.unwrap();
    client.take("r2", 7).send().await.unwrap();
    let refused = client.commit_some("r1", &[5]).await.refused(Reason::AmountExceedsHold);
    assert_eq!((&*refused.metadata["amount"], &*refused.metadata["held"]), ("5", "3"));
    assert_eq!(client.state("r1").await, v1::ReservationState::Held);
    assert_eq!(client.stands("cap").await, (0, 10, 0));
    client.commit_some("r1", &[3]).await.unwrap();
    assert_eq!(client.stands("cap").await, (3, 7, 0));
    // One rule only: not from free room either.
    client.release("r2").await.unwrap();
    client.take("r3", 3).send().await.unwrap();
    for amount in [4, 5, i64::MAX] {
        client.commit_some("r3", &[amount]).await.refused(Reason::AmountExceedsHold);
    }
    assert_eq!(client.stands("cap").await, (3, 3, 4));
}

async fn b07_item_by_item(world: &mut World) {
    // As much as is held in all, but more of one item than of that is held.
    let client = world.cap(10).await;
    client.take("r", 3).item("units", 4).send().await.unwrap();
    let refused = client.commit_some("r", &[4, 3]).await.refused(Reason::AmountExceedsHold);
    assert_eq!(refused.metadata["item"], "0");
    client.commit_some("r", &[0, 5]).await.refused(Reason::AmountExceedsHold);
    client.commit_some("r", &[7]).await.invalid(&["amounts"]);
    assert_eq!(client.stands("cap").await, (0, 7, 3));
    client.commit_some("r", &[2, 4]).await.unwrap();
    let items = client.reservation("r").await.unwrap().items;
    assert_eq!(items.iter().map(|item| item.committed_amount).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(client.stands("cap").await, (6, 0, 4));
}

async fn b44_partial_commit(world: &mut World) {
    let client = world.cap(100).await;
    client.take("r1", 10).send().await.unwrap();
    let committed = client.commit_some("r1", &[7]).await.unwrap();
    assert_eq!((committed.limits[0].used, committed.limits[0].held), (7, 0));
    assert_eq!(committed.reservation.unwrap().charges[0].amount, 7);
    assert_eq!(client.stands("cap").await, (7, 0, 93));
    client.release("r1").await.refused(Reason::AlreadyCommitted);
    assert_eq!(client.stands("cap").await, (7, 0, 93));
    client.take("rest", 93).send().await.unwrap();
    client.take("over", 1).send().await.denied(&["cap"]);
}

async fn b65_two_partial_commits(world: &mut World) {
    let client = world.cap(200).await;
    client.take("r1", 100).send().await.unwrap();
    client.commit_some("r1", &[60]).await.unwrap();
    let rest = client.commit_some("r1", &[40]).await;
    rest.refused(Reason::AlreadyCommitted);
    assert!(client.commit_some("r1", &[60]).await.unwrap().replayed, "the same amounts");
    client.commit("r1").await.refused(Reason::AlreadyCommitted);
    assert_eq!(client.stands("cap").await, (60, 0, 140));
}

async fn b65_two_partial_commits_at_once(world: &mut World) {
    world.add_server().await;
    let client = world.cap(10_000).await;
    let mut total = 0;
    for round in 0..world.rounds(100, 25) {
        let id = format!("r-{round}");
        client.take(&id, 100).send().await.unwrap();
        let (one, other) = (world.client(0), world.client(1));
        let (first, second) =
            tokio::join!(one.commit_some(&id, &[60]), other.commit_some(&id, &[70]));
        let (used, lost) = match (first, second) {
            (Ok(_), lost) => (60, lost),
            (lost, Ok(_)) => (70, lost),
            neither => panic!("neither took effect: {neither:?}"),
        };
        lost.refused(Reason::AlreadyCommitted);
        let item = &client.reservation(&id).await.unwrap().items[0];
        assert_eq!(item.committed_amount, used);
        total += used;
        assert_eq!(client.stands("cap").await, (total, 0, 10_000 - total));
    }
}

async fn b67_wrong_state_calls(world: &mut World) {
    let client = world.cap(10).await;
    client.take("r1", 5).committed().await.unwrap();
    client.release("r1").await.refused(Reason::AlreadyCommitted);
    let refused = client.settle("r1").release_with("too late", true).await;
    refused.refused(Reason::AlreadyCommitted);
    assert_eq!(client.stands("cap").await, (5, 0, 5));

    client.take("r2", 5).send().await.unwrap();
    assert!(!client.release("r2").await.unwrap().replayed);
    client.commit("r2").await.refused(Reason::AlreadyReleased);
    client.commit_some("r2", &[9]).await.refused(Reason::AlreadyReleased);
    assert!(client.release("r2").await.unwrap().replayed);
    assert!(client.settle("r2").release_with("another reason", false).await.unwrap().replayed);
    client.take("r2", 5).send().await.refused(Reason::AlreadyReleased);
    assert_eq!(client.state("r2").await, v1::ReservationState::Released);
    assert_eq!(client.stands("cap").await, (5, 0, 5));
}

async fn b67_unknown_and_foreign_ids_look_alike(world: &mut World) {
    let client = world.cap(10).await;
    let other = client.clone().within("other tenant");
    let cap = limit("cap", "units").per(&["user"]).max(10);
    other.apply(Rules::of_units([cap])).await.unwrap();
    other.take("theirs", 5).send().await.unwrap();
    let unknown = |client: &Client, id: &'static str| {
        let client = client.clone();
        async move {
            let commit = client.commit(id).await.refused(Reason::ReservationNotFound);
            let release = client.release(id).await.refused(Reason::ReservationNotFound);
            let get = client.reservation(id).await.refused(Reason::ReservationNotFound);
            assert_eq!(commit.message, release.message);
            assert_eq!(commit.message, get.message);
            (commit.message.replace(id, "ID"), commit.code)
        }
    };
    let invented = unknown(&client, "nobody's").await;
    assert_eq!(unknown(&client, "theirs").await, invented);
    // A namespace that has no policy has no reservations either.
    assert_eq!(unknown(&client.clone().within("nowhere"), "theirs").await, invented);
    assert_eq!(other.stands("cap").await, (0, 5, 5));
    other.commit("theirs").await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 0, 10));
}

async fn b67_release_before_reserve(world: &mut World) {
    let client = world.cap(10).await;
    client.release("late").await.refused(Reason::ReservationNotFound);
    let left = client.settle("late").release_with("cancelled", true).await.unwrap();
    let reservation = left.reservation.unwrap();
    assert_eq!(reservation.state(), v1::ReservationState::Released);
    assert_eq!(reservation.history[0].reason, "cancelled");
    client.take("late", 5).send().await.refused(Reason::AlreadyReleased);
    client.take("late", 5).at_once().send().await.refused(Reason::AlreadyReleased);
    client.commit("late").await.refused(Reason::AlreadyReleased);
    assert!(client.settle("late").release_with("cancelled", true).await.unwrap().replayed);
    assert!(client.release("late").await.unwrap().replayed);
    assert_eq!(client.stands("cap").await, (0, 0, 10));
}

async fn b67_resources(world: &mut World) {
    let client = world.cap(10).await;
    for id in ["r1", "r2", "r3"] {
        client.take(id, 2).send().await.unwrap();
    }
    let with = |id: &str, names: &[&str]| client.settle(id).resources(names).commit();
    with("r1", &["post/1", "post/2"]).await.unwrap();
    let bound = with("r2", &["post/3", "post/2"]).await.refused(Reason::ResourceAlreadyBound);
    assert_eq!(bound.metadata["resource"], "post/2");
    // Nothing of the refused commit took effect: neither use nor binding.
    assert_eq!(client.state("r2").await, v1::ReservationState::Held);
    assert_eq!(client.stands("cap").await, (2, 4, 4));
    with("r3", &["post/3"]).await.unwrap();
    with("r2", &["post/4", "post/4"]).await.invalid(&["resources[1]"]);
    assert!(with("r1", &["post/2", "post/1"]).await.unwrap().replayed, "in any order");
    with("r1", &["post/1"]).await.refused(Reason::AlreadyCommitted);
    let request = v1::GetReservationRequest {
        namespace: client.namespace.clone(),
        resource: "post/2".to_owned(),
        ..v1::GetReservationRequest::default()
    };
    let found = client.quota.clone().get_reservation(request).await.unwrap().into_inner();
    assert_eq!(found.reservation.unwrap().reservation_id, "r1");
}

async fn b67_resources_bound_at_once(world: &mut World) {
    let client = world.cap(10).await;
    let at_once = |id: &str, resource: &str| {
        let mut call = client.take(id, 2).at_once();
        call.request.resources = vec![resource.to_owned()];
        call.send()
    };
    at_once("r1", "post/1").await.unwrap();
    at_once("r2", "post/1").await.refused(Reason::ResourceAlreadyBound);
    assert_eq!(client.stands("cap").await, (2, 0, 8));
    client.reservation("r2").await.refused(Reason::ReservationNotFound);
    assert!(at_once("r1", "post/1").await.unwrap().replayed);
    at_once("r2", "post/2").await.unwrap();
}

/// Callers who have nothing to do with it are answered as ever.
async fn b67_a_refused_binding_holds_up_nobody(world: &mut World) {
    let client = world.cap(1000).await;
    let other = client.clone().within("other tenant");
    let cap = limit("cap", "units").per(&["user"]).max(1000);
    other.apply(Rules::of_units([cap])).await.unwrap();
    client.take("r1", 1).send().await.unwrap();
    client.take("r2", 1).send().await.unwrap();
    client.settle("r1").resources(&["post/1"]).commit().await.unwrap();
    let bound = tokio::spawn(client.settle("r2").resources(&["post/1"]).commit());
    let innocent = |n: usize| {
        let client = if n.is_multiple_of(2) { client.clone() } else { other.clone() };
        async move {
            let begun = std::time::Instant::now();
            (client.take(&format!("innocent {n}"), 1).send().await, begun.elapsed())
        }
    };
    for (answer, took) in at_once((0..20).map(innocent)).await {
        answer.expect("room for it");
        assert!(took < std::time::Duration::from_secs(3), "{took:?}");
    }
    bound.await.unwrap().refused(Reason::ResourceAlreadyBound);
}

async fn b68_release(world: &mut World) {
    let client = world.cap(10).await;
    let rounds = world.rounds(500, 100);
    for n in 0..rounds {
        let id = format!("once-{n}");
        client.take(&id, 1).send().await.unwrap();
        client.release(&id).await.unwrap();
    }
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    for n in 0..rounds {
        let id = format!("twice-{n}");
        client.take(&id, 1).send().await.unwrap();
        assert!(!client.release(&id).await.unwrap().replayed);
        assert!(client.release(&id).await.unwrap().replayed);
    }
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    client.take("all", 10).send().await.unwrap();
    client.take("more", 1).send().await.denied(&["cap"]);
}

async fn b76_settlement_repeated(world: &mut World) {
    let client = world.cap(10).await;
    client.take("r1", 5).send().await.unwrap();
    let first = client.commit_some("r1", &[3]).await.unwrap();
    assert!(!first.replayed);
    for _ in 0..3 {
        let again = client.commit_some("r1", &[3]).await.unwrap();
        assert!(again.replayed);
        assert_eq!(again.reservation, first.reservation);
        assert_eq!(client.stands("cap").await, (3, 0, 7));
    }
    // Less, more, all, and more than was ever held: it is committed, and that
    // is what stands in the way.
    for amounts in [vec![2], vec![4], vec![], vec![5], vec![6]] {
        client.commit_some("r1", &amounts).await.refused(Reason::AlreadyCommitted);
    }
    assert_eq!(client.stands("cap").await, (3, 0, 7));
    // All by name and all by silence are the same.
    client.take("r2", 5).committed().await.unwrap();
    assert!(client.commit_some("r2", &[5]).await.unwrap().replayed);
    assert!(client.commit("r2").await.unwrap().replayed);
    // Admitted and committed in one step, then committed once more.
    client.take("r3", 2).at_once().send().await.unwrap();
    assert!(client.commit("r3").await.unwrap().replayed);
    client.release("r3").await.refused(Reason::AlreadyCommitted);
    assert_eq!(client.stands("cap").await, (10, 0, 0));
}
