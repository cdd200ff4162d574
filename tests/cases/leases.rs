//! Leases: renewed while they are held, and never brought back.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{
    Client, Denied, Reserve, Rules, World, at_once, cases, instant, limit, text, times, v1,
};

cases! {
    every_store: [
        b22_the_second_holder_renews,
        b23_release_and_renew_at_once,
        b23_nothing_to_renew,
        b49_renewed_after_a_restart,
        b70_several_in_one_call,
        b70_several_that_run_out,
        b74_renewing_changes_no_token,
    ],
    manual_clock: [
        b22_renewed_for_weeks,
        b50_a_lost_lease_says_so,
        b53_a_renewal_moves_its_own_slot,
        b73_never_shorter,
    ],
}

const MINUTE: Span = Span::from_secs(60);

/// A lock for each document.
async fn writers(world: &World) -> Client {
    let writer = limit("writer", "edit").per(&["doc"]).max(1);
    world.rules(Rules::new().metric("edit", &["doc"]).limits([writer])).await
}

fn acquire(client: &Client, id: &str, doc: &str, lease: Span) -> Reserve {
    client.reserve(id).item("edit", 1).with("doc", doc).ttl(lease)
}

async fn b22_the_second_holder_renews(world: &mut World) {
    let second = world.second(2);
    let client = writers(world).await;
    acquire(&client, "LA", "d", times(second, 2)).send().await.unwrap();
    world.pass(times(second, 3)).await;
    acquire(&client, "LB", "d", times(second, 60)).send().await.unwrap();
    client.extend("LA", MINUTE).await.refused(Reason::ReservationExpired);
    acquire(&client, "LC", "d", MINUTE).send().await.denied(&["writer"]);
    client.extend("LB", MINUTE).await.unwrap();
    assert_eq!(client.state("LB").await, v1::ReservationState::Held);
}

async fn b23_release_and_renew_at_once(world: &mut World) {
    world.add_server().await;
    writers(world).await;
    for round in 0..world.rounds(500, 60) {
        let (one, other) = (world.client(0), world.client(round % 2));
        let (id, doc) = (format!("L{round}"), format!("doc-{round}"));
        acquire(&one, &id, &doc, Span::from_secs(30)).send().await.unwrap();
        let (released, renewed) = tokio::join!(one.release(&id), other.extend(&id, MINUTE));
        released.expect("a release is never refused for a renewal");
        if let Err(refused) = renewed {
            assert_eq!(refused.reason, Reason::AlreadyReleased, "{refused:?}");
        }
        acquire(&other, &format!("next-{round}"), &doc, MINUTE).send().await.unwrap();
        assert_eq!(one.state(&id).await, v1::ReservationState::Released);
    }
}

async fn b23_nothing_to_renew(world: &mut World) {
    let client = writers(world).await;
    client.extend("invented", MINUTE).await.refused(Reason::ReservationNotFound);
    acquire(&client, "invented", "d", MINUTE).send().await.unwrap();
    client.release("invented").await.unwrap();
    client.extend("invented", MINUTE).await.refused(Reason::AlreadyReleased);
    acquire(&client, "next", "d", MINUTE).send().await.unwrap();
    client.commit("next").await.unwrap();
    client.extend("next", MINUTE).await.refused(Reason::AlreadyCommitted);
    client.refund("next", "undo").send().await.unwrap();
    client.extend("next", MINUTE).await.refused(Reason::AlreadyCommitted);
    for ttl in [Span::ZERO, Span::from_millis(999), Span::from_millis(86_400_001)] {
        client.extend("next", ttl).await.invalid(&["ttl"]);
    }
    client
        .clone()
        .within("nowhere")
        .extend("next", MINUTE)
        .await
        .refused(Reason::ReservationNotFound);
    client.extend("", MINUTE).await.invalid(&["reservation_id"]);
}

async fn b49_renewed_after_a_restart(world: &mut World) {
    let client = writers(world).await;
    let lease = acquire(&client, "L", "d", MINUTE).send().await.unwrap().reservation.unwrap();
    world.restart().await;
    let client = world.caller();
    acquire(&client, "B", "d", MINUTE).send().await.denied(&["writer"]);
    let renewed = client.extend("L", times(MINUTE, 2)).await.unwrap();
    assert_eq!(renewed.charges[0].fencing_token, lease.charges[0].fencing_token);
    assert!(text(renewed.expire_time.as_ref()) > text(lease.expire_time.as_ref()));
    client.release("L").await.unwrap();
    acquire(&client, "B", "d", MINUTE).send().await.unwrap();
}

/// One call that takes all of these documents.
fn acquire_all(client: &Client, id: &str, docs: &[&str], lease: Span) -> Reserve {
    let call = client.reserve(id).ttl(lease);
    docs.iter().fold(call, |call, doc| call.item_of("edit", 1, &[("doc", doc)]))
}

const ALL: [&str; 4] = ["A", "B", "C", "D"];

async fn b70_several_in_one_call(world: &mut World) {
    let client = writers(world).await;
    let all = acquire_all(&client, "all", &ALL, MINUTE).send().await.unwrap();
    assert_eq!(all.reservation.unwrap().charges.len(), 4);
    client.release("all").await.unwrap();
    let each = |n: usize| acquire(&client, &format!("one-{n}"), ALL[n], MINUTE).send();
    for granted in at_once((0..4).map(each)).await {
        granted.unwrap();
    }
    for n in [0, 1, 3] {
        client.release(&format!("one-{n}")).await.unwrap();
    }
    // C is held by another: none of the others is taken.
    let refused = acquire_all(&client, "none", &ALL, MINUTE).send().await.denied(&["writer"]);
    assert_eq!(refused.refusal.unwrap().limits[0].key["doc"], "C");
    for doc in ["A", "B", "D"] {
        acquire(&client, &format!("free-{doc}"), doc, MINUTE).send().await.unwrap();
    }
}

async fn b70_several_that_run_out(world: &mut World) {
    let second = world.second(2);
    let client = writers(world).await;
    acquire_all(&client, "all", &ALL, times(second, 2)).send().await.unwrap();
    client.extend("all", times(second, 4)).await.unwrap();
    world.pass(times(second, 5)).await;
    for doc in ALL {
        acquire(&client, &format!("free-{doc}"), doc, MINUTE).send().await.unwrap();
    }
    client.extend("all", MINUTE).await.refused(Reason::ReservationExpired);
}

async fn b74_renewing_changes_no_token(world: &mut World) {
    let client = writers(world).await;
    let lease = acquire(&client, "L", "d", MINUTE).send().await.unwrap().reservation.unwrap();
    let token = lease.charges[0].fencing_token;
    for seconds in [60, 120, 30, 240] {
        let renewed = client.extend("L", Span::from_secs(seconds)).await.unwrap();
        assert_eq!(renewed.charges[0].fencing_token, token);
        assert_eq!(renewed.charges[0].amount, 1);
    }
    client.release("L").await.unwrap();
    let next = acquire(&client, "N", "d", MINUTE).send().await.unwrap().reservation.unwrap();
    assert!(next.charges[0].fencing_token > token);
}

/// Longer than a settled reservation is kept: what is held is not removed, and
/// its history does not grow.
async fn b22_renewed_for_weeks(world: &mut World) {
    let client = writers(world).await;
    acquire(&client, "L", "d", Span::from_secs(86_400)).send().await.unwrap();
    for _ in 0..80 {
        world.pass(Span::from_secs(43_200)).await;
        client.extend("L", Span::from_secs(86_400)).await.unwrap();
    }
    let lease = client.reservation("L").await.unwrap();
    let [reserved, extended] = lease.history.as_slice() else { panic!("{lease:?}") };
    assert_eq!((&*reserved.event, &*extended.event), ("reserved", "extended"));
    assert_eq!((extended.times, extended.amounts.as_slice()), (80, &[1][..]));
    let (reservations, counters) = world.records().await;
    let kept = reservations[0].purge_at.unwrap();
    assert!(kept >= reservations[0].expire_time.plus(Span::from_days(30)), "{kept}");
    assert!(counters[0].purge_at(Span::from_days(30)).unwrap() >= kept);
    acquire(&client, "N", "d", MINUTE).send().await.denied(&["writer"]);
    client.release("L").await.unwrap();
    acquire(&client, "N", "d", MINUTE).send().await.unwrap();
}

async fn b50_a_lost_lease_says_so(world: &mut World) {
    let client = writers(world).await;
    let lease = acquire(&client, "L", "d", Span::from_secs(5)).send().await.unwrap();
    let expiry = text(lease.reservation.unwrap().expire_time.as_ref());
    world.set(&expiry).await;
    let lost = client.extend("L", MINUTE).await.refused(Reason::ReservationExpired);
    assert_eq!(lost.metadata["expire_time"], expiry);
    assert!(lost.retry.is_none(), "it does not help to wait");
}

async fn b53_a_renewal_moves_its_own_slot(world: &mut World) {
    let slots = limit("slots", "edit").per(&["doc"]).max(2);
    let client = world.rules(Rules::new().metric("edit", &["doc"]).limits([slots])).await;
    acquire(&client, "A", "d", Span::from_secs(30)).send().await.unwrap();
    acquire(&client, "B", "d", Span::from_secs(2)).send().await.unwrap();
    world.pass(Span::from_secs(1)).await;
    client.extend("B", Span::from_secs(10)).await.unwrap();
    world.pass(Span::from_secs(2)).await;
    acquire(&client, "C", "d", MINUTE).send().await.denied(&["slots"]);
    world.pass(Span::from_secs(9)).await;
    acquire(&client, "C", "d", MINUTE).send().await.unwrap();
    acquire(&client, "D", "d", MINUTE).send().await.denied(&["slots"]);
    world.pass(Span::from_secs(19)).await;
    acquire(&client, "D", "d", MINUTE).send().await.unwrap();
}

/// The end becomes the later of itself and now + ttl.
async fn b73_never_shorter(world: &mut World) {
    let client = writers(world).await;
    let lease = acquire(&client, "L", "d", MINUTE).send().await.unwrap().reservation.unwrap();
    let same = client.extend("L", Span::from_secs(1)).await.unwrap();
    assert_eq!(same.expire_time, lease.expire_time);
    assert_eq!(same.history.len(), 1, "nothing was changed");
    world.pass(Span::from_secs(30)).await;
    let later = client.extend("L", MINUTE).await.unwrap();
    let got = instant(&text(later.expire_time.as_ref()));
    let span = instant("2024-05-15T12:31:30Z")..=instant("2024-05-15T12:31:32Z");
    assert!(span.contains(&got), "{got}");
    let usage = client.usage("edit", &[("doc", "d")]).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held), (0, 1));
}
