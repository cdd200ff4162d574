//! Who holds a limit: listed with where it stands, both as of one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quota_authority::domain::time::Span;

use crate::world::{Rules, World, at_once, cases, limit, times, v1};

cases! {
    every_store: [
        b16_what_has_run_out_is_held_nowhere,
        b41_what_is_held_is_what_the_holds_add_up_to,
        many_holds_are_cut,
    ],
    manual_clock: [holds_of_a_closed_window],
}

/// What each limit's holds add up to, of those that are listed.
fn sums(answer: &v1::GetUsageResponse) -> BTreeMap<&str, i64> {
    let mut sums = BTreeMap::new();
    let charges = answer.holds.iter().flat_map(|hold| &hold.charges);
    for charge in charges {
        *sums.entry(charge.limit.as_str()).or_default() += charge.amount;
    }
    sums
}

/// Held of each limit is what its holds sum up to, each hold is live and listed
/// once, the soonest to expire first.
fn adds_up(answer: &v1::GetUsageResponse) {
    let sums = sums(answer);
    for status in &answer.limits {
        let sum = sums.get(status.limit.as_str()).copied().unwrap_or(0);
        assert_eq!(status.held, sum, "{status:?} {:?}", answer.holds);
    }
    let now = answer.read_time.unwrap();
    let at = |time: &prost_types::Timestamp| (time.seconds, time.nanos);
    let ends: Vec<_> = answer.holds.iter().map(|h| at(h.expire_time.as_ref().unwrap())).collect();
    assert!(ends.is_sorted() && ends.iter().all(|end| *end > at(&now)), "{ends:?} at {now:?}");
    assert!(answer.holds.iter().all(|hold| hold.state() == v1::ReservationState::Held));
    let ids: BTreeSet<_> = answer.holds.iter().map(|hold| &hold.reservation_id).collect();
    assert_eq!(ids.len(), answer.holds.len());
}

async fn b16_what_has_run_out_is_held_nowhere(world: &mut World) {
    let second = world.second(2);
    let client = world.cap(10).await;
    let live = v1::ListReservationsRequest {
        states: vec![v1::ReservationState::Held.into()],
        ..v1::ListReservationsRequest::default()
    };
    let over = v1::ListReservationsRequest {
        states: vec![v1::ReservationState::Expired.into()],
        ..live.clone()
    };
    client.take("ra", 10).ttl(times(second, 3)).send().await.unwrap();
    assert_eq!(client.ids(&live).await, ["ra"]);
    assert_eq!(client.holds().await.holds[0].reservation_id, "ra");
    world.pass(times(second, 4)).await;
    let answer = client.holds().await;
    let status = &answer.limits[0];
    assert_eq!((status.held, status.available, answer.holds.len()), (0, Some(10), 0));
    assert_eq!(client.ids(&live).await, [""; 0]);
    assert_eq!(client.ids(&over).await, ["ra"]);
    client.take("rb", 10).send().await.unwrap();
    assert_eq!(client.ids(&live).await, ["rb"]);
    adds_up(&client.holds().await);
}

async fn b41_what_is_held_is_what_the_holds_add_up_to(world: &mut World) {
    world.add_server().await;
    let second = limit("of all", "units").max(100_000);
    let cap = limit("cap", "units").per(&["user"]).max(1000);
    let client = world.rules(Rules::of_units([cap, second])).await;
    let stop = Arc::new(AtomicBool::new(false));
    let work = |worker: usize| {
        let (client, stop) = (world.client(worker), Arc::clone(&stop));
        async move {
            let mut chance = fastrand::Rng::with_seed(worker.try_into().unwrap());
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // The watcher is to have his turn too.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let id = format!("{worker}-{n}");
                // Longer than the case, and shorter.
                let ttl = Span::from_millis(chance.i64(1000..60_000));
                if client.take(&id, chance.i64(1..40)).ttl(ttl).send().await.is_err() {
                    continue;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                match chance.u8(0..8) {
                    0 => drop(client.settle(&id).amounts(&[1]).commit().await),
                    1 => {}
                    _ => drop(client.release(&id).await),
                }
            }
        }
    };
    let workers: Vec<_> = (0..40).map(|worker| tokio::spawn(work(worker))).collect();
    let mut most = 0;
    for n in 0..world.rounds(200, 60) {
        let answer = world.client(n).holds().await;
        assert!(!answer.holds_incomplete);
        adds_up(&answer);
        let cap = answer.limits.iter().find(|status| status.limit == "cap").unwrap();
        assert!(cap.used + cap.held <= 1000, "{cap:?}");
        most = most.max(answer.holds.len());
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    assert!(most > 1, "something was held at once");
    // At rest: what is shown as available is what is granted, and no more.
    let available = client.holds().await.limits[0].available.unwrap();
    assert!(client.take("more", available + 1).send().await.is_err());
    if available > 0 {
        client.take("all", available).send().await.unwrap();
    }
    adds_up(&client.holds().await);
}

async fn many_holds_are_cut(world: &mut World) {
    let client = world.cap(1_000_000).await;
    let count = 1040;
    let take = |worker: i64| {
        let client = client.clone();
        async move {
            for n in (worker..count).step_by(40) {
                let ttl = Span::from_secs(3600 + n % 13 * 1000);
                client.take(&n.to_string(), 2).ttl(ttl).send().await.unwrap();
            }
        }
    };
    at_once((0..40).map(take)).await;
    let answer = client.holds().await;
    assert_eq!((answer.holds.len(), answer.holds_incomplete), (1000, true));
    assert_eq!(answer.limits[0].held, 2 * count);
    let last = answer.holds.last().unwrap().expire_time.unwrap().seconds;
    assert!(answer.holds.iter().all(|hold| hold.expire_time.unwrap().seconds <= last));
    for n in 0..40 {
        client.release(&n.to_string()).await.unwrap();
    }
    let answer = client.holds().await;
    assert_eq!((answer.holds.len(), answer.holds_incomplete), (1000, false));
    adds_up(&answer);
}

async fn holds_of_a_closed_window(world: &mut World) {
    let minute = limit("cap", "units").per(&["user"]).max(9).fixed(Span::from_secs(60));
    let client = world.rules(Rules::of_units([minute])).await;
    client.take("old", 4).ttl(Span::from_secs(600)).send().await.unwrap();
    world.pass(Span::from_secs(61)).await;
    client.take("new", 5).ttl(Span::from_secs(600)).send().await.unwrap();
    for (at, id, held) in [(None, "new", 5), (Some("2024-05-15T12:30:10Z"), "old", 4)] {
        let answer = client.holds_of("units", &[("user", "s")], at).await.unwrap();
        adds_up(&answer);
        assert_eq!((answer.holds[0].reservation_id.as_str(), answer.holds.len()), (id, 1));
        assert_eq!(answer.limits[0].held, held);
    }
}
