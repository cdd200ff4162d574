//! Events and refusals: all that are asked for, newest first, and no others.

use quota_authority::domain::event::{Event, EventKind, RefusalRecord};
use quota_authority::domain::policy::Bound;
use quota_authority::domain::reservation::ItemRequest;
use quota_authority::domain::status::LimitStatus;
use quota_authority::store::{ChangeSet, SharedStore, TrailFilter, TrailPlace};

use crate::Place;
use crate::records::{at, dimensions, event, windowed};

/// When the events and refusals of these tests begin.
const START: i64 = 1_700_000_000_000;
/// How many refusals a store keeps that counts them.
const REFUSALS_KEPT: usize = 10_000;

fn of(namespace: &str) -> TrailFilter {
    TrailFilter { namespace: namespace.to_owned(), ..TrailFilter::default() }
}

/// Where limits with windows of every kind stand.
fn limits(namespace: &str) -> Vec<LimitStatus> {
    let status = |(n, [counter, _]): (i64, [quota_authority::domain::counter::Counter; 2])| {
        let bound = if n % 2 == 0 { Bound::Unlimited } else { Bound::AtMost(n) };
        let status = LimitStatus::at_rest(&counter, bound, n > 0, at(START));
        LimitStatus { requested: 7, exceeded: n > 0, retry_time: (n > 0).then(|| at(n)), ..status }
    };
    (0..).zip(windowed(namespace)).map(status).collect()
}

fn refusal(namespace: &str, n: i64) -> RefusalRecord {
    RefusalRecord {
        namespace: namespace.to_owned(),
        time: at(START + n),
        principal: "somebody".to_owned(),
        reservation_id: format!("r/{n}"),
        call: "reserve".to_owned(),
        reason: "QUOTA_EXCEEDED".to_owned(),
        items: vec![ItemRequest {
            metric: "m.$".to_owned(),
            amount: i64::MAX,
            dimensions: dimensions(&[("$user.id", "a.b"), ("n", &n.to_string())]),
        }],
        limits: Vec::new(),
        message: "no room".to_owned(),
        details: dimensions(&[("limit", "l.$/")]),
    }
}

async fn write(store: &SharedStore, events: Vec<Event>) {
    store.write(&ChangeSet { events, ..ChangeSet::default() }).await.unwrap();
}

/// All events that are meant, read in pages of that size.
async fn events(store: &SharedStore, filter: &TrailFilter, size: usize) -> Vec<Event> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = store.events_before(filter, before.as_ref(), size).await.unwrap();
        assert!(page.len() <= size);
        let Some(last) = page.last() else { return found };
        before = Some(TrailPlace { time: last.value.time, id: last.id.clone() });
        found.extend(page.into_iter().map(|kept| kept.value));
    }
}

/// The same of refusals.
async fn refusals(store: &SharedStore, filter: &TrailFilter, size: usize) -> Vec<RefusalRecord> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = store.refusals_before(filter, before.as_ref(), size).await.unwrap();
        assert!(page.len() <= size);
        let Some(last) = page.last() else { return found };
        before = Some(TrailPlace { time: last.value.time, id: last.id.clone() });
        found.extend(page.into_iter().map(|kept| kept.value));
    }
}

pub async fn events_read_back_as_written(place: &Place) {
    let store = place.open().await;
    let kinds = [
        EventKind::PolicyApplied,
        EventKind::SubjectPut,
        EventKind::SubjectDeleted,
        EventKind::Repaired,
        EventKind::GrantUndone,
    ];
    let written: Vec<Event> = (0..)
        .zip(kinds)
        .map(|(n, kind)| Event {
            time: at(START - n),
            kind,
            reason: "be cause".to_owned(),
            reservation_id: "r/$".to_owned(),
            subject: "user.$/a/b".to_owned(),
            limits: limits("n"),
            purge_at: (n % 2 == 0).then_some(at(4_000_000_000_000)),
            ..event("n")
        })
        .collect();
    write(&store, written.clone()).await;
    assert_eq!(events(&store, &of("n"), 10).await, written);
    write(&store, vec![event("n")]).await;
    assert_eq!(events(&store, &of("n"), 10).await.len(), 6);
}

pub async fn events_are_listed_newest_first(place: &Place) {
    let store = place.open().await;
    let namespaces = ["x", "xy", "x/y", "x%", "x0"];
    // Several of one millisecond, and they do not come in order.
    let mut written = Vec::new();
    for n in [5, 3, 9, 3, 1, 9, 7, 3] {
        let of = |namespace: &&str| Event {
            time: at(START + n),
            subject: format!("user/{}", n % 2),
            reservation_id: if n == 3 { "r".to_owned() } else { String::new() },
            details: dimensions(&[("n", &written.len().to_string())]),
            ..event(namespace)
        };
        let more: Vec<Event> = namespaces.iter().map(of).collect();
        write(&store, more.clone()).await;
        written.extend(more);
    }
    let all = events(&store, &of("x"), 1000).await;
    let times: Vec<i64> = all.iter().map(|event| event.time.as_millis() - START).collect();
    assert_eq!(times, [9, 9, 7, 5, 3, 3, 3, 1]);
    for size in 1..10 {
        assert_eq!(events(&store, &of("x"), size).await, all, "in pages of {size}");
    }
    let mut each: Vec<&str> = all.iter().map(|event| event.details["n"].as_str()).collect();
    each.sort_unstable();
    each.dedup();
    assert_eq!(each.len(), all.len(), "none comes twice");
    for filter in [
        TrailFilter { subject: Some("user/1".to_owned()), ..of("x/y") },
        TrailFilter { subject: Some("user/0".to_owned()), ..of("x") },
        TrailFilter { reservation_id: Some("r".to_owned()), ..of("x%") },
        TrailFilter { from: Some(at(START + 3)), ..of("x") },
        TrailFilter { until: Some(at(START + 3)), ..of("x") },
        TrailFilter { from: Some(at(START + 3)), until: Some(at(START + 9)), ..of("xy") },
        TrailFilter { from: Some(at(START + 9)), until: Some(at(START + 3)), ..of("xy") },
        TrailFilter { from: Some(at(START + 10)), ..of("x") },
        of("y"),
    ] {
        let meant = |event: &&Event| {
            event.namespace == filter.namespace
                && filter.subject.as_ref().is_none_or(|subject| *subject == event.subject)
                && filter.reservation_id.as_ref().is_none_or(|id| *id == event.reservation_id)
                && filter.from.is_none_or(|from| event.time >= from)
                && filter.until.is_none_or(|until| event.time < until)
        };
        let count = written.iter().filter(meant).count();
        for size in [1, 2, 1000] {
            let found = events(&store, &filter, size).await;
            assert!(found.iter().all(|event| meant(&event)), "{filter:?}");
            assert_eq!(found.len(), count, "{filter:?} in pages of {size}");
            assert!(found.is_sorted_by(|one, next| one.time >= next.time));
        }
    }
    assert_eq!(store.events_before(&of("x"), None, 0).await.unwrap(), []);
    let all_of_them = TrailPlace { time: at(START + 9), id: String::new() };
    let older = store.events_before(&of("x"), Some(&all_of_them), 10).await.unwrap();
    assert_eq!(older.len(), 6, "an empty id comes before all others");
}

pub async fn refusals_read_back_as_noted(place: &Place) {
    let store = place.open().await;
    assert_eq!(refusals(&store, &of("n"), 10).await, []);
    store.note_refusals(&[]).await.unwrap();
    let full = RefusalRecord { limits: limits("n"), ..refusal("n", 2) };
    let bare = RefusalRecord {
        items: Vec::new(),
        details: dimensions(&[]),
        call: "commit".to_owned(),
        ..refusal("n", 1)
    };
    store.note_refusals(&[bare.clone(), full.clone(), refusal("other", 3)]).await.unwrap();
    assert_eq!(refusals(&store, &of("n"), 10).await, [full, bare]);
}

pub async fn refusals_are_listed_newest_first(place: &Place) {
    let store = place.open().await;
    let mut noted = Vec::new();
    for part in [[4, 1, 4, 9], [2, 9, 0, 4]] {
        let of = |namespace| part.map(|n| refusal(namespace, n));
        for namespace in ["x", "x/y", "xy"] {
            store.note_refusals(&of(namespace)).await.unwrap();
        }
        noted.extend(of("x"));
    }
    let all = refusals(&store, &of("x"), 1000).await;
    noted.sort_by_key(|refused| std::cmp::Reverse(refused.time));
    assert_eq!(all, noted);
    for size in 1..9 {
        assert_eq!(refusals(&store, &of("x"), size).await, all, "in pages of {size}");
    }
    let filter = TrailFilter { reservation_id: Some("r/4".to_owned()), ..of("x/y") };
    assert_eq!(refusals(&store, &filter, 2).await, [4, 4, 4].map(|n| refusal("x/y", n)));
    let filter = TrailFilter { from: Some(at(START + 1)), until: Some(at(START + 4)), ..of("xy") };
    assert_eq!(refusals(&store, &filter, 2).await, [2, 1].map(|n| refusal("xy", n)));
    let named = async |subject: &str| {
        let filter = TrailFilter { subject: Some(subject.to_owned()), ..of("x") };
        refusals(&store, &filter, 3).await.len()
    };
    assert_eq!(named("n/9").await, 2);
    assert_eq!(named("$user.id/a.b").await, 8);
    for other in ["", "n", "n/", "n/99", "/9", "user/a.b", "$user.id/n/9"] {
        assert_eq!(named(other).await, 0, "{other:?}");
    }
}

/// Of stores that keep so many refusals. One that keeps so many bytes of them
/// is exempt.
pub async fn the_oldest_refusals_make_room(place: &Place) {
    let store = place.open().await;
    let count = i64::try_from(REFUSALS_KEPT).unwrap() + 500;
    let all: Vec<RefusalRecord> = (0..count).map(|n| refusal("n", n)).collect();
    for part in all.chunks(256) {
        store.note_refusals(part).await.unwrap();
    }
    let kept = refusals(&store, &of("n"), 1000).await;
    assert_eq!(kept.len(), REFUSALS_KEPT);
    assert_eq!(
        (&kept[0], &kept[REFUSALS_KEPT - 1]),
        (&refusal("n", count - 1), &refusal("n", 500))
    );
}

pub async fn the_trail_survives_a_restart(place: &Place) {
    let store = place.open().await;
    write(&store, vec![event("n"), Event { time: at(START + 5), ..event("n") }]).await;
    store.note_refusals(&[refusal("n", 1), refusal("n", 2)]).await.unwrap();
    let written = events(&store, &of("n"), 10).await;
    store.close().await;
    drop(store);
    let store = place.open().await;
    assert_eq!(events(&store, &of("n"), 10).await, written);
    assert_eq!(refusals(&store, &of("n"), 10).await, [2, 1].map(|n| refusal("n", n)));
    store.note_refusals(&[refusal("n", 3)]).await.unwrap();
    write(&store, vec![event("n")]).await;
    assert_eq!(events(&store, &of("n"), 1).await.len(), 3);
    assert_eq!(refusals(&store, &of("n"), 1).await.len(), 3);
}
