//! What is committed against what exists.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, cases, limit, v1};

cases! {
    every_store: [
        b68_leaked_and_missing,
        b68_refunded_and_booked,
        b68_several_resources_of_one_reservation,
        b68_only_one_counter,
        b68_what_cannot_be_compared,
    ],
    manual_clock: [b68_what_was_committed_since],
}

fn first() -> v1::ReconcileRequest {
    v1::ReconcileRequest { limit: "cap".to_owned(), ..v1::ReconcileRequest::default() }
}

/// The resources on one side only: leaked, missing.
fn sides(found: &[v1::ReconcileResponse]) -> (Vec<&str>, Vec<&str>) {
    let of = |side: v1::Difference| {
        let on = found.iter().filter(move |one| one.difference() == side);
        let mut names: Vec<&str> = on.map(|one| one.resource.as_str()).collect();
        names.sort_unstable();
        names
    };
    (of(v1::Difference::Leaked), of(v1::Difference::Missing))
}

/// Commits one unit for that resource.
async fn create(client: &Client, resource: &str) {
    let id = format!("of {resource}");
    client.take(&id, 1).send().await.unwrap();
    client.settle(&id).resources(&[resource]).commit().await.unwrap();
}

async fn b68_leaked_and_missing(world: &mut World) {
    let client = world.cap(100).await;
    for resource in ["a", "b", "c", "d"] {
        create(&client, resource).await;
    }
    client.refund("of d", "deleted").send().await.unwrap();
    // Held, released, without a name: nothing to compare.
    client.take("held", 1).send().await.unwrap();
    client.take("unnamed", 1).committed().await.unwrap();
    let found = client.reconcile(first(), &["x", "a", "d", "c", "a"]).await.unwrap();
    assert_eq!(sides(&found), (vec!["b"], vec!["d", "x"]));
    assert!(found.iter().all(|one| !one.mended));
    let leaked = found.iter().find(|one| one.resource == "b").unwrap();
    assert_eq!(leaked.reservation_id, "of b");
    assert_eq!(client.stands("cap").await, (4, 1, 95), "nothing was changed");
    assert_eq!(
        sides(&client.reconcile(first(), &["a", "b", "c"]).await.unwrap()),
        (vec![], vec![])
    );
    let found = client.reconcile(first(), &[]).await.unwrap();
    assert_eq!(sides(&found), (vec!["a", "b", "c"], vec![]));
}

async fn b68_refunded_and_booked(world: &mut World) {
    let client = world.cap(100).await;
    for resource in ["a", "b", "c"] {
        create(&client, resource).await;
    }
    client.take("planned", 1).send().await.unwrap();
    let mut planned = client.take("about to be", 1);
    planned.request.resources = vec!["p".to_owned()];
    planned.send().await.unwrap();
    let asked = v1::ReconcileRequest {
        refund_leaked: true,
        book_missing: true,
        reason: "the nightly job".to_owned(),
        key: crate::world::dims(&[("user", "s")]),
        ..first()
    };
    let found = client.reconcile(asked.clone(), &["a", "x", "p"]).await.unwrap();
    // What somebody is about to commit is not booked beside him.
    assert_eq!(sides(&found), (vec!["b", "c"], vec!["x"]));
    assert!(found.iter().all(|one| one.mended && !one.reservation_id.is_empty()));
    assert_eq!(client.stands("cap").await, (2, 2, 96));
    let booked = client.owner_of("x").await.unwrap();
    assert!(booked.adjustment);
    assert_eq!(booked.history[0].reason, "the nightly job");
    let refunded = client.reservation("of b").await.unwrap();
    assert_eq!(refunded.history.last().unwrap().reason, "the nightly job");
    let again = client.reconcile(asked, &["a", "x", "p"]).await.unwrap();
    assert_eq!(sides(&again), (vec![], vec![]));
    client.commit("about to be").await.unwrap();
    assert_eq!(client.stands("cap").await, (3, 1, 96));
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b68_several_resources_of_one_reservation(world: &mut World) {
    let client = world.cap(100).await;
    client.take("both", 2).send().await.unwrap();
    client.settle("both").resources(&["a", "b"]).commit().await.unwrap();
    let asked = v1::ReconcileRequest { refund_leaked: true, ..first() };
    let found = client.reconcile(asked.clone(), &["a"]).await.unwrap();
    assert_eq!(sides(&found), (vec!["b"], vec![]));
    assert!(!found[0].mended, "which units are whose nobody knows");
    assert_eq!(client.stands("cap").await, (2, 0, 98));
    let found = client.reconcile(asked, &[]).await.unwrap();
    assert_eq!(sides(&found), (vec!["a", "b"], vec![]));
    assert!(found.iter().all(|one| one.mended));
    assert_eq!(client.stands("cap").await, (0, 0, 100));
}

async fn b68_only_one_counter(world: &mut World) {
    let limits = [
        limit("cap", "units").per(&["user"]).max(10),
        limit("other", "other").per(&["user"]).max(10),
    ];
    let rules = Rules::of_units(limits).metric("other", &["user"]);
    let client = world.rules(rules).await;
    for (id, metric, user) in [("a", "units", "s"), ("b", "units", "t"), ("c", "other", "s")] {
        client.reserve(id).item(metric, 1).with("user", user).send().await.unwrap();
        client.settle(id).resources(&[id]).commit().await.unwrap();
    }
    assert_eq!(sides(&client.reconcile(first(), &[]).await.unwrap()), (vec!["a", "b"], vec![]));
    let of_s = v1::ReconcileRequest { key: crate::world::dims(&[("user", "s")]), ..first() };
    let found = client.reconcile(of_s.clone(), &[]).await.unwrap();
    assert_eq!(sides(&found), (vec!["a"], vec![]));
    // Bound, but not here: neither a hole that could be booked.
    let booking = v1::ReconcileRequest { book_missing: true, ..of_s };
    let found = client.reconcile(booking, &["a", "b", "c"]).await.unwrap();
    assert_eq!(sides(&found), (vec![], vec!["b", "c"]));
    assert!(found.iter().all(|one| !one.mended));
    assert_eq!(client.owner_of("b").await.unwrap().reservation_id, "b");
}

async fn b68_what_cannot_be_compared(world: &mut World) {
    let client = world.cap(100).await;
    create(&client, "a").await;
    let ask = |request: v1::ReconcileRequest| client.reconcile(request, &[]);
    let other = v1::ReconcileRequest { limit: "other".to_owned(), ..first() };
    ask(other).await.refused(Reason::LimitNotFound);
    let key = v1::ReconcileRequest { key: crate::world::dims(&[("item", "s")]), ..first() };
    ask(key).await.invalid(&["key"]);
    ask(v1::ReconcileRequest { book_missing: true, ..first() }).await.invalid(&["key"]);
    ask(v1::ReconcileRequest::default()).await.invalid(&["limit"]);
    client.reconcile(first(), &["a", ""]).await.invalid(&["resources[1]"]);
    let nowhere = client.clone().within("nowhere");
    nowhere.reconcile(first(), &[]).await.refused(Reason::NamespaceNotFound);
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}

async fn b68_what_was_committed_since(world: &mut World) {
    let client = world.cap(100).await;
    create(&client, "before").await;
    world.pass(Span::from_secs(60)).await;
    let taken = world.now();
    world.pass(Span::from_secs(60)).await;
    create(&client, "since").await;
    let as_of = Some(quota_authority::api::times::timestamp(taken));
    let asked = v1::ReconcileRequest { refund_leaked: true, as_of, ..first() };
    let found = client.reconcile(asked, &[]).await.unwrap();
    assert_eq!(sides(&found), (vec!["before"], vec![]));
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}
