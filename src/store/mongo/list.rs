//! Listings, each read along an index that has its order: a page costs what it
//! shows, wherever in a million records it lies.
//!
//! A page begins behind a place of two parts. MongoDB would look at everything
//! that has the same first part (all that was made within a millisecond, or
//! under a test clock that stands still), so the rest of that is asked for by
//! itself, and then what comes behind.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use futures_util::future::try_join_all;

use super::Collections;
use super::load::{collect, read};
use crate::domain::counter::Counter;
use crate::domain::name::ReservationKey;
use crate::domain::reservation::Reservation;
use crate::domain::time::Time;
use crate::store::StoreError;
use crate::store::document::{CounterDoc, ReservationDoc};
use crate::store::filter::{CounterFilter, CounterPlace, ReservationFilter, Windows};

/// The fields of an index, in order.
pub(super) struct Index(&'static [&'static str]);

impl Index {
    pub fn keys(&self) -> Document {
        self.0.iter().map(|field| ((*field).to_owned(), Bson::Int32(1))).collect()
    }
}

/// The last is for whatever is charged to a counter, and for its live holds,
/// which are known by when they expire.
pub(super) const RESERVATIONS: [Index; 3] = [
    Index(&["charges.series", "create_time", "_id"]),
    Index(&["namespace", "create_time", "_id"]),
    Index(&["charges.counter", "expire_time"]),
];
/// None of these fields changes once a counter exists, but for the end of a
/// billing period that is corrected.
pub(super) const COUNTERS: Index = Index(&["namespace", "limit", "window.end", "_id"]);

pub(super) async fn reservations_before(
    collections: &Collections,
    filter: &ReservationFilter,
    before: Option<(Time, &ReservationKey)>,
    limit: usize,
) -> Result<Vec<Arc<Reservation>>, StoreError> {
    // One listing each, for MongoDB might sort what it finds of several.
    let listings = match filter.series.as_slice() {
        [] => vec![doc! { "namespace": &filter.namespace }],
        series => series.iter().map(|series| doc! { "charges.series": series }).collect(),
    };
    let several = listings.len() > 1;
    let listings = listings.into_iter().map(|listing| {
        let queries = reservation_queries(&listing, filter, before);
        reservations_of(collections, queries, limit)
    });
    let mut found = try_join_all(listings).await?.concat();
    if several {
        found.sort_unstable_by(|one, other| {
            (other.create_time, &other.key).cmp(&(one.create_time, &one.key))
        });
        found.dedup_by(|one, other| one.key == other.key);
        found.truncate(limit);
    }
    Ok(found)
}

async fn reservations_of(
    collections: &Collections,
    queries: Vec<Document>,
    limit: usize,
) -> Result<Vec<Arc<Reservation>>, StoreError> {
    let mut found = Vec::new();
    for query in queries {
        let left = limit - found.len();
        if left == 0 {
            break;
        }
        let find = collections.reservations.find(query).sort(newest_first()).limit(number(left));
        for document in collect(find).await? {
            found.push(read::<ReservationDoc>(&document)?.record()?.value);
        }
    }
    Ok(found)
}

fn newest_first() -> Document {
    doc! { "create_time": -1, "_id": -1 }
}

/// What is asked for, one after the other.
fn reservation_queries(
    listing: &Document,
    filter: &ReservationFilter,
    before: Option<(Time, &ReservationKey)>,
) -> Vec<Document> {
    let mut created = doc! {};
    if let Some(from) = filter.created_from {
        created.insert("$gte", date(from));
    }
    let passed = |time: Time| {
        filter.created_from.is_some_and(|from| time < from)
            || filter.created_until.is_some_and(|until| time >= until)
    };
    let until = filter.created_until;
    let end = until.into_iter().chain(before.map(|(time, _)| time)).min();
    if let Some(end) = end {
        created.insert("$lt", date(end));
    }
    let mut queries = Vec::new();
    if let Some((time, key)) = before.filter(|(time, _)| !passed(*time)) {
        let mut same = listing.clone();
        same.insert("create_time", date(time));
        same.insert("_id", doc! { "$lt": key.as_str() });
        queries.push(same);
    }
    let mut rest = listing.clone();
    if !created.is_empty() {
        rest.insert("create_time", created);
    }
    queries.push(rest);
    queries
}

pub(super) async fn counters_of(
    collections: &Collections,
    filter: &CounterFilter,
    after: Option<&CounterPlace>,
    limit: usize,
) -> Result<Vec<Counter>, StoreError> {
    let mut found = Vec::new();
    for query in counter_queries(filter, after) {
        let left = limit - found.len();
        if left == 0 {
            break;
        }
        let order = doc! { "window.end": 1, "_id": 1 };
        let find = collections.counters.find(query).sort(order).limit(number(left));
        for document in collect(find).await? {
            found.push(read::<CounterDoc>(&document)?.record()?.value);
        }
    }
    Ok(found)
}

fn counter_queries(filter: &CounterFilter, after: Option<&CounterPlace>) -> Vec<Document> {
    let group = filter.group();
    // The digit 0 follows the slash: nothing else of the generation lies there.
    let (first, end) = (format!("{group}/"), format!("{group}0"));
    let query = |ends: Bson, after: &str| {
        let ids = doc! { "$gt": after, "$lt": &end };
        doc! { "namespace": &filter.namespace, "limit": &filter.limit, "window.end": ends, "_id": ids }
    };
    let all = |ends: Bson| query(ends, &first);
    let later = |at: Time| Bson::from(doc! { "$gt": date(at) });
    let endless = match after {
        Some(place) if place.end.is_some() => None,
        after => Some(query(Bson::Null, after.map_or(&*first, |place| &place.text))),
    };
    // Where the page before ended within a window, what is left of that.
    let (passed, same) = match after {
        Some(CounterPlace { end: Some(at), text }) => (*at, Some(query(date(*at), text))),
        _ => (Time::MIN, None),
    };
    match filter.windows {
        Windows::Endless => endless.into_iter().collect(),
        Windows::EndingAt(at) if passed == at => same.into_iter().collect(),
        Windows::EndingAt(at) if passed > at => Vec::new(),
        Windows::EndingAt(at) => vec![all(date(at))],
        Windows::EndingAfter(at) => {
            let same = same.filter(|_| passed > at);
            endless.into_iter().chain(same).chain([all(later(at.max(passed)))]).collect()
        }
    }
}

pub(super) fn date(time: Time) -> Bson {
    bson::DateTime::from_millis(time.as_millis()).into()
}

fn number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
