//! Events and refusals.
//!
//! Refusals lie in a capped collection. They are listed by an index and not in
//! the order in which they lie there: several servers write them, each some
//! time after the fact, and a namespace with few must not cost reading the
//! others' through.

use bson::oid::ObjectId;
use bson::{DateTime, Document, RawDocumentBuf, doc};
use mongodb::options::{
    Acknowledgment, CollectionOptions, IndexOptions, ReadConcern, WriteConcern,
};
use mongodb::{Collection, Database, IndexModel};

use super::load::{collect, limited, read};
use super::{Collections, unavailable};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::time::Time;
use crate::store::document::{EventDoc, RefusalDoc};
use crate::store::{Kept, StoreError, TrailFilter, TrailPlace};

/// How many bytes of refusals are kept.
pub(super) const REFUSALS: u64 = 64 << 20;

/// The indexes of events: by time, of all, of a subject and of a reservation,
/// which few events concern.
pub(super) fn of_events() -> Vec<IndexModel> {
    let concerning = doc! { "reservation_id": { "$exists": true } };
    let few = IndexOptions::builder().partial_filter_expression(concerning).build();
    let of = |part: &str| doc! { "namespace": 1, part: 1, "time": -1, "_id": -1 };
    let of_subject = IndexModel::builder().keys(of("subject")).build();
    let of_reservation = IndexModel::builder().keys(of("reservation_id")).options(few).build();
    of_refusals().into_iter().chain([of_subject, of_reservation]).collect()
}

/// The index of refusals, by time.
pub(super) fn of_refusals() -> Vec<IndexModel> {
    vec![IndexModel::builder().keys(doc! { "namespace": 1, "time": -1, "_id": -1 }).build()]
}

/// The refusals. Whoever writes or reads them waits for one member alone.
pub(super) fn refusals(database: &Database) -> Collection<RawDocumentBuf> {
    let one = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    let options = CollectionOptions::builder();
    let options = options.write_concern(one).read_concern(ReadConcern::local()).build();
    database.collection_with_options("refusals", options)
}

pub(super) async fn events_before(
    collections: &Collections,
    filter: &TrailFilter,
    before: Option<&TrailPlace>,
    limit: usize,
) -> Result<Vec<Kept<Event>>, StoreError> {
    let mut wanted = dated(filter, before);
    if let Some(subject) = &filter.subject {
        wanted.insert("subject", subject);
    }
    let found = newest(&collections.events, wanted, limit).await?;
    let kept = |document: &RawDocumentBuf| {
        let event: EventDoc = read(document)?;
        Ok(Kept { id: id(event.id), value: event.record()? })
    };
    found.iter().map(kept).collect()
}

pub(super) async fn refusals_before(
    collections: &Collections,
    filter: &TrailFilter,
    before: Option<&TrailPlace>,
    limit: usize,
) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
    let mut wanted = dated(filter, before);
    if let Some(subject) = &filter.subject {
        let dimension = doc! { "$elemMatch": { "$or": dimensions(subject) } };
        wanted.insert("items", doc! { "$elemMatch": { "dimensions": dimension } });
    }
    let found = newest(&collections.refusals, wanted, limit).await?;
    let kept = |document: &RawDocumentBuf| {
        let refused: RefusalDoc = read(document)?;
        Ok(Kept { id: id(refused.id), value: refused.record()? })
    };
    found.iter().map(kept).collect()
}

/// Writes refusals for whoever may ask: a fail-over may take them back.
pub(super) async fn note_refusals(
    collections: &Collections,
    refusals: &[RefusalRecord],
) -> Result<(), StoreError> {
    if refusals.is_empty() {
        return Ok(());
    }
    let documents: Vec<RawDocumentBuf> = refusals
        .iter()
        .map(|refused| bson::serialize_to_raw_document_buf(&RefusalDoc::new(refused)))
        .collect::<Result<_, _>>()
        .map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let insert = collections.refusals.insert_many(documents).ordered(false);
    limited(async { insert.await.map(|_| ()).map_err(|error| unavailable(&error)) }).await
}

/// What is asked for but for the subject, before that place.
fn dated(filter: &TrailFilter, before: Option<&TrailPlace>) -> Document {
    let mut wanted = doc! { "namespace": &filter.namespace };
    let mut time = Document::new();
    if let Some(from) = filter.from {
        time.insert("$gte", date(from));
    }
    if let Some(until) = filter.until {
        time.insert("$lt", date(until));
    }
    if let Some(TrailPlace { time: at, id }) = before {
        let at = date(*at);
        // An empty id comes before all others: nothing of its instant is left.
        wanted.insert(
            "$or",
            match ObjectId::parse_str(id) {
                Ok(id) => {
                    vec![doc! { "time": { "$lt": at } }, doc! { "time": at, "_id": { "$lt": id } }]
                }
                Err(_) => vec![doc! { "time": { "$lt": at } }],
            },
        );
        // The same once more, as bounds of the index.
        time.insert("$lte", at);
    }
    if !time.is_empty() {
        wanted.insert("time", time);
    }
    if let Some(reservation) = &filter.reservation_id {
        wanted.insert("reservation_id", reservation);
    }
    wanted
}

/// The dimensions that are this subject, given as `kind/id`: a kind may hold a
/// slash, and so may an id.
fn dimensions(subject: &str) -> Vec<Document> {
    let parted = subject.match_indices('/').map(|(at, _)| (&subject[..at], &subject[at + 1..]));
    let mut dimensions: Vec<Document> =
        parted.map(|(kind, id)| doc! { "name": kind, "value": id }).collect();
    if dimensions.is_empty() {
        // An empty list is no condition that MongoDB takes; this one never holds.
        dimensions.push(doc! { "name": { "$in": [] } });
    }
    dimensions
}

async fn newest(
    collection: &Collection<RawDocumentBuf>,
    wanted: Document,
    limit: usize,
) -> Result<Vec<RawDocumentBuf>, StoreError> {
    if limit == 0 {
        // To MongoDB that means all.
        return Ok(Vec::new());
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(collection.find(wanted).sort(doc! { "time": -1, "_id": -1 }).limit(limit)).await
}

fn id(id: Option<ObjectId>) -> String {
    id.map_or_else(String::new, ObjectId::to_hex)
}

fn date(time: Time) -> DateTime {
    DateTime::from_millis(time.as_millis())
}
