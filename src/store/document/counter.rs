//! Counters as documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Pair, WindowDoc, damaged, date, map, pairs, time};
use crate::domain::counter::{Bucket, Counter, CounterId, Used};
use crate::domain::time::Time;
use crate::domain::window::Window;
use crate::store::{Change, StoreError, Versioned};

/// A counter.
#[derive(Debug, Serialize, Deserialize)]
pub struct CounterDoc {
    /// [`CounterId::text`].
    #[serde(rename = "_id")]
    pub id: String,
    version: i64,
    namespace: String,
    limit: String,
    metric: String,
    generation: i64,
    key: Vec<Pair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowDoc>,
    /// Of a rolling window: as of `as_of`, for readers; `buckets` decide.
    used: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<BucketDoc>>,
    holds: Vec<HoldDoc>,
    as_of: bson::DateTime,
    token: i64,
    /// [`Counter::first_end`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_end: Option<bson::DateTime>,
    /// When retention may remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<bson::DateTime>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HoldDoc {
    until: bson::DateTime,
    units: i64,
}

/// Units of a rolling window that return together.
#[derive(Debug, Serialize, Deserialize)]
struct BucketDoc {
    start: bson::DateTime,
    last: bson::DateTime,
    units: i64,
}

/// What changes of a counter once it exists, for a store that can change parts
/// of a document: its identity never does.
#[derive(Debug, Serialize)]
pub struct CounterUpdate {
    version: i64,
    /// Of a billing period, whose bounds may be corrected.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowDoc>,
    used: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<BucketDoc>>,
    holds: Vec<HoldDoc>,
    as_of: bson::DateTime,
    token: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_end: Option<bson::DateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purge_at: Option<bson::DateTime>,
}

impl CounterUpdate {
    /// The update of a change.
    pub fn new(change: &Change<Counter>) -> Self {
        let Counter { id, used, holds, as_of, token, first_end } = &change.value;
        let corrected = matches!(id.window, Window::Billing { .. });
        Self {
            version: change.version,
            window: WindowDoc::new(&id.window).filter(|_| corrected),
            used: change.value.used(*as_of),
            buckets: bucket_docs(used),
            holds: hold_docs(holds),
            as_of: date(*as_of),
            token: *token,
            first_end: first_end.map(date),
            purge_at: change.purge_at.map(date),
        }
    }
}

impl CounterDoc {
    /// The document of a change.
    pub fn new(change: &Change<Counter>) -> Self {
        let Counter { id, used, holds, as_of, token, first_end } = &change.value;
        Self {
            id: id.text.clone(),
            version: change.version,
            namespace: id.namespace.clone(),
            limit: id.limit.clone(),
            metric: id.metric.clone(),
            generation: id.generation,
            key: pairs(&id.key),
            window: WindowDoc::new(&id.window),
            used: change.value.used(*as_of),
            buckets: bucket_docs(used),
            holds: hold_docs(holds),
            as_of: date(*as_of),
            token: *token,
            first_end: first_end.map(date),
            purge_at: change.purge_at.map(date),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<Versioned<Counter>, StoreError> {
        let row = self.record_as_it_is()?;
        if row.value.has_negative() {
            return Err(damaged(&row.value.id.text, "it counts fewer than no units"));
        }
        Ok(row)
    }

    /// The record for those who only look, and for those who mend: also one that
    /// counts fewer than no units, which nothing is decided by.
    ///
    /// # Errors
    ///
    /// The document is damaged otherwise.
    pub fn record_as_it_is(self) -> Result<Versioned<Counter>, StoreError> {
        let key = self.id.clone();
        self.convert().map_err(|message| damaged(&key, message))
    }

    fn convert(self) -> Result<Versioned<Counter>, String> {
        let window = WindowDoc::window(self.window)?;
        let id = CounterId::new(
            &self.namespace,
            &self.limit,
            &self.metric,
            self.generation,
            map(self.key),
            window,
        );
        if id.text != self.id {
            return Err(format!("its fields say that it is {}", id.text));
        }
        let mut holds = BTreeMap::new();
        for hold in self.holds {
            holds.insert(time(hold.until)?, hold.units);
        }
        let used = match (&id.window, self.buckets) {
            (Window::Rolling(_), buckets) => Used::Recent(buckets_of(buckets.unwrap_or_default())?),
            (_, None) => Used::Total(self.used),
            (_, Some(_)) => return Err("its window does not move, but it has buckets".to_owned()),
        };
        let as_of = time(self.as_of)?;
        let first_end = self.first_end.map(time).transpose()?;
        let value = Counter { id: Arc::new(id), used, holds, as_of, token: self.token, first_end };
        Ok(Versioned { version: self.version, value })
    }
}

fn hold_docs(holds: &BTreeMap<Time, i64>) -> Vec<HoldDoc> {
    holds.iter().map(|(&at, &units)| HoldDoc { until: date(at), units }).collect()
}

fn bucket_docs(used: &Used) -> Option<Vec<BucketDoc>> {
    let Used::Recent(buckets) = used else { return None };
    let doc = |(&start, bucket): (&Time, &Bucket)| BucketDoc {
        start: date(start),
        last: date(bucket.last),
        units: bucket.units,
    };
    Some(buckets.iter().map(doc).collect())
}

fn buckets_of(docs: Vec<BucketDoc>) -> Result<BTreeMap<Time, Bucket>, String> {
    let bucket =
        |doc: BucketDoc| Ok((time(doc.start)?, Bucket { units: doc.units, last: time(doc.last)? }));
    docs.into_iter().map(bucket).collect()
}
