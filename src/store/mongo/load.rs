//! Reads.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::Collection;
use tokio::time::timeout;

use super::{Collections, unavailable};
use crate::domain::counter::Counter;
use crate::domain::name::SubjectKey;
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::store::document::{
    CounterDoc, ReservationDoc, ResourceDoc, RevisionDoc, RevisionHeadDoc, SubjectDoc, decode,
};
use crate::store::{Loaded, StoreError, SubjectFilter, Versioned};

/// How long a read may take. The driver has no limit of its own once a request
/// is on its way, and a primary that is paused never answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn load(collections: &Collections, keys: &Keys) -> Result<Loaded, StoreError> {
    let (counters, resources, subjects) = tokio::try_join!(
        by_id(&collections.counters, keys.counters.iter().map(|k| k.text.as_str())),
        by_id(
            &collections.resources,
            keys.resources.iter().map(crate::domain::name::ResourceKey::as_str)
        ),
        by_id(
            &collections.subjects,
            keys.subjects.iter().map(crate::domain::name::SubjectKey::as_str)
        ),
    )?;
    // Afterwards: whoever is told that an id is unused, and that a counter is
    // full, must not learn that from before and after its admission elsewhere.
    let reservations = keys.reservations.iter().map(crate::domain::name::ReservationKey::as_str);
    let reservations = by_id(&collections.reservations, reservations).await?;
    let mut loaded = Loaded {
        reservations: absent(&keys.reservations),
        counters: absent(&keys.counters),
        resources: absent(&keys.resources),
        subjects: absent(&keys.subjects),
    };
    for document in reservations {
        let record = read::<ReservationDoc>(&document)?.record()?;
        loaded.reservations.insert(record.value.key.clone(), Some(record));
    }
    for document in counters {
        let record = read::<CounterDoc>(&document)?.record()?;
        loaded.counters.insert(Arc::clone(&record.value.id), Some(record));
    }
    for document in resources {
        let resource: ResourceDoc = read(&document)?;
        loaded.resources.insert(resource.key(), Some(resource.owner()));
    }
    for document in subjects {
        let record = read::<SubjectDoc>(&document)?.record()?;
        loaded.subjects.insert(record.value.key(), Some(record));
    }
    Ok(loaded)
}

pub(super) async fn policy_head(
    collections: &Collections,
    namespace: &str,
) -> Result<Option<i64>, StoreError> {
    let find = collections
        .policies
        .find_one(doc! { "namespace": namespace })
        .sort(doc! { "namespace": 1, "revision": -1 })
        .projection(doc! { "revision": 1 });
    let found = limited(async { find.await.map_err(|error| unavailable(&error)) }).await?;
    Ok(found.and_then(|document| document.get_i64("revision").ok()))
}

pub(super) async fn policy(
    collections: &Collections,
    namespace: &str,
    revision: i64,
) -> Result<Option<PolicyRevision>, StoreError> {
    let key = RevisionDoc::key(namespace, revision);
    let documents = by_id(&collections.policies, std::iter::once(key.as_str())).await?;
    documents.first().map(|document| read::<RevisionDoc>(document)?.record()).transpose()
}

pub(super) async fn revisions_before(
    collections: &Collections,
    namespace: &str,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<RevisionHead>, StoreError> {
    let mut filter = doc! { "namespace": namespace };
    if let Some(before) = before {
        filter.insert("revision", doc! { "$lt": before });
    }
    let fields: Document =
        RevisionHeadDoc::FIELDS.iter().map(|field| ((*field).to_owned(), Bson::Int32(1))).collect();
    let find = collections
        .policies
        .find(filter)
        .sort(doc! { "namespace": 1, "revision": -1 })
        .projection(fields)
        .limit(i64::try_from(limit).unwrap_or(i64::MAX));
    let documents = collect(find).await?;
    documents.iter().map(|document| read::<RevisionHeadDoc>(document)?.record()).collect()
}

pub(super) async fn subjects_after(
    collections: &Collections,
    filter: &SubjectFilter,
    key: Option<&SubjectKey>,
    limit: usize,
) -> Result<Vec<Versioned<Subject>>, StoreError> {
    let Some((after, end)) = filter.between(key) else { return Ok(Vec::new()) };
    let mut wanted = doc! { "_id": { "$gt": after, "$lt": end } };
    if let Some(plans) = &filter.plans {
        wanted.insert("plan", doc! { "$in": plans });
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let find = collections.subjects.find(wanted).sort(doc! { "_id": 1 }).limit(limit);
    let documents = collect(find).await?;
    documents.iter().map(|document| read::<SubjectDoc>(document)?.record()).collect()
}

pub(super) async fn reservations_after(
    collections: &Collections,
    key: Option<&str>,
    limit: usize,
) -> Result<Vec<Arc<Reservation>>, StoreError> {
    let documents = page(&collections.reservations, key, limit).await?;
    let record = |document: &RawDocumentBuf| Ok(read::<ReservationDoc>(document)?.record()?.value);
    documents.iter().map(record).collect()
}

pub(super) async fn counters_after(
    collections: &Collections,
    key: Option<&str>,
    limit: usize,
) -> Result<Vec<Counter>, StoreError> {
    let documents = page(&collections.counters, key, limit).await?;
    let record =
        |document: &RawDocumentBuf| Ok(read::<CounterDoc>(document)?.record_as_it_is()?.value);
    documents.iter().map(record).collect()
}

async fn by_id<'k>(
    collection: &Collection<RawDocumentBuf>,
    ids: impl Iterator<Item = &'k str>,
) -> Result<Vec<RawDocumentBuf>, StoreError> {
    let ids: Vec<Bson> = ids.map(|id| Bson::String(id.to_owned())).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // One more than can be found, so that the first batch is the last.
    let batch = u32::try_from(ids.len() + 1).unwrap_or(u32::MAX);
    let find = collection.find(doc! { "_id": { "$in": ids } }).batch_size(batch);
    collect(find).await
}

async fn page(
    collection: &Collection<RawDocumentBuf>,
    key: Option<&str>,
    limit: usize,
) -> Result<Vec<RawDocumentBuf>, StoreError> {
    let filter = key.map_or_else(|| doc! {}, |key| doc! { "_id": { "$gt": key } });
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(collection.find(filter).sort(doc! { "_id": 1 }).limit(limit)).await
}

pub(super) async fn collect(
    find: mongodb::action::Find<'_, RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>, StoreError> {
    limited(async {
        let mut cursor = find.await.map_err(|error| unavailable(&error))?;
        let mut documents = Vec::new();
        while cursor.advance().await.map_err(|error| unavailable(&error))? {
            documents.push(cursor.current().to_owned());
        }
        Ok(documents)
    })
    .await
}

pub(super) async fn limited<T>(
    read: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| StoreError::Unavailable(format!("no answer to a read within {PATIENCE:?}"));
    timeout(PATIENCE, read).await.map_err(late)?
}

pub(super) fn absent<K: Clone + Eq + Hash, V>(keys: &[K]) -> HashMap<K, Option<V>> {
    keys.iter().map(|key| (key.clone(), None)).collect()
}

pub(super) fn read<'d, D: serde::Deserialize<'d>>(
    document: &'d RawDocument,
) -> Result<D, StoreError> {
    let key = document.get_str("_id").unwrap_or("without a key");
    decode(key, document.as_bytes())
}
