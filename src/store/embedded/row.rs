//! Records as they lie in the file: kind, checksum, document.

use serde::Serialize;

use super::trail::dated;
use crate::store::document::{
    CounterDoc, EventDoc, ReservationDoc, ResourceDoc, RevisionDoc, SubjectDoc,
};
use crate::store::{ChangeSet, WriteError};

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
    pub bytes: Vec<u8>,
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
}

impl Head {
    pub fn of(kind: Kind, bytes: &[u8]) -> Result<Self, String> {
        if matches!(kind, Kind::Event | Kind::Refusal) {
            return DatedHead::of(bytes);
        }
        let mut head: Self =
            bson::deserialize_from_slice(bytes).map_err(|error| error.to_string())?;
        if kind == Kind::Policy {
            head.version = head.revision;
        }
        Ok(head)
    }
}

/// The same of an event or a refusal, which is found by when it happened.
#[derive(serde::Deserialize)]
struct DatedHead {
    namespace: String,
    time: bson::DateTime,
    #[serde(default)]
    purge_at: Option<bson::DateTime>,
}

impl DatedHead {
    fn of(bytes: &[u8]) -> Result<Head, String> {
        let head: Self = bson::deserialize_from_slice(bytes).map_err(|error| error.to_string())?;
        let key = dated(&head.namespace, head.time.timestamp_millis());
        Ok(Head { key, version: 0, revision: 0, purge_at: head.purge_at })
    }
}

pub(super) fn rows(changes: &ChangeSet) -> Result<Vec<Row>, WriteError> {
    let mut rows = Vec::new();
    for change in &changes.reservations {
        let document = ReservationDoc::new(change);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Reservation, key, change.version, document.purge_at, &document)?);
    }
    for change in &changes.counters {
        let document = CounterDoc::new(change);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Counter, key, change.version, document.purge_at, &document)?);
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
        Ok(Self { kind, key, version, purge_at, bytes })
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
