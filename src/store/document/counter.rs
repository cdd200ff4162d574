//! Counters as documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Pair, WindowDoc, damaged, date, map, pairs, time};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::time::Time;
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
    used: i64,
    holds: Vec<HoldDoc>,
    as_of: bson::DateTime,
    token: i64,
    /// When retention may remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<bson::DateTime>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HoldDoc {
    until: bson::DateTime,
    units: i64,
}

/// What changes of a counter once it exists, for a store that can change parts
/// of a document: its identity never does.
#[derive(Debug, Serialize)]
pub struct CounterUpdate {
    version: i64,
    used: i64,
    holds: Vec<HoldDoc>,
    as_of: bson::DateTime,
    token: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    purge_at: Option<bson::DateTime>,
}

impl CounterUpdate {
    /// The update of a change.
    pub fn new(change: &Change<Counter>) -> Self {
        let Counter { used, holds, as_of, token, .. } = &change.value;
        Self {
            version: change.version,
            used: *used,
            holds: hold_docs(holds),
            as_of: date(*as_of),
            token: *token,
            purge_at: change.purge_at.map(date),
        }
    }
}

impl CounterDoc {
    /// The document of a change.
    pub fn new(change: &Change<Counter>) -> Self {
        let Counter { id, used, holds, as_of, token } = &change.value;
        Self {
            id: id.text.clone(),
            version: change.version,
            namespace: id.namespace.clone(),
            limit: id.limit.clone(),
            metric: id.metric.clone(),
            generation: id.generation,
            key: pairs(&id.key),
            window: WindowDoc::new(id.window),
            used: *used,
            holds: hold_docs(holds),
            as_of: date(*as_of),
            token: *token,
            purge_at: change.purge_at.map(date),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<Versioned<Counter>, StoreError> {
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
        if self.used < 0 || holds.values().any(|&units| units < 0) {
            return Err("it counts fewer than no units".to_owned());
        }
        let as_of = time(self.as_of)?;
        let value = Counter { id: Arc::new(id), used: self.used, holds, as_of, token: self.token };
        Ok(Versioned { version: self.version, value })
    }
}

fn hold_docs(holds: &BTreeMap<Time, i64>) -> Vec<HoldDoc> {
    holds.iter().map(|(&at, &units)| HoldDoc { until: date(at), units }).collect()
}
