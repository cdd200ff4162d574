//! What becomes of a reservation: its instants move, it goes, another takes its
//! place, its resources are free again.

use std::sync::Arc;

use quota_authority::domain::name::{ReservationKey, ResourceKey};
use quota_authority::domain::reservation::Reservation;
use quota_authority::domain::time::Span;
use quota_authority::store::{
    Change, ChangeSet, Extent, Removal, ReservationFilter, SharedStore, Unbinding, Versioned,
    WriteError,
};

use crate::Place;
use crate::records::{bind, put, reservation, reservations, settled};
use crate::suite::{owner, read_reservation};

fn removal(id: &str, expected: i64) -> ChangeSet {
    let removal = Removal { key: ReservationKey::new("n", id), expected };
    ChangeSet { removed_reservations: vec![removal], ..ChangeSet::default() }
}

async fn listed(store: &SharedStore) -> Vec<String> {
    let filter = ReservationFilter { namespace: "n".to_owned(), ..ReservationFilter::default() };
    let listed = store.reservations_before(&filter, None, 100).await.unwrap();
    listed.iter().map(|reservation| reservation.key.id().into_owned()).collect()
}

pub async fn a_reservation_is_removed_as_it_was_seen(place: &Place) {
    let store = place.open().await;
    for id in ["a", "b"] {
        let made = reservations(vec![put(None, 5, reservation("n", id))]);
        assert_eq!(store.write(&made).await, Ok(()));
    }
    assert_eq!(store.write(&removal("a", 4)).await, Err(WriteError::Conflict));
    assert_eq!(store.write(&removal("never", 1)).await, Err(WriteError::Conflict));
    assert_eq!(store.write(&removal("a", 5)).await, Ok(()));
    assert_eq!(read_reservation(&store, "a").await, None);
    assert_eq!(listed(&store).await, ["b"]);
    assert_eq!(store.write(&removal("a", 5)).await, Err(WriteError::Conflict));
    // Its id is free again.
    let made = reservations(vec![put(None, 9, reservation("n", "a"))]);
    assert_eq!(store.write(&made).await, Ok(()));
    assert_eq!(read_reservation(&store, "a").await.unwrap().version, 9);
    assert_eq!(listed(&store).await, ["b", "a"]);
}

/// A reservation whose end and removal are put off.
fn extended(before: &Reservation) -> Arc<Reservation> {
    let later = before.expire_time.plus(Span::from_secs(60));
    let purge_at = Some(later.plus(Span::from_days(1)));
    Arc::new(Reservation { expire_time: later, purge_at, ..before.clone() })
}

pub async fn instants_move_only_where_the_change_says_so(place: &Place) {
    let store = place.open().await;
    let held = reservation("n", "a");
    store.write(&reservations(vec![put(None, 1, Arc::clone(&held))])).await.unwrap();
    let later = extended(&held);
    let purge_at = later.purge_at;
    let extent = Extent::Instants;
    let change = Change { purge_at, extent, ..put(Some(1), 2, Arc::clone(&later)) };
    assert_eq!(store.write(&reservations(vec![change])).await, Ok(()));
    let read = read_reservation(&store, "a").await.unwrap();
    assert_eq!(read, Versioned { version: 2, value: Arc::clone(&later) });
    let done = settled(later);
    let change = Change { purge_at: None, ..put(Some(2), 3, Arc::clone(&done)) };
    assert_eq!(store.write(&reservations(vec![change])).await, Ok(()));
    let read = read_reservation(&store, "a").await.unwrap();
    assert_eq!(read, Versioned { version: 3, value: done });
}

pub async fn another_reservation_takes_the_place_of_one(place: &Place) {
    let store = place.open().await;
    let first = settled(reservation("n", "a"));
    let change = Change { purge_at: None, ..put(None, 1, first) };
    store.write(&reservations(vec![change])).await.unwrap();
    let mut other = Reservation::clone(&reservation("n", "a"));
    other.create_time = other.create_time.plus(Span::from_secs(9));
    other.request = None;
    other.charges = Arc::default();
    let other = Arc::new(other);
    let change = Change { extent: Extent::Whole, ..put(Some(1), 2, Arc::clone(&other)) };
    assert_eq!(store.write(&reservations(vec![change])).await, Ok(()));
    let read = read_reservation(&store, "a").await.unwrap();
    assert_eq!(read, Versioned { version: 2, value: other }, "nothing is left of the first");
    assert_eq!(listed(&store).await, ["a"]);
}

pub async fn a_resource_is_free_again_and_bound_anew(place: &Place) {
    let store = place.open().await;
    let bound = |resource: &str, owner: &str| ChangeSet {
        resources: vec![bind("n", resource, owner)],
        ..ChangeSet::default()
    };
    let freed = |resource: &str, owner: &str| ChangeSet {
        removed_resources: vec![Unbinding {
            resource: ResourceKey::new("n", resource),
            owner: ReservationKey::new("n", owner),
        }],
        ..ChangeSet::default()
    };
    let key = |id: &str| Some(ReservationKey::new("n", id));
    store.write(&bound("r", "a")).await.unwrap();
    assert_eq!(store.write(&bound("r", "b")).await, Err(WriteError::Exists));
    assert_eq!(store.write(&freed("r", "a")).await, Ok(()));
    assert_eq!(owner(&store, "r").await, None);
    // As good as done: its reservation's guard says whose it was.
    assert_eq!(store.write(&freed("r", "a")).await, Ok(()));
    store.write(&bound("r", "a")).await.unwrap();
    let moved = ChangeSet { resources: bound("r", "b").resources, ..freed("r", "a") };
    assert_eq!(store.write(&moved).await, Ok(()));
    assert_eq!(owner(&store, "r").await, key("b"));
    // Under a resource's name, what its refunds were of.
    let trace = ResourceKey::of_refund("n", "r", "r");
    let mut of_refund = bind("n", "r", "a");
    of_refund.resource = trace.clone();
    let changes = ChangeSet { resources: vec![of_refund], ..ChangeSet::default() };
    assert_eq!(store.write(&changes).await, Ok(()));
    assert_eq!(store.write(&changes).await, Err(WriteError::Exists));
    let keys = quota_authority::domain::state::Keys {
        resources: vec![trace.clone(), ResourceKey::new("n", "r/r")],
        ..Default::default()
    };
    let loaded = store.load(&keys).await.unwrap().resources;
    assert_eq!(loaded[&trace], key("a"));
    assert_eq!(loaded[&ResourceKey::new("n", "r/r")], None);
    assert_eq!(owner(&store, "r").await, key("b"));
}
