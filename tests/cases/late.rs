//! Commits that come after their hold has run out.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Rules, World, cases, limit, times, v1};

cases! {
    every_store: [
        b08_reclaimed_where_there_is_room,
        b08_refused_where_there_is_none,
        b08_overdrawn,
    ],
    manual_clock: [
        b08_by_the_present_max,
        b08_all_limits_or_none,
        b08_booked_where_it_was_admitted,
        b08_in_a_rolling_window_when_it_commits,
    ],
}

use v1::IfExpired::{Overdraw, Reclaim, Reject};

async fn b08_reclaimed_where_there_is_room(world: &mut World) {
    let second = world.second(4);
    let client = world.cap(5).await;
    client.take("ra", 3).ttl(times(second, 4)).send().await.unwrap();
    world.pass(times(second, 5)).await;
    client.settle("ra").if_expired(Reject).commit().await.refused(Reason::ReservationExpired);
    let more = client.settle("ra").amounts(&[4]).if_expired(Reclaim).commit().await;
    more.refused(Reason::AmountExceedsHold);
    let late = client.settle("ra").amounts(&[2]).resources(&["post/1"]).if_expired(Reclaim);
    let committed = late.clone().commit().await.unwrap();
    assert_eq!((committed.limits[0].used, committed.limits[0].held), (2, 0));
    assert!(!committed.replayed);
    assert!(late.commit().await.unwrap().replayed);
    // By then it is committed, whatever one asks for in case it were not.
    let plain = client.settle("ra").amounts(&[2]).resources(&["post/1"]).commit().await;
    assert!(plain.unwrap().replayed);
    assert_eq!(client.stands("cap").await, (2, 0, 3));
    let reservation = client.owner_of("post/1").await.unwrap();
    let history: Vec<_> = reservation.history.iter().map(|h| (&*h.event, &*h.reason)).collect();
    assert_eq!(history, [("reserved", ""), ("expired", ""), ("committed", "reclaimed")]);
    assert_eq!(reservation.history[1].amounts, [3]);
    assert_eq!(reservation.history[2].amounts, [2]);
}

async fn b08_refused_where_there_is_none(world: &mut World) {
    let second = world.second(4);
    let client = world.cap(5).await;
    client.take("ra", 3).ttl(times(second, 4)).send().await.unwrap();
    world.pass(times(second, 5)).await;
    client.take("rb", 3).send().await.unwrap();
    let refused = client.settle("ra").if_expired(Reclaim).commit().await.denied(&["cap"]);
    let limits = refused.refusal.unwrap().limits;
    assert_eq!((limits[0].used, limits[0].held, limits[0].requested), (0, 3, 3));
    assert_eq!(limits[0].available, Some(2));
    assert_eq!(client.state("ra").await, v1::ReservationState::Expired);
    // A part of it fits.
    client.settle("ra").amounts(&[2]).if_expired(Reclaim).commit().await.unwrap();
    assert_eq!(client.stands("cap").await, (2, 3, 0));
    client.commit("rb").await.unwrap();
    assert_eq!(client.stands("cap").await, (5, 0, 0));
}

async fn b08_overdrawn(world: &mut World) {
    let second = world.second(4);
    let client = world.cap(5).await;
    client.take("ra", 3).ttl(times(second, 4)).send().await.unwrap();
    world.pass(times(second, 5)).await;
    client.take("rb", 4).committed().await.unwrap();
    client.settle("ra").if_expired(Reclaim).commit().await.denied(&["cap"]);
    client.settle("ra").if_expired(Overdraw).commit().await.unwrap();
    assert_eq!(client.stands("cap").await, (7, 0, 0));
    let reservation = client.reservation("ra").await.unwrap();
    assert_eq!(reservation.history[2].reason, "overdrawn", "it says so");
    client.take("rc", 1).send().await.denied(&["cap"]);
    client.refund("ra", "back").send().await.unwrap();
    assert_eq!(client.stands("cap").await, (4, 0, 1));
    // In time, it makes no difference.
    client.take("rd", 1).send().await.unwrap();
    client.settle("rd").if_expired(Overdraw).commit().await.unwrap();
    let in_time = client.reservation("rd").await.unwrap();
    assert_eq!(in_time.history[1].reason, "");
    client.settle("gone").if_expired(Overdraw).commit().await.refused(Reason::ReservationNotFound);
}

async fn b08_by_the_present_max(world: &mut World) {
    let client = world.cap(5).await;
    client.take("ra", 3).ttl(Span::from_secs(1)).send().await.unwrap();
    client.take("rb", 2).ttl(Span::from_secs(1)).send().await.unwrap();
    world.pass(Span::from_secs(2)).await;
    world.cap(2).await;
    world.pass(Span::from_secs(2)).await;
    let refused = client.settle("ra").if_expired(Reclaim).commit().await.denied(&["cap"]);
    assert!(refused.message.contains("can never fit"), "{}", refused.message);
    client.settle("rb").if_expired(Reclaim).commit().await.unwrap();
    // A limit that is gone rules by what it was when it admitted.
    let other = limit("other", "units").per(&["user"]).max(100);
    world.rules(Rules::of_units([other])).await;
    world.pass(Span::from_secs(2)).await;
    client.settle("ra").if_expired(Reclaim).commit().await.unwrap();
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    assert_eq!((usage[0].limit.as_str(), usage[0].used), ("other", 0));
}

async fn b08_all_limits_or_none(world: &mut World) {
    let limits = [
        limit("narrow", "units").per(&["user"]).max(2),
        limit("broad", "units").per(&["user"]).max(10),
        limit("seen", "units").per(&["user"]).max(1).observed(),
    ];
    let client = world.rules(Rules::of_units(limits)).await;
    client.take("ra", 2).ttl(Span::from_secs(1)).send().await.unwrap();
    world.pass(Span::from_secs(2)).await;
    client.take("rb", 1).ttl(Span::from_secs(10)).send().await.unwrap();
    let refused = client.settle("ra").if_expired(Reclaim).commit().await.denied(&["narrow"]);
    assert!(refused.retry.unwrap() <= std::time::Duration::from_secs(11));
    assert_eq!(client.stands("broad").await, (0, 1, 9));
    world.pass(Span::from_secs(11)).await;
    // Observed limits refuse nobody, here neither.
    client.settle("ra").if_expired(Reclaim).commit().await.unwrap();
    assert_eq!(client.stands("broad").await, (2, 0, 8));
    assert_eq!(client.stands("seen").await, (2, 0, 0));
}

async fn b08_booked_where_it_was_admitted(world: &mut World) {
    let minute = limit("minute", "units").per(&["user"]).max(5).fixed(Span::from_secs(60));
    let client = world.rules(Rules::of_units([minute])).await;
    client.take("ra", 3).ttl(Span::from_secs(1)).send().await.unwrap();
    world.pass(Span::from_secs(90)).await;
    client.take("rb", 5).committed().await.unwrap();
    client.settle("ra").if_expired(Reclaim).commit().await.unwrap();
    assert_eq!(client.stands("minute").await, (5, 0, 0));
    let before = client.usage_at("units", &[("user", "s")], Some("2024-05-15T12:30:00Z")).await;
    assert_eq!(before.unwrap()[0].used, 3);
}

async fn b08_in_a_rolling_window_when_it_commits(world: &mut World) {
    let rolling = limit("rolling", "units").per(&["user"]).max(5).rolling(Span::from_secs(60), 60);
    let client = world.rules(Rules::of_units([rolling])).await;
    client.take("ra", 3).ttl(Span::from_secs(1)).send().await.unwrap();
    world.pass(Span::from_secs(40)).await;
    client.settle("ra").if_expired(Reclaim).commit().await.unwrap();
    world.pass(Span::from_secs(59)).await;
    assert_eq!(client.stands("rolling").await, (3, 0, 2));
    world.pass(Span::from_secs(2)).await;
    assert_eq!(client.stands("rolling").await, (0, 0, 5));
}
