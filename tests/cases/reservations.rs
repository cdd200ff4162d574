//! Listings of reservations.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, at_once, cases, dims, limit, v1};

cases! {
    every_store: [
        every_filter_finds_what_it_means,
        pages_stay_in_step_whatever_is_written,
        a_listing_is_asked_for_properly,
        what_was_taken_in_earlier_windows_and_definitions,
    ],
    manual_clock: [a_page_looks_at_so_many_and_leads_on],
}

type Asked = v1::ListReservationsRequest;

fn rules() -> Rules {
    Rules::new().metric("units", &["user"]).metric("calls", &["user", "app"]).limits([
        limit("cap", "units").per(&["user"]).max(1_000_000),
        limit("of all", "units").max(1_000_000),
        limit("minute", "units").per(&["user"]).max(1_000_000).fixed(Span::from_secs(60)),
        limit("calls", "calls").per(&["user", "app"]).max(1_000_000),
    ])
}

/// Reservations in every state, over a few moments.
async fn fill(world: &World, client: &Client, count: usize) -> Vec<v1::Reservation> {
    let mut chance = fastrand::Rng::with_seed(3);
    for n in 0..count {
        let id = format!("r/{:04}", chance.u32(0..10_000) / 100 * 1000 + u32::try_from(n).unwrap());
        let user = ["a", "a/b", "c"][chance.usize(0..3)];
        let app = ["x", "y"][chance.usize(0..2)];
        let mut call = client.reserve(&id).with("user", user);
        if chance.bool() {
            call = call.item("units", 1);
        }
        if chance.bool() || call.request.items.is_empty() {
            call = call.item_of("calls", 2, &[("app", app)]);
        }
        if chance.u8(0..6) == 0 {
            call = call.at_once();
        }
        let ttl = if chance.bool() { Span::from_secs(1) } else { Span::from_secs(600) };
        let reserved = call.clone().ttl(ttl).send().await.unwrap().reservation.unwrap();
        if reserved.state() == v1::ReservationState::Held {
            match chance.u8(0..4) {
                0 => drop(client.commit(&id).await.unwrap()),
                1 => drop(client.release(&id).await.unwrap()),
                _ => {}
            }
        }
        if n % 10 == 9 {
            world.pass(Span::from_millis(150)).await;
        }
    }
    client.settle("never/made").release_with("", true).await.unwrap();
    world.pass(Span::from_millis(1100)).await;
    let all = client.list(&Asked::default(), 17).await;
    assert_eq!(all.len(), count + 1);
    for reservation in &all {
        assert_eq!(&client.reservation(&reservation.reservation_id).await.unwrap(), reservation);
    }
    all
}

type Instant = Option<prost_types::Timestamp>;

/// What is asked for, said plainly.
fn means(asked: &Asked, reservation: &v1::Reservation) -> bool {
    let at = |time: &prost_types::Timestamp| (time.seconds, time.nanos);
    let within = |time: &Instant, from: &Instant, until: &Instant| {
        (from.is_none() && until.is_none())
            || time.as_ref().is_some_and(|time| {
                from.as_ref().is_none_or(|from| at(time) >= at(from))
                    && until.as_ref().is_none_or(|until| at(time) < at(until))
            })
    };
    let item = |item: &v1::ReservationItem| {
        (asked.metric.is_empty() || item.metric == asked.metric)
            && asked.dimensions.iter().all(|(k, v)| item.dimensions.get(k) == Some(v))
            // All limits here count all items of their metric.
            && match asked.limit.as_str() {
                "" => true,
                "calls" => item.metric == "calls",
                _ => item.metric == "units",
            }
    };
    let of_items =
        !asked.metric.is_empty() || !asked.limit.is_empty() || !asked.dimensions.is_empty();
    (asked.states.is_empty() || asked.states.contains(&reservation.state))
        && within(&reservation.create_time, &asked.created_after, &asked.created_before)
        && within(&reservation.expire_time, &asked.expiring_after, &asked.expiring_before)
        && (!of_items || reservation.items.iter().any(item))
}

async fn every_filter_finds_what_it_means(world: &mut World) {
    let client = world.rules(rules()).await;
    let all = fill(world, &client, world.rounds(160, 80)).await;
    let time = |r: &v1::Reservation| r.create_time.map(|time| (time.seconds, time.nanos));
    assert!(all.iter().rev().map(time).is_sorted(), "newest first");
    let mut chance = fastrand::Rng::with_seed(5);
    let mut found = 0;
    for _ in 0..120 {
        let mut asked = Asked::default();
        let mut some = |one_of: u8| chance.u8(0..one_of) == 0;
        let (state, metric, name, dimension, created, expiring) =
            (some(3), some(4), some(2), some(2), some(3), some(4));
        if state {
            asked.states = (1..=4).filter(|_| chance.bool()).collect();
        }
        if metric {
            ["units", "calls"][chance.usize(0..2)].clone_into(&mut asked.metric);
        }
        if name {
            ["cap", "of all", "minute", "calls"][chance.usize(0..4)].clone_into(&mut asked.limit);
        }
        if dimension {
            let user = ["a", "a/b", "c", "nobody"][chance.usize(0..4)];
            let app = ["x", "y"][chance.usize(0..2)];
            asked.dimensions = dims(&[("user", user), ("app", app)][..chance.usize(1..=2)]);
        }
        let mut between = |of: fn(&v1::Reservation) -> Instant| {
            let mut ends = [0, 1].map(|_| of(&all[chance.usize(0..all.len())]));
            ends.sort_by_key(|end| end.map(|time| (time.seconds, time.nanos)));
            let [from, until] = ends;
            let until = until.filter(|_| from != until);
            (from.filter(|_| chance.bool()), until.filter(|_| chance.bool()))
        };
        if created {
            (asked.created_after, asked.created_before) = between(|r| r.create_time);
        }
        if expiring {
            (asked.expiring_after, asked.expiring_before) = between(|r| r.expire_time);
        }
        let expected: Vec<_> = all.iter().filter(|r| means(&asked, r)).collect();
        found += expected.len();
        for size in [3, 1000] {
            let listed = client.list(&asked, size).await;
            assert_eq!(listed.iter().collect::<Vec<_>>(), expected, "{asked:?}");
        }
    }
    assert!(found > 300, "{found}");
}

async fn pages_stay_in_step_whatever_is_written(world: &mut World) {
    world.add_server().await;
    let client = world.rules(rules()).await;
    let take = |worker: usize| {
        let client = client.clone();
        async move {
            for n in 0..5 {
                client
                    .reserve(&format!("old-{worker}-{n}"))
                    .with("user", "a")
                    .item("units", 1)
                    .send()
                    .await
                    .unwrap();
            }
        }
    };
    at_once((0..20).map(take)).await;
    let before: BTreeSet<String> = client.ids(&Asked::default()).await.into_iter().collect();
    assert_eq!(before.len(), 100);
    let stop = Arc::new(AtomicBool::new(false));
    let work = |worker: usize| {
        let (client, stop) = (world.client(worker), Arc::clone(&stop));
        async move {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                let id = format!("new-{worker}-{n}");
                let call = client.reserve(&id).with("user", "a").item("units", 1);
                drop(call.send().await.unwrap());
                let old = format!("old-{}-{}", n % 20, worker);
                let _ = client.commit(&old).await;
            }
        }
    };
    let workers: Vec<_> = (0..5).map(|worker| tokio::spawn(work(worker))).collect();
    let of_key =
        Asked { limit: "cap".to_owned(), dimensions: dims(&[("user", "a")]), ..Asked::default() };
    for asked in [Asked::default(), of_key] {
        for size in [1, 7, 30] {
            let ids = client.list(&asked, size).await.into_iter().map(|r| r.reservation_id);
            let ids: Vec<String> = ids.collect();
            let distinct: BTreeSet<String> = ids.iter().cloned().collect();
            assert_eq!(distinct.len(), ids.len(), "none twice");
            assert!(distinct.is_superset(&before), "none is left out");
        }
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
}

async fn a_listing_is_asked_for_properly(world: &mut World) {
    let client = world.caller();
    let page = async |asked: &Asked, token: &str| client.page(asked, 1, token).await;
    page(&Asked::default(), "").await.refused(Reason::NamespaceNotFound);
    client.apply(rules()).await.unwrap();
    assert_eq!(page(&Asked::default(), "").await.unwrap(), (vec![], String::new()));
    let limit = |name: &str| Asked { limit: name.to_owned(), ..Asked::default() };
    let missing = page(&limit("Cap"), "").await.refused(Reason::LimitNotFound);
    assert_eq!(missing.metadata["limit"], "Cap");
    let metric = Asked { metric: "unit".to_owned(), ..Asked::default() };
    page(&metric, "").await.refused(Reason::MetricNotFound);
    let time = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let asked = Asked {
        states: vec![2, 0, 9],
        dimensions: dims(&[("user", "")]),
        created_after: time(5),
        created_before: time(5),
        expiring_after: time(6),
        expiring_before: time(i64::MAX),
        limit: "x\0".to_owned(),
        ..Asked::default()
    };
    let wrong = client.page(&asked, -1, "x").await;
    let fields = [
        "states[1]",
        "states[2]",
        "dimensions[user]",
        "created_before",
        "expiring_before",
        "limit",
        "page_size",
        "page_token",
    ];
    wrong.invalid(&fields);
    let ends = Asked { expiring_after: time(6), expiring_before: time(5), ..Asked::default() };
    page(&ends, "").await.invalid(&["expiring_before"]);
    for id in ["1", "2", "3"] {
        client.take(id, 1).send().await.unwrap();
    }
    let (_, token) = page(&limit("cap"), "").await.unwrap();
    assert!(!token.is_empty());
    page(&limit("cap"), &token).await.unwrap();
    // Another request, another listing.
    page(&limit("minute"), &token).await.invalid(&["page_token"]);
    let states = Asked { states: vec![1, 2], ..limit("cap") };
    page(&states, &token).await.invalid(&["page_token"]);
    let (_, token) = page(&states, "").await.unwrap();
    page(&Asked { states: vec![2, 1, 2], ..limit("cap") }, &token).await.unwrap();
}

async fn what_was_taken_in_earlier_windows_and_definitions(world: &mut World) {
    let window =
        |seconds| limit("w", "units").per(&["user"]).max(9).fixed(Span::from_secs(seconds));
    let client = world.rules(Rules::of_units([window(1)])).await;
    let of_key =
        Asked { limit: "w".to_owned(), dimensions: dims(&[("user", "s")]), ..Asked::default() };
    client.take("one", 1).send().await.unwrap();
    world.pass(Span::from_millis(1001)).await;
    client.take("two", 1).send().await.unwrap();
    client.apply(Rules::of_units([window(3600)])).await.unwrap();
    world.pass(Span::from_millis(2)).await;
    client.take("three", 1).send().await.unwrap();
    client.reserve("other").item("units", 1).with("user", "t").send().await.unwrap();
    assert_eq!(client.ids(&of_key).await, ["three", "two", "one"]);
    let all = Asked { limit: "w".to_owned(), ..Asked::default() };
    assert_eq!(client.ids(&all).await.len(), 4);
}

/// More than a page looks at lie before what is meant.
async fn a_page_looks_at_so_many_and_leads_on(world: &mut World) {
    let client = world.rules(rules()).await;
    client.reserve("needle").with("user", "n").item("units", 1).send().await.unwrap();
    world.pass(Span::from_secs(1)).await;
    let take = |worker: usize| {
        let client = client.clone();
        async move {
            for n in 0..52 {
                let id = format!("{worker}-{n}");
                client.reserve(&id).with("user", "a").item("units", 1).send().await.unwrap();
            }
        }
    };
    at_once((0..100).map(take)).await;
    let asked = Asked { dimensions: dims(&[("user", "n")]), ..Asked::default() };
    let (page, token) = client.page(&asked, 0, "").await.unwrap();
    assert_eq!(page.len(), 0);
    assert!(!token.is_empty());
    let (page, token) = client.page(&asked, 0, &token).await.unwrap();
    assert_eq!((page.len(), token.as_str()), (1, ""));
    // By its key it is found at once.
    let (page, _) = client.page(&Asked { limit: "cap".to_owned(), ..asked }, 0, "").await.unwrap();
    assert_eq!(page[0].reservation_id, "needle");
}
