//! Corrections by hand: booked once, beyond the limit if need be, never below
//! nothing.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Rules, World, at_once, cases, limit, v1};

cases! {
    every_store: [
        b40_opening_usage,
        b40_the_same_correction_again,
        b40_never_below_nothing,
        b40_what_cannot_be_corrected,
        b64_a_refund_of_what_was_taken_away,
    ],
    manual_clock: [b40_in_a_rolling_window, b40_in_the_window_that_is_open],
}

const S: [(&str, &str); 1] = [("user", "s")];

async fn b40_opening_usage(world: &mut World) {
    let client = world.cap(10).await;
    client.take("r", 1).send().await.unwrap();
    let adjusted = client.adjust("import", "cap", &S, 12).await.unwrap();
    assert!(!adjusted.replayed);
    let status = adjusted.limit.unwrap();
    assert_eq!((status.used, status.held, status.available), (12, 1, Some(0)));
    client.take("more", 1).send().await.denied(&["cap"]);
    client.adjust("less", "cap", &S, -4).await.unwrap();
    assert_eq!(client.stands("cap").await, (8, 1, 1));
    client.commit("r").await.unwrap();
    assert_eq!(client.stands("cap").await, (9, 0, 1));
    // It can be looked up, and says what it is.
    let booked = client.reservation("less").await.unwrap();
    assert!(booked.adjustment && booked.state() == v1::ReservationState::Committed);
    assert_eq!((booked.items[0].committed_amount, booked.charges[0].amount), (-4, -4));
    let [step] = booked.history.as_slice() else { panic!("{booked:?}") };
    assert_eq!((&*step.event, &*step.reason, step.amounts[0]), ("adjusted", "a case", -4));
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b40_the_same_correction_again(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100).await;
    client.take("taken", 1).committed().await.unwrap();
    let adjust = |n: usize| {
        let client = world.client(n);
        async move { client.adjust("once", "cap", &S, 5).await }
    };
    let answers = at_once((0..20).map(adjust)).await;
    assert_eq!(answers.iter().filter(|a| !a.as_ref().unwrap().replayed).count(), 1);
    assert_eq!(client.stands("cap").await, (6, 0, 94));
    let other = client.adjust("once", "cap", &S, 6).await.refused(Reason::ReservationIdReused);
    assert_eq!(other.metadata["differs"], "delta");
    let key = client.adjust("once", "cap", &[("user", "t")], 5).await;
    assert_eq!(key.refused(Reason::ReservationIdReused).metadata["differs"], "key");
    // The ids of reservations are its own, too.
    let taken = client.adjust("taken", "cap", &S, 1).await.refused(Reason::ReservationIdReused);
    assert_eq!(taken.metadata["differs"], "purpose");
    let taken = client.take("once", 5).send().await.refused(Reason::ReservationIdReused);
    assert_eq!(taken.metadata["differs"], "purpose");
    client.release("once").await.refused(Reason::AlreadyCommitted);
    assert_eq!(client.stands("cap").await, (6, 0, 94));
    // What was added by hand can be refunded like any other use.
    client.refund("once", "undo").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}

async fn b40_never_below_nothing(world: &mut World) {
    let client = world.cap(10).await;
    client.take("c", 3).committed().await.unwrap();
    client.take("h", 2).send().await.unwrap();
    let below = client.adjust("a", "cap", &S, -4).await.invalid(&["delta"]);
    assert!(below.message.contains("only 3 are used"), "{}", below.message);
    client.adjust("a", "cap", &S, i64::MIN).await.invalid(&["delta"]);
    client.adjust("a", "cap", &S, i64::MAX).await.invalid(&["delta"]);
    client.adjust("a", "cap", &S, 0).await.invalid(&["delta"]);
    assert_eq!(client.stands("cap").await, (3, 2, 5));
    client.adjust("a", "cap", &S, -3).await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 2, 8));
    client.adjust("b", "cap", &[("user", "nobody")], -1).await.invalid(&["delta"]);
}

async fn b40_what_cannot_be_corrected(world: &mut World) {
    let client = world.cap(10).await;
    client.take("c", 1).committed().await.unwrap();
    let unknown = client.adjust("a", "other", &S, 1).await.refused(Reason::LimitNotFound);
    assert_eq!(unknown.metadata["limit"], "other");
    client.adjust("a", "cap", &[], 1).await.invalid(&["key"]);
    client.adjust("a", "cap", &[("user", "s"), ("item", "x")], 1).await.invalid(&["key"]);
    let lacks = client.adjust("a", "cap", &[("item", "x")], 1).await.invalid(&["key"]);
    assert!(lacks.message.contains("'user'"), "{}", lacks.message);
    client.adjust("", "", &[("user", "")], 0).await.invalid(&[
        "limit",
        "key[user]",
        "delta",
        "adjustment_id",
    ]);
    let nowhere = client.clone().within("nowhere");
    nowhere.adjust("a", "cap", &S, 1).await.refused(Reason::NamespaceNotFound);
    assert_eq!(client.stands("cap").await, (1, 0, 9));
}

/// An operator took from the counter what a reservation still has: its refund
/// frees no more than is there.
async fn b64_a_refund_of_what_was_taken_away(world: &mut World) {
    let client = world.cap(10).await;
    client.take("c", 3).committed().await.unwrap();
    client.take("d", 1).committed().await.unwrap();
    client.adjust("away", "cap", &S, -2).await.unwrap();
    assert_eq!(client.stands("cap").await, (2, 0, 8));
    client.refund("c", "all").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    assert!(client.audit().await.unwrap().is_empty());
    client.take("e", 10).committed().await.unwrap();
    client.refund("d", "all").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (9, 0, 1));
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b40_in_a_rolling_window(world: &mut World) {
    let rolling = limit("rolling", "units").per(&["user"]).max(10).rolling(Span::from_secs(60), 60);
    let client = world.rules(Rules::of_units([rolling])).await;
    client.take("early", 3).committed().await.unwrap();
    world.pass(Span::from_secs(30)).await;
    client.take("late", 4).committed().await.unwrap();
    client.adjust("less", "rolling", &S, -5).await.unwrap();
    assert_eq!(client.stands("rolling").await, (2, 0, 8), "what would go first goes first");
    assert!(client.audit().await.unwrap().is_empty());
    world.pass(Span::from_secs(31)).await;
    assert_eq!(client.stands("rolling").await, (2, 0, 8));
    client.refund("late", "part").amounts(&[1]).send().await.unwrap();
    client.refund("early", "all").send().await.unwrap();
    assert_eq!(client.stands("rolling").await, (1, 0, 9));
    client.refund("late", "rest").send().await.unwrap();
    assert_eq!(client.stands("rolling").await, (0, 0, 10));
    assert!(client.audit().await.unwrap().is_empty());
    client.adjust("more", "rolling", &S, 10).await.unwrap();
    client.take("full", 1).send().await.denied(&["rolling"]);
    world.pass(Span::from_secs(61)).await;
    assert_eq!(client.stands("rolling").await, (0, 0, 10));
}

async fn b40_in_the_window_that_is_open(world: &mut World) {
    let minute = limit("minute", "units").per(&["user"]).max(5).fixed(Span::from_secs(60));
    let client = world.rules(Rules::of_units([minute])).await;
    client.adjust("a", "minute", &S, 5).await.unwrap();
    client.take("full", 1).send().await.denied(&["minute"]);
    world.pass(Span::from_secs(60)).await;
    assert_eq!(client.stands("minute").await, (0, 0, 5));
    client.adjust("b", "minute", &S, -1).await.invalid(&["delta"]);
    // The same call later is still the one that was made then.
    assert!(client.adjust("a", "minute", &S, 5).await.unwrap().replayed);
    assert_eq!(client.stands("minute").await, (0, 0, 5));
}
