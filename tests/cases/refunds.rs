//! Refunds: once, never more than was committed, to the window it came from.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Rules, World, at_once, cases, limit, v1};

cases! {
    every_store: [
        b44_refunds_of_a_partial_commit,
        b64_two_refunds_at_once,
        b64_nothing_left,
        b64_the_same_refund_again,
        b64_item_by_item,
        b67_only_what_was_committed,
        b67_resources_are_free_again,
        b67_a_refund_by_resource_again,
        b67_bound_again_in_the_same_moment,
        b77_ids_of_their_own,
        b80_nested_limits,
        b83_amounts,
    ],
    manual_clock: [
        b01_the_window_it_came_from,
        b01_a_rolling_window,
        b01_after_the_policy_changed,
        b18_kept_while_it_is_used,
    ],
}

async fn b01_the_window_it_came_from(world: &mut World) {
    let minute = limit("minute", "units").per(&["user"]).max(5).fixed(Span::from_secs(60));
    let client = world.rules(Rules::of_units([minute])).await;
    client.take("c1", 3).committed().await.unwrap();
    world.pass(Span::from_secs(61)).await;
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    let refunded = client.refund("c1", "back").amounts(&[3]).send().await.unwrap();
    assert_eq!(refunded.limits[0].used, 0);
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    let before = client.usage_at("units", &[("user", "s")], Some("2024-05-15T12:30:00Z")).await;
    assert_eq!(before.unwrap()[0].used, 0);
    for n in 0..5 {
        client.take(&format!("n{n}"), 1).committed().await.unwrap();
    }
    client.take("n5", 1).send().await.denied(&["minute"]);
}

async fn b01_a_rolling_window(world: &mut World) {
    let rolling = limit("rolling", "units").per(&["user"]).max(5).rolling(Span::from_secs(60), 60);
    let client = world.rules(Rules::of_units([rolling])).await;
    client.take("c1", 3).committed().await.unwrap();
    world.pass(Span::from_secs(30)).await;
    client.take("c2", 2).committed().await.unwrap();
    client.take("full", 1).send().await.denied(&["rolling"]);
    client.refund("c1", "one").amounts(&[1]).send().await.unwrap();
    assert_eq!(client.stands("rolling").await, (4, 0, 1));
    world.pass(Span::from_secs(31)).await;
    assert_eq!(client.stands("rolling").await, (2, 0, 3), "c1 has left the window");
    // What has left it frees nothing.
    client.refund("c1", "rest").send().await.unwrap();
    assert_eq!(client.stands("rolling").await, (2, 0, 3));
    client.refund("c2", "all").send().await.unwrap();
    assert_eq!(client.stands("rolling").await, (0, 0, 5));
}

async fn b01_after_the_policy_changed(world: &mut World) {
    let day = |max| limit("cap", "units").per(&["user"]).max(max).fixed(Span::from_days(1));
    let client = world.rules(Rules::of_units([day(5)])).await;
    client.take("c1", 4).committed().await.unwrap();
    world.rules(Rules::of_units([day(2)])).await;
    world.pass(Span::from_secs(2)).await;
    client.take("over", 1).send().await.denied(&["cap"]);
    // Whatever holds by now, it passes.
    client.refund("c1", "part").amounts(&[3]).send().await.unwrap();
    assert_eq!(client.stands("cap").await, (1, 0, 1));
    let other = limit("cap", "units").per(&["user"]).max(2);
    world.rules(Rules::of_units([other])).await;
    world.pass(Span::from_secs(2)).await;
    client.refund("c1", "rest").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 0, 2), "a counter of its own");
}

/// Who is used of a counter for ever is kept for ever; who is not, is not.
async fn b18_kept_while_it_is_used(world: &mut World) {
    let client = world.cap(10).await;
    client.take("c1", 2).committed().await.unwrap();
    let kept = async || world.records().await.0[0].purge_at;
    assert_eq!(kept().await, None);
    client.refund("c1", "part").amounts(&[1]).send().await.unwrap();
    assert_eq!(kept().await, None);
    world.pass(Span::from_days(100)).await;
    client.refund("c1", "rest").send().await.unwrap();
    let until = kept().await.expect("an end");
    assert!(until >= world.now().plus(Span::from_days(30)), "{until}");
    assert!(until <= world.now().plus(Span::from_days(31)), "{until}");
}

async fn b44_refunds_of_a_partial_commit(world: &mut World) {
    let client = world.cap(100).await;
    client.take("r1", 10).send().await.unwrap();
    client.commit_some("r1", &[7]).await.unwrap();
    let over = client.refund("r1", "over").amounts(&[8]).send().await;
    let refused = over.refused(Reason::RefundExceedsCommit);
    assert_eq!((&*refused.metadata["amount"], &*refused.metadata["left"]), ("8", "7"));
    client.refund("r1", "all").because("it was deleted").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 0, 100));
    let reservation = client.reservation("r1").await.unwrap();
    assert_eq!(reservation.state(), v1::ReservationState::Committed);
    let item = &reservation.items[0];
    let amounts = (item.reserved_amount, item.committed_amount, item.refunded_amount);
    assert_eq!(amounts, (10, 7, 7));
    assert_eq!(reservation.charges[0].amount, 0);
    let last = reservation.history.last().unwrap();
    assert_eq!(
        (&*last.event, &*last.refund_id, &*last.reason),
        ("refunded", "all", "it was deleted")
    );
    assert_eq!(last.amounts, [7]);
}

async fn b64_two_refunds_at_once(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100_000).await;
    let mut used = 0;
    for round in 0..world.rounds(200, 30) {
        let id = format!("c{round}");
        client.take(&id, 100).committed().await.unwrap();
        let refund = |n: usize| {
            let refund = world.client(n).refund(&id, &format!("refund-{n}"));
            refund.amounts(&[60]).send()
        };
        let answers = at_once((0..2).map(refund)).await;
        let (done, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!((done.len(), lost.len()), (1, 1));
        for lost in lost {
            lost.refused(Reason::RefundExceedsCommit);
        }
        used += 40;
        assert_eq!(client.stands("cap").await.0, used);
    }
}

async fn b64_nothing_left(world: &mut World) {
    let client = world.cap(100).await;
    client.take("c", 100).committed().await.unwrap();
    client.refund("c", "all").amounts(&[100]).send().await.unwrap();
    let more = client.refund("c", "more").amounts(&[1]).send().await;
    more.refused(Reason::RefundExceedsCommit);
    let rest = client.refund("c", "rest").send().await.refused(Reason::RefundExceedsCommit);
    assert!(rest.message.contains("nothing left"), "{}", rest.message);
    assert_eq!(client.stands("cap").await, (0, 0, 100));
}

async fn b64_the_same_refund_again(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100).await;
    client.take("c", 10).committed().await.unwrap();
    let refund = |n: usize| world.client(n).refund("c", "once").amounts(&[4]).send();
    let answers = at_once((0..20).map(refund)).await;
    let first = answers.into_iter().filter(|a| !a.as_ref().unwrap().replayed).count();
    assert_eq!(first, 1);
    assert_eq!(client.stands("cap").await, (6, 0, 94));
    let other = client.refund("c", "once").amounts(&[5]).send().await;
    let reused = other.refused(Reason::ReservationIdReused);
    assert_eq!((&*reused.metadata["refund_id"], &*reused.metadata["differs"]), ("once", "amounts"));
    // All that is left is another refund than the part that it was.
    client.refund("c", "once").send().await.refused(Reason::ReservationIdReused);
    let why = client.refund("c", "once").amounts(&[4]).because("another").send().await;
    assert!(why.unwrap().replayed);
    client.refund("c", "rest").send().await.unwrap();
    assert!(client.refund("c", "rest").send().await.unwrap().replayed);
    assert!(client.refund("c", "rest").amounts(&[6]).send().await.unwrap().replayed);
    assert!(client.refund("c", "once").amounts(&[4]).send().await.unwrap().replayed);
    assert_eq!(client.stands("cap").await, (0, 0, 100));
}

async fn b64_item_by_item(world: &mut World) {
    let client = world.cap(100).await;
    client.take("c", 5).item("units", 7).committed().await.unwrap();
    client.refund("c", "f1").amounts(&[0, 3]).send().await.unwrap();
    // As much as is left in all, but more of one item.
    let over = client.refund("c", "f2").amounts(&[6, 3]).send().await;
    assert_eq!(over.refused(Reason::RefundExceedsCommit).metadata["item"], "0");
    client.refund("c", "f2").amounts(&[1]).send().await.invalid(&["amounts"]);
    client.refund("c", "f2").amounts(&[5, 1]).send().await.unwrap();
    assert_eq!(client.stands("cap").await, (3, 0, 97));
    let items = client.reservation("c").await.unwrap().items;
    assert_eq!(items.iter().map(|item| item.refunded_amount).collect::<Vec<_>>(), [5, 4]);
    let rest = client.refund("c", "f3").send().await.unwrap().reservation.unwrap();
    assert_eq!(rest.history.last().unwrap().amounts, [0, 3]);
    assert_eq!(client.stands("cap").await, (0, 0, 100));
}

async fn b67_only_what_was_committed(world: &mut World) {
    let client = world.cap(10).await;
    client.take("held", 2).send().await.unwrap();
    let refused = client.refund("held", "f").send().await.refused(Reason::NotCommitted);
    assert_eq!(refused.metadata["state"], "held");
    client.take("released", 2).send().await.unwrap();
    client.release("released").await.unwrap();
    let refused = client.refund("released", "f").send().await.refused(Reason::NotCommitted);
    assert_eq!(refused.metadata["state"], "released");
    let unknown = client.refund("nobody's", "f").send().await;
    let unknown = unknown.refused(Reason::ReservationNotFound);
    let other = client.clone().within("nowhere").refund("nobody's", "f").send().await;
    assert_eq!(other.refused(Reason::ReservationNotFound).message, unknown.message);
    client.refund_of("nothing", "f").send().await.refused(Reason::ReservationNotFound);
    assert_eq!(client.stands("cap").await, (0, 2, 8));
}

async fn b67_resources_are_free_again(world: &mut World) {
    let client = world.cap(10).await;
    for id in ["first", "second"] {
        client.take(id, 2).send().await.unwrap();
    }
    client.settle("first").resources(&["post/1", "post/2"]).commit().await.unwrap();
    let bind = || client.settle("second").resources(&["post/2"]).commit();
    bind().await.refused(Reason::ResourceAlreadyBound);
    client.refund("first", "part").amounts(&[1]).send().await.unwrap();
    bind().await.refused(Reason::ResourceAlreadyBound);
    client.refund("first", "rest").send().await.unwrap();
    client.owner_of("post/1").await.refused(Reason::ReservationNotFound);
    bind().await.unwrap();
    assert_eq!(client.owner_of("post/2").await.unwrap().reservation_id, "second");
    // The first commit again is still what it was.
    let again = client.settle("first").resources(&["post/1", "post/2"]).commit().await;
    assert!(again.unwrap().replayed);
    assert_eq!(client.stands("cap").await, (2, 0, 8));
}

async fn b67_a_refund_by_resource_again(world: &mut World) {
    let client = world.cap(10).await;
    client.take("first", 2).send().await.unwrap();
    client.settle("first").resources(&["post/1"]).commit().await.unwrap();
    let part = || client.refund_of("post/1", "part").amounts(&[1]).send();
    let rest = || client.refund_of("post/1", "rest").send();
    assert_eq!(part().await.unwrap().reservation.unwrap().reservation_id, "first");
    rest().await.unwrap();
    // The resource is free, or another's: the answer got lost and the call comes
    // again.
    assert!(part().await.unwrap().replayed);
    assert!(rest().await.unwrap().replayed);
    client.take("second", 3).send().await.unwrap();
    client.settle("second").resources(&["post/1"]).commit().await.unwrap();
    let again = rest().await.unwrap();
    assert!(again.replayed && again.reservation.unwrap().reservation_id == "first");
    assert_eq!(client.stands("cap").await, (3, 0, 7));
    let gone = client.refund_of("post/1", "gone").send().await.unwrap().reservation.unwrap();
    assert_eq!(gone.reservation_id, "second");
    client.refund_of("post/1", "other").send().await.refused(Reason::ReservationNotFound);
}

async fn b67_bound_again_in_the_same_moment(world: &mut World) {
    let client = world.cap(1000).await;
    client.take("0", 1).send().await.unwrap();
    client.settle("0").resources(&["doc"]).commit().await.unwrap();
    for round in 1..world.rounds(100, 20) {
        let (before, id) = ((round - 1).to_string(), round.to_string());
        client.take(&id, 1).send().await.unwrap();
        // They may well meet in one batch, in either order.
        let bind = client.settle(&id).resources(&["doc"]);
        let (refunded, bound) =
            tokio::join!(client.refund(&before, "gone").send(), bind.clone().commit());
        refunded.unwrap();
        if let Err(refused) = bound {
            assert_eq!(refused.reason, Reason::ResourceAlreadyBound);
            bind.commit().await.unwrap();
        }
        assert_eq!(client.owner_of("doc").await.unwrap().reservation_id, id);
    }
    assert_eq!(client.stands("cap").await, (1, 0, 999));
}

async fn b77_ids_of_their_own(world: &mut World) {
    let client = world.cap(10).await;
    client.take("x", 3).committed().await.unwrap();
    client.take("y", 3).committed().await.unwrap();
    // A refund's id is its reservation's: neither a reservation's own id nor
    // that of another's refund.
    for id in ["x", "y"] {
        assert!(!client.refund(id, "x").amounts(&[1]).send().await.unwrap().replayed);
    }
    assert_eq!(client.stands("cap").await, (4, 0, 6));
    let refunded = client.refund("x", "x").amounts(&[1]).send().await.unwrap();
    assert!(refunded.replayed && refunded.reservation.unwrap().history.len() == 3);
}

async fn b80_nested_limits(world: &mut World) {
    let limits = [
        limit("tenant", "seats").per(&["tenant"]).max(10),
        limit("department", "seats").per(&["tenant", "department"]).max(8),
        limit("user", "seats").per(&["user"]).max(20),
    ];
    let metric = Rules::new().metric("seats", &["tenant", "department", "user"]);
    let client = world.rules(metric.limits(limits)).await;
    let take = |id: &str, department: &str, amount| {
        let call = client.reserve(id).item("seats", amount).with("tenant", "t");
        call.with("department", department).with("user", "u")
    };
    take("a", "d1", 8).committed().await.unwrap();
    take("b", "d2", 3).send().await.denied(&["tenant"]);
    take("c", "d2", 2).committed().await.unwrap();
    client.refund("a", "back").amounts(&[4]).send().await.unwrap();
    take("d", "d2", 4).committed().await.unwrap();
    let usage = |department: &'static str| {
        let client = client.clone();
        async move {
            let owner = [("tenant", "t"), ("department", department), ("user", "u")];
            client.usage("seats", &owner).await
        }
    };
    let used = |limits: Vec<v1::LimitStatus>| limits.iter().map(|l| l.used).collect::<Vec<_>>();
    assert_eq!(used(usage("d1").await.unwrap()), [10, 4, 10]);
    assert_eq!(used(usage("d2").await.unwrap()), [10, 6, 10]);
}

async fn b83_amounts(world: &mut World) {
    let client = world.cap(10).await;
    client.take("c", 3).committed().await.unwrap();
    let refund = |amounts: &[i64]| client.refund("c", "f").amounts(amounts).send();
    refund(&[-5]).await.invalid(&["amounts[0]"]);
    refund(&[i64::MIN]).await.invalid(&["amounts[0]"]);
    refund(&[0]).await.invalid(&["amounts"]);
    refund(&[i64::MAX]).await.refused(Reason::RefundExceedsCommit);
    client.refund("c", "").send().await.invalid(&["refund_id"]);
    client.refund("c", &"x".repeat(257)).send().await.invalid(&["refund_id"]);
    client.refund("c", "f").because("\n").send().await.invalid(&["reason"]);
    let mut both = client.refund("c", "f");
    "post/1".clone_into(&mut both.request.resource);
    both.send().await.invalid(&["resource"]);
    client.refund("", "f").send().await.invalid(&["reservation_id"]);
    assert_eq!(client.stands("cap").await, (3, 0, 7));
}
