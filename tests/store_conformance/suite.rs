//! The suite.

use std::sync::Arc;
use tokio::time::Instant;

use quota_authority::domain::counter::Counter;
use quota_authority::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use quota_authority::domain::reservation::Reservation;
use quota_authority::domain::state::Keys;
use quota_authority::domain::subject::Subject;
use quota_authority::domain::time::Time;
use quota_authority::store::{Change, ChangeSet, SharedStore, Versioned, WriteError};

use crate::Place;
pub use crate::charged::*;
pub use crate::life::*;
pub use crate::listing::*;
use crate::records::{
    at, billed, bind, counter, counter_id, counters, event, never_reserved, policy, put, remove,
    reservation, reservations, settled, subject, windowed,
};
pub use crate::trail::*;

async fn read_counter(store: &SharedStore, key: &str) -> Option<Versioned<Counter>> {
    let id = counter_id("n", key);
    let keys = Keys { counters: vec![Arc::clone(&id)], ..Keys::default() };
    store.load(&keys).await.unwrap().counters.remove(&id).expect("every key is answered")
}

pub async fn read_reservation(
    store: &SharedStore,
    id: &str,
) -> Option<Versioned<Arc<Reservation>>> {
    let key = ReservationKey::new("n", id);
    let keys = Keys { reservations: vec![key.clone()], ..Keys::default() };
    store.load(&keys).await.unwrap().reservations.remove(&key).expect("every key is answered")
}

pub async fn owner(store: &SharedStore, resource: &str) -> Option<ReservationKey> {
    let key = ResourceKey::new("n", resource);
    let keys = Keys { resources: vec![key.clone()], ..Keys::default() };
    store.load(&keys).await.unwrap().resources.remove(&key).expect("every key is answered")
}

async fn read_subject(store: &SharedStore, id: &str) -> Option<Versioned<Subject>> {
    let key = SubjectKey::new("n", "user.$", id);
    let keys = Keys { subjects: vec![key.clone()], ..Keys::default() };
    store.load(&keys).await.unwrap().subjects.remove(&key).expect("every key is answered")
}

pub async fn absent_records_are_answered_as_absent(place: &Place) {
    let store = place.open().await;
    assert_eq!(read_counter(&store, "x").await, None);
    assert_eq!(read_reservation(&store, "x").await, None);
    assert_eq!(owner(&store, "x").await, None);
    assert_eq!(read_subject(&store, "x").await, None);
    assert_eq!(store.policy_head("n").await, Ok(None));
    assert_eq!(store.policy("n", 1).await, Ok(None));
    assert!(store.load(&Keys::default()).await.is_ok());
    assert_eq!(store.write(&ChangeSet::default()).await, Ok(()));
}

pub async fn every_kind_of_record_reads_back_as_written(place: &Place) {
    let store = place.open().await;
    let changes = ChangeSet {
        reservations: vec![
            put(None, 5, reservation("n", "held")),
            Change { purge_at: None, ..put(None, 6, settled(reservation("n", "done"))) },
            put(None, 7, never_reserved("n", "gone")),
        ],
        counters: vec![put(None, 8, counter("n", "x", i64::MAX))],
        resources: vec![bind("n", "a/b", "done")],
        subjects: vec![put(None, 9, subject("n", "42"))],
        removed_reservations: vec![],
        removed_resources: vec![],
        removed_subjects: vec![],
        policies: vec![policy("n", 1)],
        events: vec![event("n")],
        ..ChangeSet::default()
    };
    assert_eq!(store.write(&changes).await, Ok(()));
    for change in changes.reservations {
        let read = read_reservation(&store, &change.value.key.id()).await.unwrap();
        assert_eq!(read, Versioned { version: change.version, value: change.value });
    }
    let read = read_counter(&store, "x").await.unwrap();
    assert_eq!(read, Versioned { version: 8, value: counter("n", "x", i64::MAX) });
    assert_eq!(read.value.id.window, counter_id("n", "x").window);
    assert_eq!(read.value.id.key, counter_id("n", "x").key);
    assert_eq!(owner(&store, "a/b").await, Some(ReservationKey::new("n", "done")));
    let read = read_subject(&store, "42").await.unwrap();
    assert_eq!(read, Versioned { version: 9, value: subject("n", "42") });
    assert_eq!(store.policy("n", 1).await, Ok(Some(policy("n", 1))));
    assert_eq!(store.policy_head("n").await, Ok(Some(1)));
}

pub async fn counters_of_every_window_read_back_and_change(place: &Place) {
    let store = place.open().await;
    for [before, after] in windowed("n") {
        let id = Arc::clone(&before.id);
        for (expected, version, value) in [(None, 1, before), (Some(1), 2, after)] {
            let changes = counters(vec![put(expected, version, value.clone())]);
            assert_eq!(store.write(&changes).await, Ok(()));
            let keys = Keys { counters: vec![Arc::clone(&id)], ..Keys::default() };
            let read = store.load(&keys).await.unwrap().counters.remove(&id).flatten().unwrap();
            assert_eq!(read.value.id.window, value.id.window);
            assert_eq!(read, Versioned { version, value });
        }
    }
}

pub async fn subjects_with_every_billing_read_back(place: &Place) {
    let store = place.open().await;
    for subject in billed("n") {
        let subjects = vec![put(None, 1, subject.clone())];
        let changes = ChangeSet { subjects, ..ChangeSet::default() };
        assert_eq!(store.write(&changes).await, Ok(()));
        let read = read_subject(&store, &subject.id).await.unwrap();
        assert_eq!(read, Versioned { version: 1, value: subject });
    }
}

pub async fn strange_names_keep_apart(place: &Place) {
    let store = place.open().await;
    let long = "x".repeat(256);
    let composed = "\u{fc}";
    let decomposed = "u\u{308}";
    let names = ["a", "a.b", "$x", "x.$.y", "a/b", "a%2Fb", "%", " ", composed, decomposed, &long];
    for (n, name) in (0..).zip(names) {
        let changes = ChangeSet {
            reservations: vec![put(None, 1, reservation("n", name))],
            counters: vec![put(None, 1, counter("n", name, n))],
            resources: vec![bind("n", name, name)],
            subjects: vec![put(None, 1, subject("n", name))],
            ..ChangeSet::default()
        };
        assert_eq!(store.write(&changes).await, Ok(()), "{name:?}");
    }
    for (n, name) in (0..).zip(names) {
        assert_eq!(read_counter(&store, name).await.unwrap().value.used(Time::MIN), n, "{name:?}");
        assert_eq!(read_reservation(&store, name).await.unwrap().value, reservation("n", name));
        assert_eq!(owner(&store, name).await, Some(ReservationKey::new("n", name)), "{name:?}");
        assert_eq!(read_subject(&store, name).await.unwrap().value.id, name);
    }
}

pub async fn a_reservation_is_made_once(place: &Place) {
    let store = place.open().await;
    store.write(&reservations(vec![put(None, 1, reservation("n", "r"))])).await.unwrap();
    let both = ChangeSet {
        counters: vec![put(None, 1, counter("n", "x", 1))],
        ..reservations(vec![
            put(None, 1, reservation("n", "new")),
            put(None, 2, settled(reservation("n", "r"))),
        ])
    };
    assert_eq!(store.write(&both).await, Err(WriteError::Exists));
    assert_eq!(read_counter(&store, "x").await, None, "all or nothing");
    assert_eq!(read_reservation(&store, "new").await, None, "all or nothing");
    assert_eq!(read_reservation(&store, "r").await.unwrap().version, 1);
}

pub async fn a_stale_version_changes_nothing(place: &Place) {
    let store = place.open().await;
    let first = ChangeSet {
        counters: vec![put(None, 10, counter("n", "x", 1)), put(None, 20, counter("n", "y", 1))],
        ..reservations(vec![put(None, 30, reservation("n", "r"))])
    };
    store.write(&first).await.unwrap();
    let stale_counter = counters(vec![
        put(Some(10), 11, counter("n", "x", 2)),
        put(Some(19), 20, counter("n", "y", 2)),
    ]);
    assert_eq!(store.write(&stale_counter).await, Err(WriteError::Conflict));
    let stale_reservation = ChangeSet {
        counters: vec![put(Some(10), 11, counter("n", "x", 2))],
        ..reservations(vec![put(Some(29), 30, settled(reservation("n", "r")))])
    };
    assert_eq!(store.write(&stale_reservation).await, Err(WriteError::Conflict));
    let vanished = counters(vec![put(Some(1), 2, counter("n", "never made", 2))]);
    assert_eq!(store.write(&vanished).await, Err(WriteError::Conflict));
    let subject_gone =
        ChangeSet { subjects: vec![put(Some(1), 2, subject("n", "s"))], ..ChangeSet::default() };
    assert_eq!(store.write(&subject_gone).await, Err(WriteError::Conflict));
    assert_eq!(read_counter(&store, "x").await.unwrap().version, 10);
    assert_eq!(read_reservation(&store, "r").await.unwrap().value, reservation("n", "r"));
}

pub async fn a_counter_that_appeared_meanwhile_is_a_conflict(place: &Place) {
    let store = place.open().await;
    store.write(&counters(vec![put(None, 1, counter("n", "x", 1))])).await.unwrap();
    let again = counters(vec![put(None, 1, counter("n", "x", 2))]);
    assert_eq!(store.write(&again).await, Err(WriteError::Conflict));
    let subjects =
        ChangeSet { subjects: vec![put(None, 1, subject("n", "s"))], ..ChangeSet::default() };
    store.write(&subjects).await.unwrap();
    assert_eq!(store.write(&subjects).await, Err(WriteError::Conflict));
}

pub async fn a_resource_is_bound_once(place: &Place) {
    let store = place.open().await;
    let binding = |owner: &str| ChangeSet {
        resources: vec![bind("n", "post/1", owner)],
        counters: vec![put(None, 1, counter("n", owner, 1))],
        ..ChangeSet::default()
    };
    assert_eq!(store.write(&binding("r1")).await, Ok(()));
    assert_eq!(store.write(&binding("r2")).await, Err(WriteError::Exists));
    assert_eq!(owner(&store, "post/1").await, Some(ReservationKey::new("n", "r1")));
    assert_eq!(read_counter(&store, "r2").await, None, "all or nothing");
}

pub async fn a_policy_revision_is_added_once(place: &Place) {
    let store = place.open().await;
    let apply = |revision| ChangeSet {
        policies: vec![policy("n", revision)],
        events: vec![event("n")],
        ..ChangeSet::default()
    };
    assert_eq!(store.write(&apply(1)).await, Ok(()));
    assert_eq!(store.write(&apply(2)).await, Ok(()));
    assert_eq!(store.write(&apply(2)).await, Err(WriteError::Exists));
    let elsewhere = ChangeSet { policies: vec![policy("n/x", 1)], ..ChangeSet::default() };
    assert_eq!(store.write(&elsewhere).await, Ok(()));
    assert_eq!(store.policy_head("n").await, Ok(Some(2)));
    assert_eq!(store.policy_head("n/x").await, Ok(Some(1)));
    assert_eq!(store.policy("n", 1).await, Ok(Some(policy("n", 1))));
    for revision in 3..=11 {
        assert_eq!(store.write(&apply(revision)).await, Ok(()));
    }
    assert_eq!(store.policy_head("n").await, Ok(Some(11)), "compared as numbers");
}

pub async fn a_subject_is_removed_as_it_was_seen(place: &Place) {
    let store = place.open().await;
    let made = ["s", "s/t", "t"].map(|id| put(None, 5, subject("n", id)));
    let made = ChangeSet { subjects: made.into(), ..ChangeSet::default() };
    store.write(&made).await.unwrap();
    let stale = ChangeSet {
        removed_subjects: vec![remove("t", 5), remove("s", 4)],
        events: vec![event("n")],
        ..counters(vec![put(None, 1, counter("n", "x", 1))])
    };
    assert_eq!(store.write(&stale).await, Err(WriteError::Conflict));
    assert_eq!(read_counter(&store, "x").await, None, "all or nothing");
    assert_eq!(read_subject(&store, "t").await.unwrap().version, 5, "all or nothing");
    let removed =
        |expected| ChangeSet { removed_subjects: vec![remove("s", expected)], ..stale.clone() };
    assert_eq!(store.write(&removed(5)).await, Ok(()));
    assert_eq!(read_subject(&store, "s").await, None);
    assert_eq!(read_counter(&store, "x").await.unwrap().version, 1);
    for other in ["s/t", "t"] {
        assert_eq!(read_subject(&store, other).await.unwrap().value, subject("n", other));
    }
    let again = ChangeSet { counters: vec![], ..removed(5) };
    assert_eq!(store.write(&again).await, Err(WriteError::Conflict), "it is gone already");
    let changed =
        ChangeSet { subjects: vec![put(Some(5), 6, subject("n", "s"))], ..ChangeSet::default() };
    assert_eq!(store.write(&changed).await, Err(WriteError::Conflict), "nothing is there");
    let anew =
        ChangeSet { subjects: vec![put(None, 7, subject("n", "s"))], ..ChangeSet::default() };
    assert_eq!(store.write(&anew).await, Ok(()));
    assert_eq!(read_subject(&store, "s").await.unwrap().version, 7);
}

pub async fn nothing_is_written_after_its_time(place: &Place) {
    let store = place.open().await;
    let late = ChangeSet {
        valid_until: Some(Instant::now()),
        ..counters(vec![put(None, 1, counter("n", "x", 1))])
    };
    assert_eq!(store.write(&late).await, Err(WriteError::Conflict));
    assert_eq!(read_counter(&store, "x").await, None);
}

pub async fn of_many_writers_from_one_version_one_wins(place: &Place) {
    let store = place.open().await;
    for round in 0..10 {
        let key = round.to_string();
        store.write(&counters(vec![put(None, 1, counter("n", &key, 0))])).await.unwrap();
        let writers = (1..=8).map(|n| {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move {
                let change = put(Some(1), 2, counter("n", &key, n));
                (n, store.write(&counters(vec![change])).await)
            })
        });
        let mut winners = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                (n, Ok(())) => winners.push(n),
                (_, other) => assert_eq!(other, Err(WriteError::Conflict)),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(read_counter(&store, &key).await.unwrap().value.used(Time::MIN), winners[0]);
    }
}

const WRITERS: i64 = 6;
const EACH: i64 = 15;

pub async fn guarded_increments_lose_nothing(place: &Place) {
    let store = place.open().await;
    let writers = (0..WRITERS).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut done = 0;
            while done < EACH {
                let present = read_counter(&store, "x").await;
                let used = present.as_ref().map_or(0, |present| present.value.used(Time::MIN));
                let expected = present.map(|present| present.version);
                let version = expected.map_or(1, |version| version + 1);
                let change = put(expected, version, counter("n", "x", used + 1));
                match store.write(&counters(vec![change])).await {
                    Ok(()) => done += 1,
                    Err(WriteError::Conflict) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(read_counter(&store, "x").await.unwrap().value.used(Time::MIN), WRITERS * EACH);
}

pub async fn large_change_sets_are_whole(place: &Place) {
    let store = place.open().await;
    let big = |n: i64| {
        let mut reservation = Reservation::clone(&reservation("n", &format!("r{n}")));
        reservation.history[0].reason = "x".repeat(24_000);
        put(None, 1, Arc::new(reservation))
    };
    let changes = ChangeSet {
        counters: (0..500).map(|n| put(None, 1, counter("n", &n.to_string(), n))).collect(),
        ..reservations((0..1000).map(big).collect())
    };
    assert_eq!(store.write(&changes).await, Ok(()));
    let keys = Keys {
        reservations: (0..1000).map(|n| ReservationKey::new("n", &format!("r{n}"))).collect(),
        counters: (0..500).map(|n| counter_id("n", &n.to_string())).collect(),
        ..Keys::default()
    };
    let loaded = store.load(&keys).await.unwrap();
    assert!(loaded.reservations.values().all(Option::is_some));
    assert_eq!(loaded.reservations.len(), 1000);
    assert!(loaded.counters.values().all(Option::is_some));
    assert_eq!(loaded.counters.len(), 500);
}

pub async fn pages_are_complete_and_in_order(place: &Place) {
    let store = place.open().await;
    let changes = ChangeSet {
        counters: (0..25).map(|n| put(None, 1, counter("n", &format!("{n:02}"), n))).collect(),
        ..reservations(
            (0..25).map(|n| put(None, 1, reservation("n", &format!("{n:02}")))).collect(),
        )
    };
    store.write(&changes).await.unwrap();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.reservations_after(after.as_deref(), 10).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.key.as_str().to_owned());
        found.extend(page.iter().map(|reservation| reservation.key.id().into_owned()));
    }
    let expected: Vec<String> = (0..25).map(|n| format!("{n:02}")).collect();
    assert_eq!(found, expected);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.counters_after(after.as_deref(), 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id.text.clone());
        found.extend(page.into_iter().map(|counter| counter.used(Time::MIN)));
    }
    assert_eq!(found, (0..25).collect::<Vec<_>>());
}

pub async fn a_read_after_a_write_sees_it(place: &Place) {
    let store = place.open().await;
    let before = store.now();
    assert!(before > at(1_600_000_000_000) && before < Time::MAX);
    let mut expected = None;
    for n in 1..=30 {
        let change = put(expected, n, counter("n", "x", n));
        store.write(&counters(vec![change])).await.unwrap();
        assert_eq!(read_counter(&store, "x").await.unwrap().value.used(Time::MIN), n);
        expected = Some(n);
    }
    assert_eq!(store.ping().await, Ok(()));
    assert!(store.now() >= before);
}

pub async fn a_value_is_swapped_only_for_the_one_expected(place: &Place) {
    let store = place.open().await;
    assert_eq!(store.value("a").await, Ok(None));
    assert_eq!(store.swap("a", Some(1), 2).await, Ok(false), "it was never set");
    assert_eq!(store.swap("a", None, i64::MIN).await, Ok(true));
    assert_eq!(store.swap("a", None, 2).await, Ok(false), "it is set already");
    assert_eq!(store.value("a").await, Ok(Some(i64::MIN)));
    assert_eq!(store.swap("a", Some(0), 2).await, Ok(false));
    assert_eq!(store.swap("a", Some(i64::MIN), i64::MAX).await, Ok(true));
    assert_eq!(store.swap("a", Some(i64::MAX), i64::MAX).await, Ok(true), "the same again");
    assert_eq!(store.value("a").await, Ok(Some(i64::MAX)));
    assert_eq!(store.value("b").await, Ok(None), "names keep apart");
    assert_eq!(store.swap("b", None, 0).await, Ok(true));
    assert_eq!(store.value("a").await, Ok(Some(i64::MAX)));
}

pub async fn of_many_swaps_from_one_value_one_wins(place: &Place) {
    let store = place.open().await;
    let mut present = None;
    for round in 0..10 {
        let swaps = (0..8).map(|n| {
            let store = Arc::clone(&store);
            let new = round * 8 + n;
            tokio::spawn(async move { (new, store.swap("a", present, new).await.unwrap()) })
        });
        let mut won = Vec::new();
        for swap in swaps.collect::<Vec<_>>() {
            let (new, swapped) = swap.await.unwrap();
            won.extend(swapped.then_some(new));
        }
        assert_eq!(won.len(), 1, "round {round}");
        present = store.value("a").await.unwrap();
        assert_eq!(present, Some(won[0]));
    }
}

pub async fn records_survive_a_restart(place: &Place) {
    let store = place.open().await;
    let changes = ChangeSet {
        counters: vec![put(None, 8, counter("n", "x", 7))],
        resources: vec![bind("n", "post/1", "r")],
        subjects: vec![put(None, 9, subject("n", "42")), put(None, 9, subject("n", "gone"))],
        policies: vec![policy("n", 1), policy("n", 2)],
        events: vec![event("n")],
        ..reservations(vec![put(None, 5, reservation("n", "r"))])
    };
    store.write(&changes).await.unwrap();
    store.write(&counters(vec![put(Some(8), 9, counter("n", "x", 8))])).await.unwrap();
    assert_eq!(store.swap("a", None, -7).await, Ok(true));
    let removed = ChangeSet { removed_subjects: vec![remove("gone", 9)], ..ChangeSet::default() };
    store.write(&removed).await.unwrap();
    store.close().await;
    drop(store);

    let store = place.open().await;
    assert_eq!(
        read_counter(&store, "x").await.unwrap(),
        Versioned { version: 9, value: counter("n", "x", 8) }
    );
    assert_eq!(read_reservation(&store, "r").await.unwrap().value, reservation("n", "r"));
    assert_eq!(owner(&store, "post/1").await, Some(ReservationKey::new("n", "r")));
    assert_eq!(read_subject(&store, "42").await.unwrap().value, subject("n", "42"));
    assert_eq!(read_subject(&store, "gone").await, None);
    assert_eq!(store.policy_head("n").await, Ok(Some(2)));
    assert_eq!(store.value("a").await, Ok(Some(-7)));
    let stale = counters(vec![put(Some(8), 9, counter("n", "x", 9))]);
    assert_eq!(store.write(&stale).await, Err(WriteError::Conflict), "guards survive too");
    let again = reservations(vec![put(None, 1, reservation("n", "r"))]);
    assert_eq!(store.write(&again).await, Err(WriteError::Exists));
    store.close().await;
}
