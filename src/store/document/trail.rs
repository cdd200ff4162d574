//! Events and refusals as documents.
//!
//! Their `_id` is a database's own, and none where records have numbers.

use std::sync::Arc;

use bson::oid::ObjectId;
use serde::{Deserialize, Serialize};

use super::reservation::ItemDoc;
use super::{BoundDoc, Pair, WindowDoc, damaged, date, map, pairs, time};
use crate::domain::counter::CounterId;
use crate::domain::event::{Event, EventKind, RefusalRecord};
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;
use crate::domain::window::Window;
use crate::store::StoreError;

/// An event.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventDoc {
    /// The database's own.
    #[serde(rename = "_id", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ObjectId>,
    namespace: String,
    /// When it happened.
    pub time: bson::DateTime,
    kind: KindWord,
    principal: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reservation_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    subject: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitDoc>,
    details: Vec<Pair>,
    /// When retention may remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<bson::DateTime>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindWord {
    PolicyApplied,
    SubjectPut,
    SubjectDeleted,
    Repaired,
    GrantUndone,
}

/// A call that was refused.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusalDoc {
    /// The database's own.
    #[serde(rename = "_id", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ObjectId>,
    namespace: String,
    /// When it happened.
    pub time: bson::DateTime,
    principal: String,
    reservation_id: String,
    call: String,
    reason: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    items: Vec<ItemDoc>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitDoc>,
    message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    details: Vec<Pair>,
}

/// Where a limit stood.
#[derive(Debug, Serialize, Deserialize)]
struct LimitDoc {
    limit: String,
    metric: String,
    generation: i64,
    key: Vec<Pair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowDoc>,
    /// Of a rolling window: when it was looked at, which is its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<bson::DateTime>,
    max: BoundDoc,
    used: i64,
    held: i64,
    requested: i64,
    exceeded: bool,
    enforced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_time: Option<bson::DateTime>,
}

impl EventDoc {
    /// The document of an event.
    pub fn new(event: &Event) -> Self {
        Self {
            id: None,
            namespace: event.namespace.clone(),
            time: date(event.time),
            kind: match event.kind {
                EventKind::PolicyApplied => KindWord::PolicyApplied,
                EventKind::SubjectPut => KindWord::SubjectPut,
                EventKind::SubjectDeleted => KindWord::SubjectDeleted,
                EventKind::Repaired => KindWord::Repaired,
                EventKind::GrantUndone => KindWord::GrantUndone,
            },
            principal: event.principal.clone(),
            reason: event.reason.clone(),
            reservation_id: event.reservation_id.clone(),
            subject: event.subject.clone(),
            limits: event.limits.iter().map(LimitDoc::new).collect(),
            details: pairs(&event.details),
            purge_at: event.purge_at.map(date),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<Event, StoreError> {
        let key = format!("an event of {}", self.namespace);
        self.convert().map_err(|message| damaged(&key, message))
    }

    fn convert(self) -> Result<Event, String> {
        let limits = self.limits.into_iter().map(|limit| limit.status(&self.namespace));
        Ok(Event {
            time: time(self.time)?,
            kind: match self.kind {
                KindWord::PolicyApplied => EventKind::PolicyApplied,
                KindWord::SubjectPut => EventKind::SubjectPut,
                KindWord::SubjectDeleted => EventKind::SubjectDeleted,
                KindWord::Repaired => EventKind::Repaired,
                KindWord::GrantUndone => EventKind::GrantUndone,
            },
            principal: self.principal,
            reason: self.reason,
            reservation_id: self.reservation_id,
            subject: self.subject,
            limits: limits.collect::<Result<_, _>>()?,
            details: map(self.details),
            purge_at: self.purge_at.map(time).transpose()?,
            namespace: self.namespace,
        })
    }
}

impl RefusalDoc {
    /// The document of a refusal.
    pub fn new(refused: &RefusalRecord) -> Self {
        Self {
            id: None,
            namespace: refused.namespace.clone(),
            time: date(refused.time),
            principal: refused.principal.clone(),
            reservation_id: refused.reservation_id.clone(),
            call: refused.call.clone(),
            reason: refused.reason.clone(),
            items: refused.items.iter().map(ItemDoc::new).collect(),
            limits: refused.limits.iter().map(LimitDoc::new).collect(),
            message: refused.message.clone(),
            details: pairs(&refused.details),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<RefusalRecord, StoreError> {
        let key = format!("a refusal of {}", self.namespace);
        self.convert().map_err(|message| damaged(&key, message))
    }

    fn convert(self) -> Result<RefusalRecord, String> {
        let limits = self.limits.into_iter().map(|limit| limit.status(&self.namespace));
        Ok(RefusalRecord {
            time: time(self.time)?,
            principal: self.principal,
            reservation_id: self.reservation_id,
            call: self.call,
            reason: self.reason,
            items: self.items.into_iter().map(ItemDoc::item).collect(),
            limits: limits.collect::<Result<_, _>>()?,
            message: self.message,
            details: map(self.details),
            namespace: self.namespace,
        })
    }
}

impl LimitDoc {
    fn new(status: &LimitStatus) -> Self {
        let id = &status.counter;
        let rolls = matches!(id.window, Window::Rolling(_));
        Self {
            limit: id.limit.clone(),
            metric: id.metric.clone(),
            generation: id.generation,
            key: pairs(&id.key),
            window: WindowDoc::new(&id.window),
            as_of: status.window.filter(|_| rolls).map(|(_, end)| date(end)),
            max: status.bound.into(),
            used: status.used,
            held: status.held,
            requested: status.requested,
            exceeded: status.exceeded,
            enforced: status.enforced,
            retry_time: status.retry_time.map(date),
        }
    }

    fn status(self, namespace: &str) -> Result<LimitStatus, String> {
        let (limit, metric, key) = (&self.limit, &self.metric, map(self.key));
        let window = WindowDoc::window(self.window)?;
        let as_of = self.as_of.map_or(Ok(Time::MIN), time)?;
        let span = window.span(as_of);
        let id = CounterId::new(namespace, limit, metric, self.generation, key, window);
        Ok(LimitStatus {
            counter: Arc::new(id),
            window: span,
            bound: self.max.into(),
            used: self.used,
            held: self.held,
            requested: self.requested,
            exceeded: self.exceeded,
            enforced: self.enforced,
            retry_time: self.retry_time.map(time).transpose()?,
            waiting: 0,
        })
    }
}
