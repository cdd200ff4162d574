//! What is charged to counters, as of one moment; and listings by index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quota_authority::domain::counter::{Counter, CounterId, Used};
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::reservation::{Charge, Reservation};
use quota_authority::domain::time::{Span, Time};
use quota_authority::domain::window::{Rolling, Window};
use quota_authority::store::{
    Change, ChangeSet, Charged, CounterFilter, CounterPlace, Extent, Removal, ReservationFilter,
    SharedStore, Versioned, Windows, WriteError,
};

use crate::Place;
use crate::records::{at, counters, dimensions, put, reservation, reservations, settled};

const START: i64 = 1_700_000_000_000;

fn id(limit: &str, generation: i64, key: &str, window: Window) -> Arc<CounterId> {
    Arc::new(CounterId::new("n", limit, "m", generation, dimensions(&[("k", key)]), window))
}

fn lifetime(key: &str) -> Arc<CounterId> {
    id("l", 1, key, Window::Lifetime)
}

fn period(key: &str, start: i64, end: i64) -> Arc<CounterId> {
    id("l", 1, key, Window::Period { start: at(start), end: at(end) })
}

/// A reservation that is made, and runs out, so many milliseconds after the
/// start.
fn taken(
    namespace: &str,
    name: &str,
    made: i64,
    until: i64,
    ids: &[&Arc<CounterId>],
) -> Arc<Reservation> {
    let mut taken = Reservation::clone(&reservation(namespace, name));
    let charge = |id: &&Arc<CounterId>| Charge {
        counter: Arc::clone(id),
        ..taken.charges.first().cloned().unwrap()
    };
    taken.charges = ids.iter().map(charge).collect();
    taken.create_time = at(START + made);
    taken.expire_time = at(START + until);
    Arc::new(taken)
}

/// A counter with these holds, by milliseconds after the start.
fn holding(id: &Arc<CounterId>, used: i64, holds: &[(i64, i64)]) -> Counter {
    let holds = holds.iter().map(|(until, units)| (at(START + until), *units)).collect();
    Counter {
        id: Arc::clone(id),
        used: Used::Total(used),
        holds,
        as_of: at(START),
        token: 1,
        first_end: None,
    }
}

type Found = HashMap<Arc<CounterId>, Option<Versioned<Counter>>>;

/// Counters, and the names of reservations in the order they were shown.
async fn look(
    store: &SharedStore,
    ids: &[&Arc<CounterId>],
    held_after: Option<i64>,
) -> (Found, Vec<String>) {
    let ids: Vec<_> = ids.iter().map(|id| Arc::clone(id)).collect();
    let (mut found, mut names) = (None, Vec::new());
    let mut visit = |shown| {
        match shown {
            Charged::Counters(counters) => {
                found = Some(counters);
                names.clear();
            }
            Charged::Reservation(reservation) => {
                assert!(found.is_some(), "the counters come first");
                names.push(reservation.key.id().into_owned());
            }
        }
        ControlFlow::Continue(())
    };
    let held_after = held_after.map(|after| at(START + after));
    store.charged(&ids, held_after, &mut visit).await.unwrap();
    (found.expect("the counters are shown"), names)
}

pub async fn what_is_charged_is_shown_once_after_its_counters(place: &Place) {
    let store = place.open().await;
    let [x, y, z, none] = ["x", "y", "z/%", "none"].map(lifetime);
    let changes = ChangeSet {
        counters: vec![
            put(None, 7, holding(&x, 1, &[])),
            put(None, 8, holding(&y, 2, &[])),
            put(None, 9, holding(&z, 3, &[])),
        ],
        ..reservations(vec![
            put(None, 1, taken("n", "a", 0, 10, &[&x])),
            put(None, 1, settled(taken("n", "b", 1, 10, &[&x, &y]))),
            put(None, 1, taken("n", "c", 2, 5, &[&y, &z])),
            put(None, 1, taken("n", "d", 3, 10, &[&z])),
        ])
    };
    store.write(&changes).await.unwrap();
    let names = async |ids: &[&Arc<CounterId>]| {
        let (_, mut names) = look(&store, ids, None).await;
        names.sort();
        names.concat()
    };
    assert_eq!(names(&[&x]).await, "ab");
    assert_eq!(names(&[&x, &y]).await, "abc");
    assert_eq!(names(&[&z, &y, &x]).await, "abcd");
    assert_eq!(names(&[&none]).await, "");
    assert_eq!(names(&[]).await, "");
    let (found, _) = look(&store, &[&x, &none], None).await;
    assert_eq!(found[&x], Some(Versioned { version: 7, value: holding(&x, 1, &[]) }));
    assert_eq!((found[&none].as_ref(), found.len()), (None, 2));
}

pub async fn live_holds_are_shown_soonest_first(place: &Place) {
    let store = place.open().await;
    let [x, y] = ["x", "y"].map(lifetime);
    let hold = |name, until, ids: &[&Arc<CounterId>]| taken("n", name, 0, until, ids);
    let changes = ChangeSet {
        counters: vec![
            put(None, 1, holding(&x, 0, &[(100, 3), (200, 1), (300, 2)])),
            put(None, 1, holding(&y, 0, &[(100, 1), (250, 1)])),
        ],
        ..reservations(vec![
            put(None, 1, hold("late", 300, &[&x])),
            put(None, 1, hold("both", 100, &[&x, &y])),
            put(None, 1, hold("y", 250, &[&y])),
            put(None, 1, hold("extended", 100, &[&x])),
            put(None, 1, hold("settled", 200, &[&x])),
        ])
    };
    store.write(&changes).await.unwrap();
    assert_eq!(look(&store, &[&y], Some(0)).await.1, ["both", "y"]);
    let changes = ChangeSet {
        counters: vec![put(Some(1), 2, holding(&x, 1, &[(100, 1), (260, 1), (300, 1)]))],
        ..reservations(vec![
            Change { extent: Extent::Instants, ..put(Some(1), 2, hold("extended", 260, &[&x])) },
            put(Some(1), 2, settled(hold("settled", 200, &[&x]))),
        ])
    };
    store.write(&changes).await.unwrap();
    let both = [&x, &y];
    assert_eq!(look(&store, &both, Some(0)).await.1, ["both", "y", "extended", "late"]);
    // What ends at the instant is over.
    assert_eq!(look(&store, &both, Some(99)).await.1.len(), 4);
    assert_eq!(look(&store, &both, Some(100)).await.1, ["y", "extended", "late"]);
    assert_eq!(look(&store, &both, Some(260)).await.1, ["late"]);
    assert_eq!(look(&store, &both, Some(300)).await.1, [""; 0]);
    assert_eq!(look(&store, &[&x], Some(0)).await.1, ["both", "extended", "late"]);
    assert_eq!(look(&store, &both, None).await.1.len(), 5);
}

pub async fn a_visitor_may_break_off(place: &Place) {
    let store = place.open().await;
    let x = lifetime("x");
    let many = (0..2000).map(|n| put(None, 1, taken("n", &n.to_string(), n, 9000, &[&x])));
    let counters = vec![put(None, 1, holding(&x, 0, &[(9000, 2000)]))];
    store.write(&ChangeSet { counters, ..reservations(many.collect()) }).await.unwrap();
    for enough in [0, 1, 700, 2000] {
        for held_after in [None, Some(at(START))] {
            let mut seen = 0;
            let mut visit = |shown| {
                seen += usize::from(matches!(shown, Charged::Reservation(_)));
                if seen == enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            store.charged(&[Arc::clone(&x)], held_after, &mut visit).await.unwrap();
            assert_eq!(seen, enough);
        }
    }
}

/// Each write makes as many reservations as it counts, and settles others: a
/// look that saw counters and reservations of two moments would not add up.
pub async fn counters_and_what_is_charged_to_them_are_of_one_moment(place: &Place) {
    let store = place.open().await;
    let ids = ["x", "y"].map(lifetime);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = (0..2).map(|writer: usize| {
        let (store, stop, ids) = (Arc::clone(&store), Arc::clone(&stop), ids.clone());
        tokio::spawn(async move {
            let own = &ids[writer];
            let mut version = None;
            let mut held: BTreeMap<i64, i64> = BTreeMap::new();
            let mut open: Vec<Arc<Reservation>> = Vec::new();
            for n in 0..2000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut changes = Vec::new();
                let most = usize::try_from(n % 60).unwrap();
                for done in open.split_off(most.min(open.len())) {
                    *held.entry(done.expire_time.as_millis() - START).or_default() -= 1;
                    changes.push(put(Some(1), 2, settled(done)));
                }
                for m in 0..=n % 4 {
                    let until = 1000 + n % 7;
                    let new = taken("n", &format!("{writer}-{n}-{m}"), n, until, &[own]);
                    *held.entry(until).or_default() += 1;
                    open.push(Arc::clone(&new));
                    changes.push(put(None, 1, new));
                }
                held.retain(|_, units| *units > 0);
                let holds: Vec<_> = held.iter().map(|(at, units)| (*at, *units)).collect();
                let next = version.map_or(1, |version| version + 1);
                let counters = vec![put(version, next, holding(own, 0, &holds))];
                match store.write(&ChangeSet { counters, ..reservations(changes) }).await {
                    Ok(()) => version = Some(next),
                    Err(WriteError::Conflict) => panic!("nobody else writes"),
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let (mut largest, mut round) = (0, 0);
    while round < 60 || largest < 60 {
        round += 1;
        let wanted: Vec<&Arc<CounterId>> = ids.iter().collect();
        let (found, names) = look(&store, &wanted, Some(0)).await;
        let held: i64 = found.values().flatten().map(|row| row.value.held(at(START))).sum();
        let distinct: BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "each once");
        assert_eq!(i64::try_from(names.len()).unwrap(), held, "in round {round}");
        largest = largest.max(held);
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
}

pub async fn what_is_charged_includes_all_that_was_written_before(place: &Place) {
    let store = place.open().await;
    let x = lifetime("x");
    for n in 0..30 {
        let made = put(None, 1, taken("n", &format!("{n:02}"), n, 900, &[&x]));
        let version = (n > 0).then_some(n);
        let counters = vec![put(version, n + 1, holding(&x, 0, &[(900, n + 1)]))];
        store.write(&ChangeSet { counters, ..reservations(vec![made]) }).await.unwrap();
        for held_after in [None, Some(0)] {
            let (found, names) = look(&store, &[&x], held_after).await;
            assert_eq!(i64::try_from(names.len()).unwrap(), n + 1);
            assert_eq!(found[&x].as_ref().unwrap().version, n + 1);
        }
    }
}

/// Ids of all that are meant, read in pages of that size.
async fn list(store: &SharedStore, filter: &ReservationFilter, size: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut before: Option<(Time, ReservationKey)> = None;
    loop {
        let place = before.as_ref().map(|(time, key)| (*time, key));
        let page = store.reservations_before(filter, place, size).await.unwrap();
        assert!(page.len() <= size);
        let Some(last) = page.last() else { return found };
        before = Some((last.create_time, last.key.clone()));
        found.extend(page.iter().map(|reservation| reservation.key.id().into_owned()));
    }
}

/// Reservations in two namespaces, a few in each millisecond, charged to none,
/// one or two of three series in several windows.
fn many() -> Vec<Arc<Reservation>> {
    let mut chance = fastrand::Rng::with_seed(7);
    let mut all = Vec::new();
    for n in 0..400 {
        let namespace = if n % 9 == 0 { "n/x" } else { "n" };
        let of = |key: &str, window: i64| {
            let (start, end) = (START + window * 100, START + window * 100 + 100);
            let window = Window::Period { start: at(start), end: at(end) };
            let key = dimensions(&[("k", key)]);
            Arc::new(CounterId::new(namespace, "l", "m", 1, key, window))
        };
        let keys = ["x", "y", "x/y"].into_iter().filter(|_| chance.bool());
        let ids: Vec<_> = keys.map(|key| of(key, n / 50)).collect();
        let made = chance.i64(0..90);
        let name = format!("{:03}", chance.u32(0..1000) * 1000 + u32::try_from(n).unwrap());
        let reservation = taken(namespace, &name, made, made + 60, &ids.iter().collect::<Vec<_>>());
        all.push(if chance.bool() { settled(reservation) } else { reservation });
    }
    all
}

async fn write_all(store: &SharedStore, all: &[Arc<Reservation>]) {
    for part in all.chunks(50) {
        let made = part.iter().map(|r| put(None, 1, Arc::clone(r))).collect();
        store.write(&reservations(made)).await.unwrap();
    }
}

async fn listed_as_expected(store: &SharedStore, all: &[Arc<Reservation>]) {
    let series = |keys: &[&str]| -> Vec<String> {
        keys.iter().map(|key| period(key, 0, 1).series().to_owned()).collect()
    };
    let time = |n: Option<i64>| n.map(|n| at(START + n));
    for keys in [&[][..], &["x"], &["x/y"], &["y", "x"], &["x", "y", "x/y", "z"], &["z"]] {
        for (from, until) in [
            (None, None),
            (Some(20), Some(70)),
            (None, Some(20)),
            (Some(70), None),
            (Some(50), Some(50)),
        ] {
            let filter = ReservationFilter {
                namespace: "n".to_owned(),
                series: series(keys),
                created_from: time(from),
                created_until: time(until),
            };
            let meant = |r: &&Arc<Reservation>| {
                let charged = |charge: &Charge| {
                    filter.series.iter().any(|series| series == charge.counter.series())
                };
                r.key.namespace() == "n"
                    && (filter.series.is_empty() || r.charges.iter().any(charged))
                    && filter.created_from.is_none_or(|from| r.create_time >= from)
                    && filter.created_until.is_none_or(|until| r.create_time < until)
            };
            let mut expected: Vec<_> = all.iter().filter(meant).collect();
            expected.sort_by_key(|r| std::cmp::Reverse((r.create_time, r.key.clone())));
            let expected: Vec<_> = expected.iter().map(|r| r.key.id().into_owned()).collect();
            for size in [1, 7, 1000] {
                if size == 1 && expected.len() > 100 {
                    continue;
                }
                assert_eq!(list(store, &filter, size).await, expected, "{filter:?}");
            }
        }
    }
}

pub async fn reservations_are_listed_newest_first(place: &Place) {
    let store = place.open().await;
    let all = many();
    write_all(&store, &all).await;
    listed_as_expected(&store, &all).await;
    // One behind the place, and one before it that has gone from there.
    let filter = ReservationFilter { namespace: "n".to_owned(), ..ReservationFilter::default() };
    let place = ReservationKey::new("n", "555");
    let page = store.reservations_before(&filter, Some((at(START + 40), &place)), 1000).await;
    let page = page.unwrap();
    assert!(page.iter().all(|r| (r.create_time, &r.key) < (at(START + 40), &place)));
    let later = taken("n", "new", 95, 100, &[]);
    write_all(&store, &[later]).await;
    let again = store.reservations_before(&filter, Some((at(START + 40), &place)), 1000).await;
    assert_eq!(again.unwrap(), page);
}

pub async fn a_reservation_that_is_made_anew_is_listed_where_it_belongs(place: &Place) {
    let store = place.open().await;
    let [x, y] = ["x", "y"].map(lifetime);
    let old = taken("n", "r", 5, 50, &[&x]);
    store.write(&reservations(vec![put(None, 1, old)])).await.unwrap();
    let new = taken("n", "r", 5, 50, &[&y]);
    let made = Change { extent: Extent::Whole, ..put(Some(1), 2, Arc::clone(&new)) };
    store.write(&reservations(vec![made])).await.unwrap();
    let of = |series: &[&Arc<CounterId>]| ReservationFilter {
        namespace: "n".to_owned(),
        series: series.iter().map(|id| id.series().to_owned()).collect(),
        ..ReservationFilter::default()
    };
    let found = store.reservations_before(&of(&[]), None, 9).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].charges, new.charges);
    assert_eq!(list(&store, &of(&[&x]), 9).await, [""; 0]);
    assert_eq!(list(&store, &of(&[&y]), 9).await, ["r"]);
    assert_eq!(look(&store, &[&x], None).await.1, [""; 0]);
    assert_eq!(look(&store, &[&y], None).await.1, ["r"]);
    // One that is taken back, and comes again later.
    let removed_reservations = vec![Removal { key: new.key.clone(), expected: 2 }];
    store.write(&ChangeSet { removed_reservations, ..ChangeSet::default() }).await.unwrap();
    assert_eq!(list(&store, &of(&[]), 9).await, [""; 0]);
    assert_eq!(look(&store, &[&y], None).await.1, [""; 0]);
    let later = taken("n", "r", 7, 60, &[&x]);
    let holds = vec![put(None, 1, holding(&x, 0, &[(60, 1)]))];
    let made = reservations(vec![put(None, 3, Arc::clone(&later))]);
    store.write(&ChangeSet { counters: holds, ..made }).await.unwrap();
    assert_eq!(store.reservations_before(&of(&[&x]), None, 9).await.unwrap(), [later]);
    assert_eq!(look(&store, &[&x, &y], Some(0)).await.1, ["r"]);
}

pub async fn listings_survive_a_restart(place: &Place) {
    let store = place.open().await;
    let all = many();
    write_all(&store, &all).await;
    let key = dimensions(&[("k", "x")]);
    let x = Arc::new(CounterId::new("m", "l", "m", 1, key, Window::Lifetime));
    let hold = taken("m", "h", 0, 500, &[&x]);
    let done = settled(taken("m", "d", 0, 400, &[&x]));
    let holds = vec![put(None, 1, holding(&x, 0, &[(500, 1)]))];
    let made = reservations(vec![put(None, 1, hold), put(None, 1, done)]);
    store.write(&ChangeSet { counters: holds, ..made }).await.unwrap();
    windows_of(&store).await;
    store.close().await;
    drop(store);
    let store = place.open().await;
    listed_as_expected(&store, &all).await;
    assert_eq!(look(&store, &[&x], Some(0)).await.1, ["h"]);
    assert_eq!(look(&store, &[&x], None).await.1.len(), 2);
    listed_by_window(&store).await;
    store.close().await;
}

/// Counters of one limit in windows of every kind, and others beside them.
async fn windows_of(store: &SharedStore) {
    let billing = |key: &str, end| {
        id("w", 3, key, Window::Billing { id: "p".into(), start: at(START), end: at(START + end) })
    };
    let window = |limit: &str, generation, key: &str, end| {
        let (start, end) = (at(START + end - 100), at(START + end));
        id(limit, generation, key, Window::Period { start, end })
    };
    let rolling = Window::Rolling(Rolling::new(Span::from_secs(60), 60));
    let mut ids = vec![
        id("w", 3, "forever", Window::Lifetime),
        id("w", 3, "rolls", rolling),
        billing("b", 150),
    ];
    for key in ["a", "a/b", "c"] {
        for end in [100, 200, 300] {
            ids.extend([window("w", 3, key, end), window("w", 2, key, end)]);
            ids.extend([window("w", 31, key, end), window("w2", 3, key, end)]);
        }
    }
    let made = ids.into_iter().map(|id| put(None, 1, Counter::new(id)));
    store.write(&counters(made.collect())).await.unwrap();
    let corrected = Counter::new(billing("b", 250));
    store.write(&counters(vec![put(Some(1), 2, corrected)])).await.unwrap();
}

async fn listed_by_window(store: &SharedStore) {
    let list = async |windows: Windows, size: usize| {
        let (namespace, limit) = ("n".to_owned(), "w".to_owned());
        let filter = CounterFilter { namespace, limit, generation: 3, windows };
        let (mut found, mut after) = (Vec::new(), None::<CounterPlace>);
        loop {
            let page = store.counters_of(&filter, after.as_ref(), size).await.unwrap();
            assert!(page.len() <= size);
            let Some(last) = page.last() else { return found.join(" ") };
            let end = last.id.window.end();
            after = Some(CounterPlace { end, text: last.id.text.clone() });
            found.extend(page.iter().map(|counter| {
                let end = counter.id.window.end().map(|end| end.since(at(START)).as_millis());
                let key = &counter.id.key["k"];
                end.map_or(key.clone(), |end| format!("{key}@{end}"))
            }));
        }
    };
    let of = |end: i64| Windows::EndingAt(at(START + end));
    let later = |end: i64| Windows::EndingAfter(at(START + end));
    for size in [1, 2, 100] {
        assert_eq!(list(Windows::Endless, size).await, "forever rolls");
        assert_eq!(list(of(200), size).await, "a%2Fb@200 a@200 c@200".replace("%2F", "/"));
        assert_eq!(list(of(250), size).await, "b@250");
        assert_eq!(list(of(150), size).await, "", "it was corrected");
        let expected = "forever rolls b@250 a/b@300 a@300 c@300";
        assert_eq!(list(later(200), size).await, expected);
        assert_eq!(list(later(199), size).await.split(' ').count(), 9);
        assert_eq!(list(later(300), size).await, "forever rolls");
    }
}

pub async fn counters_are_listed_by_the_end_of_their_windows(place: &Place) {
    let store = place.open().await;
    windows_of(&store).await;
    listed_by_window(&store).await;
}
