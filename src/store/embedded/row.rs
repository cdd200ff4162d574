//! Records as they lie in the file: kind, checksum, document.

use serde::Serialize;

use super::trail::dated;
use crate::domain::time::Time;
use crate::store::document::{
    CounterDoc, EventDoc, ReservationDoc, ResourceDoc, RevisionDoc, SubjectDoc,
};
use crate::store::lists::{CounterFacts, ReservationFacts};
use crate::store::{ChangeSet, Extent, WriteError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reservation,
    Counter,
    Resource,
    Subject,
    Policy,
    Event,
    /// In a table of its own.
    Refusal,
}

impl Kind {
    pub const COUNT: usize = 7;
    pub const ALL: [Self; Self::COUNT] = [
        Self::Reservation,
        Self::Counter,
        Self::Resource,
        Self::Subject,
        Self::Policy,
        Self::Event,
        Self::Refusal,
    ];
}

/// One record as it lies in the file.
pub(super) struct Row {
    pub kind: Kind,
    pub key: String,
    pub version: i64,
    pub purge_at: Option<bson::DateTime>,
    pub listed: Listed,
    /// Whether it is another record than the one that had its key before.
    pub whole: bool,
    pub bytes: Vec<u8>,
}

/// What listings go by of a record.
#[derive(Debug)]
pub(super) enum Listed {
    Reservation(ReservationFacts),
    Counter(CounterFacts),
    /// A record of another kind.
    Otherwise,
}

/// The part of a document that the index keeps.
#[derive(serde::Deserialize)]
pub(super) struct Head {
    #[serde(rename = "_id", default)]
    pub key: String,
    #[serde(default)]
    pub version: i64,
    #[serde(default)]
    pub revision: i64,
    #[serde(default)]
    pub purge_at: Option<bson::DateTime>,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    limit: String,
    #[serde(default)]
    generation: i64,
    #[serde(default)]
    window: WindowHead,
    #[serde(default)]
    state: String,
    /// Of an event or a refusal, which is found by it.
    #[serde(default)]
    time: Option<bson::DateTime>,
    #[serde(default)]
    create_time: Option<bson::DateTime>,
    #[serde(default)]
    expire_time: Option<bson::DateTime>,
    #[serde(default)]
    charges: Vec<ChargeHead>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct WindowHead {
    end: Option<bson::DateTime>,
    billing_period: Option<String>,
}

#[derive(serde::Deserialize)]
struct ChargeHead {
    counter: String,
}

impl Head {
    pub fn of(kind: Kind, bytes: &[u8]) -> Result<Self, String> {
        let mut head: Self =
            bson::deserialize_from_slice(bytes).map_err(|error| error.to_string())?;
        if kind == Kind::Policy {
            head.version = head.revision;
        }
        if matches!(kind, Kind::Event | Kind::Refusal) {
            let time = head.time.ok_or("it lacks its time")?;
            head.key = dated(&head.namespace, time.timestamp_millis());
        }
        Ok(head)
    }

    /// What listings go by.
    pub fn listed(self, kind: Kind) -> Listed {
        let time = |date: bson::DateTime| Time::saturating(date.timestamp_millis());
        let known = |date: Option<bson::DateTime>| date.map_or(Time::MIN, time);
        match kind {
            Kind::Reservation => Listed::Reservation(ReservationFacts {
                namespace: self.namespace,
                create_time: known(self.create_time),
                expire_time: known(self.expire_time),
                open: self.state == "held",
                counters: self.charges.into_iter().map(|charge| charge.counter).collect(),
            }),
            Kind::Counter => {
                let billed = self.window.billing_period.is_some();
                let end = self.window.end.map(time);
                let (namespace, limit) = (&self.namespace, &self.limit);
                let facts = CounterFacts::new(namespace, limit, self.generation, end, billed);
                Listed::Counter(facts)
            }
            _ => Listed::Otherwise,
        }
    }
}

pub(super) fn rows(changes: &ChangeSet) -> Result<Vec<Row>, WriteError> {
    let mut rows = Vec::new();
    for change in &changes.reservations {
        let document = ReservationDoc::new(change);
        let key = document.id.clone();
        let row = Row::new(Kind::Reservation, key, change.version, document.purge_at, &document)?;
        let listed = Listed::Reservation(ReservationFacts::of(&change.value));
        let whole = change.expected.is_some() && change.extent == Extent::Whole;
        rows.push(Row { listed, whole, ..row });
    }
    for change in &changes.counters {
        let document = CounterDoc::new(change);
        let key = document.id.clone();
        let row = Row::new(Kind::Counter, key, change.version, document.purge_at, &document)?;
        rows.push(Row { listed: Listed::Counter(CounterFacts::of(&change.value.id)), ..row });
    }
    for binding in &changes.resources {
        let document = ResourceDoc::new(binding);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Resource, key, 0, document.purge_at, &document)?);
    }
    for change in &changes.subjects {
        let document = SubjectDoc::new(change);
        rows.push(Row::new(Kind::Subject, document.id.clone(), change.version, None, &document)?);
    }
    for policy in &changes.policies {
        let document = RevisionDoc::new(policy);
        rows.push(Row::new(Kind::Policy, document.id.clone(), policy.revision, None, &document)?);
    }
    for event in &changes.events {
        let document = EventDoc::new(event);
        let key = dated(&event.namespace, event.time.as_millis());
        rows.push(Row::new(Kind::Event, key, 0, document.purge_at, &document)?);
    }
    Ok(rows)
}

impl Row {
    pub fn new(
        kind: Kind,
        key: String,
        version: i64,
        purge_at: Option<bson::DateTime>,
        document: &impl Serialize,
    ) -> Result<Self, WriteError> {
        let bytes = bson::serialize_to_vec(document);
        let bytes = bytes.map_err(|error| WriteError::Failed(error.to_string()))?;
        Ok(Self { kind, key, version, purge_at, listed: Listed::Otherwise, whole: false, bytes })
    }
}

/// Kind, checksum, document.
pub(super) fn seal(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(bytes.len() + 5);
    sealed.push(kind as u8);
    sealed.extend(crc32fast::hash(bytes).to_le_bytes());
    sealed.extend(bytes);
    sealed
}

pub(super) fn unseal(sealed: &[u8]) -> Result<(Kind, &[u8]), String> {
    let (head, bytes) = sealed.split_at_checked(5).ok_or("it is cut short")?;
    let kind = *Kind::ALL.get(usize::from(head[0])).ok_or("it is of no known kind")?;
    if crc32fast::hash(bytes).to_le_bytes() != head[1..] {
        return Err("its checksum does not match".to_owned());
    }
    Ok((kind, bytes))
}
