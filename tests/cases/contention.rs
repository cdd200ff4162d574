//! Many callers, several servers, one counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::world::{Client, Denied, Rules, World, at_once, cases, limit};

cases! {
    every_store: [
        b04_contention_on_several_limits,
        b04_items_in_opposite_order_on_one_metric,
        b37_first_use,
        b38_last_slot_race,
        b38_last_slot_of_two_limits,
        b38_last_slot_by_weight,
    ],
}

/// Nobody may wait longer, even with every core busy.
const PATIENCE: Duration = Duration::from_secs(5);

async fn b04_contention_on_several_limits(world: &mut World) {
    world.add_server().await;
    let rules = Rules::new().metric("a", &["user"]).metric("b", &["user"]).limits([
        limit("A", "a").per(&["user"]).max(1_000_000),
        limit("B", "b").per(&["user"]).max(1_000_000),
    ]);
    let client = world.rules(rules).await;
    let (workers, calls) = (50, world.rounds(100, 12));
    let work = |worker: usize| {
        let client = world.client(worker / 2);
        let order = if worker.is_multiple_of(2) { ["a", "b"] } else { ["b", "a"] };
        async move {
            for n in 0..calls {
                let call = client.reserve(&format!("{worker}-{n}")).with("user", "s");
                let call = call.item(order[0], 1).item(order[1], 1);
                let begun = Instant::now();
                call.committed().await.expect("no conflict ever reaches a caller");
                let took = begun.elapsed();
                assert!(took < 2 * PATIENCE, "{took:?} for two calls");
            }
        }
    };
    at_once((0..workers).map(work)).await;
    for metric in ["a", "b"] {
        let usage = client.usage(metric, &[("user", "s")]).await.unwrap();
        let total = i64::try_from(workers * calls).unwrap();
        assert_eq!((usage[0].used, usage[0].held), (total, 0));
    }
}

/// Keys of one limit, met in opposite order.
async fn b04_items_in_opposite_order_on_one_metric(world: &mut World) {
    world.add_server().await;
    let cap = limit("cap", "units").per(&["user"]).max(1_000_000);
    let client = world.rules(Rules::of_units([cap])).await;
    let (workers, calls) = (32, world.rounds(20, 6));
    let work = |worker: usize| {
        let client = world.client(worker / 2);
        async move {
            for n in 0..calls {
                let mut users: Vec<String> = (0..6).map(|user| format!("u{user}")).collect();
                if worker % 2 == 1 {
                    users.reverse();
                }
                let call = client.reserve(&format!("{worker}-{n}"));
                let call = users
                    .iter()
                    .fold(call, |call, user| call.item_of("units", 1, &[("user", user)]));
                let begun = Instant::now();
                call.send().await.expect("no conflict ever reaches a caller");
                assert!(begun.elapsed() < PATIENCE);
            }
        }
    };
    at_once((0..workers).map(work)).await;
    for user in 0..6 {
        let user = format!("u{user}");
        let usage = client.usage("units", &[("user", &user)]).await.unwrap();
        assert_eq!(usage[0].held, i64::try_from(workers * calls).unwrap());
    }
}

async fn b37_first_use(world: &mut World) {
    world.add_server().await;
    let client = world.cap(50).await;
    let subjects = world.rounds(200, 30);
    for subject in 0..subjects {
        let user = format!("user {subject}");
        let first = |n: usize| {
            let call = world.client(n).reserve(&format!("{subject}-{n}"));
            call.item("units", 1).with("user", &user).send()
        };
        for answer in at_once((0..50).map(first)).await {
            answer.expect("the first fifty all fit");
        }
        let usage = client.usage("units", &[("user", &user)]).await.unwrap();
        assert_eq!((usage[0].used, usage[0].held, usage[0].available), (0, 50, Some(0)));
        first(50).await.denied(&["cap"]);
    }
    let (_, counters) = world.records().await;
    assert_eq!(counters.len(), subjects, "one counter each");
}

/// Asks for usage again and again until told to stop: never more than `max`.
async fn watch(client: Client, user: String, max: i64, stop: Arc<AtomicBool>) -> usize {
    let mut readings = 0;
    while !stop.load(Ordering::Relaxed) {
        let usage = client.usage("units", &[("user", &user)]).await.expect("a usage");
        assert!(usage[0].used >= 0 && usage[0].held >= 0);
        assert!(usage[0].used + usage[0].held <= max, "{:?}", usage[0]);
        assert_eq!(usage[0].available, Some(max - usage[0].used - usage[0].held));
        readings += 1;
    }
    readings
}

async fn b38_last_slot_race(world: &mut World) {
    world.add_server().await;
    world.add_server().await;
    world.cap(10).await;
    let rounds = world.rounds(50, 10);
    for round in 0..rounds {
        let user = format!("user {round}");
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = tokio::spawn(watch(world.client(2), user.clone(), 10, Arc::clone(&stop)));
        let take = |n: usize| {
            let call = world.client(n).reserve(&format!("{round}-{n}"));
            call.item("units", 1).with("user", &user).send()
        };
        let answers = at_once((0..200).map(take)).await;
        stop.store(true, Ordering::Relaxed);
        assert!(watcher.await.expect("a watcher that saw no more than ten") > 0);
        let mut admitted = 0;
        for answer in answers {
            if answer.is_ok() {
                admitted += 1;
            } else {
                answer.denied(&["cap"]);
            }
        }
        assert_eq!(admitted, 10, "round {round}");
    }
}

/// Ten of one limit, seven of another, both of every call.
async fn b38_last_slot_of_two_limits(world: &mut World) {
    world.add_server().await;
    world.add_server().await;
    let rules = Rules::new().metric("units", &["user", "team"]).limits([
        limit("team", "units").per(&["team"]).max(10),
        limit("user", "units").per(&["user"]).max(7),
    ]);
    let client = world.rules(rules).await;
    let rounds = world.rounds(20, 6);
    for round in 0..rounds {
        let team = format!("team {round}");
        let take = |n: usize| {
            let call = world.client(n).reserve(&format!("{round}-{n}")).item("units", 1);
            call.with("user", &format!("{round} {}", n % 2)).with("team", &team).send()
        };
        let answers = at_once((0..60).map(take)).await;
        let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(admitted, 10);
        let user = format!("{round} 0");
        let usage = client.usage("units", &[("team", &team), ("user", &user)]).await.unwrap();
        assert_eq!(usage[0].held, 10, "{usage:?}");
        assert!((3..=7).contains(&usage[1].held), "{usage:?}");
    }
}

async fn b38_last_slot_by_weight(world: &mut World) {
    world.add_server().await;
    let client = world.cap(100).await;
    let rounds = world.rounds(20, 6);
    for round in 0..rounds {
        let user = format!("user {round}");
        let weight = |n: usize| i64::try_from(n % 13).unwrap() + 1;
        let take = |n: usize| {
            let call = world.client(n).reserve(&format!("{round}-{n}"));
            call.item("units", weight(n)).with("user", &user).send()
        };
        let answers = at_once((0..60).map(take)).await;
        let admitted = (0..60).filter(|&n| answers[n].is_ok()).map(weight).sum::<i64>();
        let usage = client.usage("units", &[("user", &user)]).await.unwrap();
        assert_eq!(usage[0].held, admitted);
        assert!(admitted <= 100);
        // What is shown as available is what the next one gets.
        let left = usage[0].available.unwrap();
        let next = |id: &str, amount| {
            client
                .reserve(&format!("{round}-{id}"))
                .item("units", amount)
                .with("user", &user)
                .send()
        };
        next("over", left + 1).await.denied(&["cap"]);
        if left > 0 {
            next("left", left).await.unwrap();
        }
    }
}
