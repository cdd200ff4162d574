//! Audit finds what a hand has broken, and nothing else; Repair mends just that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quota_authority::api::Reason;
use quota_authority::domain::counter::Used;
use quota_authority::domain::reservation::Reservation;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, at_once, cases, limit, v1};

cases! {
    every_store: [
        b40_a_counter_changed_by_hand,
        b40_used_and_held,
        b40_a_reservation_removed_by_hand,
        b40_a_refund_counted_twice,
        b40_repaired_under_load,
        b40_nothing_to_find_under_load,
        b40_what_to_recount,
    ],
    manual_clock: [b40_a_rolling_window, b40_what_retention_has_begun_to_remove],
}

/// Kind, stored and expected of what was found.
fn told(found: &[v1::Finding]) -> Vec<(&str, i64, i64)> {
    found.iter().map(|f| (f.kind.as_str(), f.stored, f.expected)).collect()
}

async fn b40_a_counter_changed_by_hand(world: &mut World) {
    let project = limit("project", "units").per(&["project"]).max(100);
    let rules = Rules::new().metric("units", &["user", "project"]).limits([project]);
    let client = world.rules(rules).await;
    let take = |id: &str, user: &str, amount| {
        client.reserve(id).item("units", amount).with("project", "p").with("user", user)
    };
    take("c1", "u1", 10).committed().await.unwrap();
    take("c2", "u2", 20).committed().await.unwrap();
    take("h", "u1", 5).send().await.unwrap();
    assert!(client.audit().await.unwrap().is_empty());
    world.tamper("project", |counter| counter.used = Used::Total(37)).await;
    let usage = async || {
        let limits = client.usage("units", &[("project", "p"), ("user", "u1")]).await.unwrap();
        (limits[0].used, limits[0].held)
    };
    // An audit changes nothing.
    for _ in 0..2 {
        let found = client.audit().await.unwrap();
        assert_eq!(told(&found), [("used", 37, 30)]);
        let counter = found[0].counter.as_ref().unwrap();
        assert_eq!((&*counter.limit, counter.used, counter.held), ("project", 37, 5));
        assert_eq!(
            (&*counter.key["project"], counter.bound),
            ("p", Some(v1::limit_status::Bound::Max(100)))
        );
        assert_eq!(usage().await, (37, 5));
    }
    let mended = client.repair().await.unwrap();
    assert_eq!(told(&mended), [("used", 37, 30)]);
    assert_eq!(usage().await, (30, 5), "the live hold survives");
    assert!(client.repair().await.unwrap().is_empty());
    let events = client.events(&client.all_events()).await;
    let repairs: Vec<_> = events.iter().filter(|event| event.kind == "repaired").collect();
    let [repair] = repairs.as_slice() else { panic!("{events:#?}") };
    assert_eq!((&*repair.details["before"], &*repair.details["after"]), ("37", "30"));
    assert_eq!((&*repair.reason, &*repair.details["what"]), ("a case", "used"));
    assert!(!repair.principal.is_empty());
    assert_eq!(repair.limits[0].used, 30);
    client.commit("h").await.unwrap();
    assert_eq!(usage().await, (35, 0));
}

async fn b40_used_and_held(world: &mut World) {
    let client = world.cap(100).await;
    client.take("c", 10).committed().await.unwrap();
    client.take("h1", 5).send().await.unwrap();
    client.take("h2", 7).ttl(Span::from_secs(3600)).send().await.unwrap();
    world
        .tamper("cap", |counter| {
            counter.used = Used::Total(8);
            let first = *counter.holds.keys().next().unwrap();
            counter.holds.insert(first, 6);
            counter.holds.insert(first.plus(Span::from_secs(5)), 1);
        })
        .await;
    assert_eq!(client.stands("cap").await, (8, 14, 78));
    assert_eq!(told(&client.audit().await.unwrap()), [("used", 8, 10), ("held", 14, 12)]);
    assert_eq!(client.repair().await.unwrap().len(), 2);
    assert_eq!(client.stands("cap").await, (10, 12, 78));
    // As many as there should be, but not when they should lapse.
    world
        .tamper("cap", |counter| {
            let (first, units) = counter.holds.pop_first().unwrap();
            counter.holds.insert(first.plus(Span::from_secs(5)), units);
        })
        .await;
    assert_eq!(told(&client.repair().await.unwrap()), [("held", 12, 12)]);
    for id in ["h1", "h2"] {
        client.release(id).await.unwrap();
    }
    assert_eq!(client.stands("cap").await, (10, 0, 90));
}

/// A Reserve that is not sent once more at the end, since it will be gone.
async fn reserve_unseen(client: &Client, id: &str, amount: i64, commit: bool) {
    let mut call = client.take(id, amount);
    call.request.commit = commit;
    client.quota.clone().reserve(call.request).await.unwrap();
}

async fn b40_a_reservation_removed_by_hand(world: &mut World) {
    let client = world.cap(100).await;
    reserve_unseen(&client, "used", 4, true).await;
    reserve_unseen(&client, "held", 3, false).await;
    for id in ["used", "held"] {
        world.tamper_with(&client, id, |_| None).await;
    }
    let orphans = [("orphan charge", 4, 0), ("orphan charge", 3, 0)];
    assert_eq!(told(&client.audit().await.unwrap()), orphans);
    assert_eq!(told(&client.repair().await.unwrap()), orphans);
    assert_eq!(client.stands("cap").await, (0, 0, 100));
    // One of many.
    client.take("kept", 1).committed().await.unwrap();
    reserve_unseen(&client, "used", 4, true).await;
    world.tamper_with(&client, "used", |_| None).await;
    assert_eq!(told(&client.repair().await.unwrap()), [("used", 5, 1)]);
    assert_eq!(client.stands("cap").await, (1, 0, 99));
}

async fn b40_a_refund_counted_twice(world: &mut World) {
    let client = world.cap(100).await;
    client.take("c", 10).committed().await.unwrap();
    client.refund("c", "f").amounts(&[4]).send().await.unwrap();
    // As if two of them had both read the same history.
    world.tamper("cap", |counter| counter.used = Used::Total(2)).await;
    world
        .tamper_with(&client, "c", |reservation| {
            let mut reservation = Reservation::clone(reservation);
            reservation.history.extend(reservation.history.last().cloned());
            Some(reservation)
        })
        .await;
    assert_eq!(told(&client.audit().await.unwrap()), [("doubled refund", 2, 6)]);
    assert_eq!(told(&client.repair().await.unwrap()), [("doubled refund", 2, 6)]);
    assert_eq!(client.stands("cap").await, (6, 0, 94));
    assert_eq!(client.reservation("c").await.unwrap().items[0].refunded_amount, 4);
    client.refund("c", "rest").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 0, 100));
}

/// Callers who reserve and settle until they are told to stop.
fn load(world: &World, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    let caller = |n: usize| {
        let (client, stop) = (world.client(n), Arc::clone(stop));
        async move {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let id = format!("{n}-{round}");
                client.take(&id, 2).send().await.unwrap();
                match round % 4 {
                    0 => drop(client.release(&id).await.unwrap()),
                    1 => drop(client.commit_some(&id, &[1]).await.unwrap()),
                    2 => drop(client.extend(&id, Span::from_secs(600)).await.unwrap()),
                    _ => {
                        client.commit(&id).await.unwrap();
                        client.refund(&id, "back").send().await.unwrap();
                    }
                }
                round += 1;
            }
        }
    };
    (0..12).map(|n| tokio::spawn(caller(n))).collect()
}

async fn b40_nothing_to_find_under_load(world: &mut World) {
    world.add_server().await;
    let client = world.cap(1_000_000).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = load(world, &stop);
    for n in 0..world.rounds(100, 15) {
        let found = world.client(n).audit().await.unwrap();
        assert!(found.is_empty(), "{found:#?}");
    }
    stop.store(true, Ordering::Relaxed);
    at_once(callers.into_iter().map(|caller| async { caller.await.unwrap() })).await;
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b40_repaired_under_load(world: &mut World) {
    world.add_server().await;
    let client = world.cap(1_000_000).await;
    // Of what was used before, so that nobody at work meets what is wrong.
    client.adjust("opening", "cap", &[("user", "s")], 1000).await.unwrap();
    world.tamper("cap", |counter| counter.used = Used::Total(1300)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = load(world, &stop);
    let found = client.repair().await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].stored - found[0].expected, 300);
    assert!(client.audit().await.unwrap().is_empty());
    stop.store(true, Ordering::Relaxed);
    at_once(callers.into_iter().map(|caller| async { caller.await.unwrap() })).await;
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b40_what_to_recount(world: &mut World) {
    let limits = [
        limit("one", "units").per(&["user"]).max(10),
        limit("one/2", "units").per(&["user"]).max(10),
        limit("on", "units").per(&["user"]).unlimited(),
    ];
    let client = world.rules(Rules::of_units(limits)).await;
    client.take("c", 2).committed().await.unwrap();
    for limit in ["one", "one/2", "on"] {
        world.tamper(limit, |counter| counter.used = Used::Total(3)).await;
    }
    assert_eq!(client.audit().await.unwrap().len(), 3);
    for limit in ["one", "one/2", "on"] {
        let found = client.audit_of(limit).await.unwrap();
        let names: Vec<_> = found.iter().map(|f| &*f.counter.as_ref().unwrap().limit).collect();
        assert_eq!(names, [limit]);
    }
    client.audit_of("other").await.refused(Reason::LimitNotFound);
    client.clone().within("nowhere").audit().await.refused(Reason::NamespaceNotFound);
    client.clone().within("").repair().await.invalid(&["namespace"]);
    // Those of others are left alone.
    let other = client.clone().within("other");
    let one = limit("one", "units").per(&["user"]).max(10);
    other.apply(Rules::of_units([one])).await.unwrap();
    assert!(other.repair().await.unwrap().is_empty());
    assert_eq!(client.repair().await.unwrap().len(), 3);
    assert_eq!(client.stands("one").await, (2, 0, 8));
}

async fn b40_a_rolling_window(world: &mut World) {
    let rolling = limit("rolling", "units").per(&["user"]).max(10).rolling(Span::from_secs(60), 60);
    let client = world.rules(Rules::of_units([rolling])).await;
    client.take("early", 3).committed().await.unwrap();
    world.pass(Span::from_secs(30)).await;
    client.take("late", 4).committed().await.unwrap();
    world
        .tamper("rolling", |counter| {
            let Used::Recent(buckets) = &mut counter.used else { panic!("{counter:?}") };
            buckets.pop_first();
            buckets.last_entry().unwrap().get_mut().units = 9;
        })
        .await;
    assert_eq!(told(&client.repair().await.unwrap()), [("used", 9, 7)]);
    assert_eq!(client.stands("rolling").await, (7, 0, 3));
    world.pass(Span::from_secs(31)).await;
    assert_eq!(client.stands("rolling").await, (4, 0, 6));
    assert!(client.audit().await.unwrap().is_empty());
    // The last of a bucket was refunded: the others go when it would have gone.
    world.pass(Span::from_secs(60)).await;
    assert!(client.audit().await.unwrap().is_empty());
}

async fn b40_what_retention_has_begun_to_remove(world: &mut World) {
    let minute = limit("minute", "units").per(&["user"]).max(5).fixed(Span::from_secs(60));
    let client = world.rules(Rules::of_units([minute])).await;
    client.take("old", 2).committed().await.unwrap();
    world.tamper("minute", |counter| counter.used = Used::Total(3)).await;
    assert_eq!(client.audit().await.unwrap().len(), 1);
    world.pass(Span::from_days(31)).await;
    client.take("new", 1).committed().await.unwrap();
    // What was charged to the old one may be gone: what is left says nothing.
    assert!(client.audit().await.unwrap().is_empty());
    world.tamper("minute", |counter| counter.used = Used::Total(2)).await;
    assert!(client.audit().await.unwrap().is_empty());
}
