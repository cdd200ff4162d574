//! What is read from a store and written to it.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;
use tokio::time::Instant;

use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::Event;
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::PolicyRevision;
use crate::domain::reservation::Reservation;
use crate::domain::subject::Subject;
use crate::domain::time::Time;

/// A record and its version: the guard of the next write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// Rises with every write. A record that was removed and made again never
    /// gets a version that it had before.
    pub version: i64,
    /// The record.
    pub value: T,
}

/// Records that were read; `None` for one that does not exist.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Reservations.
    pub reservations: HashMap<ReservationKey, Option<Versioned<Arc<Reservation>>>>,
    /// Counters.
    pub counters: HashMap<Arc<CounterId>, Option<Versioned<Counter>>>,
    /// The reservation that each resource belongs to.
    pub resources: HashMap<ResourceKey, Option<ReservationKey>>,
    /// Subjects.
    pub subjects: HashMap<SubjectKey, Option<Versioned<Subject>>>,
}

/// A record to be made or replaced.
#[derive(Clone, Debug)]
pub struct Change<T> {
    /// The version that the record must have now; `None` when there must be
    /// no record.
    pub expected: Option<i64>,
    /// The version that it gets.
    pub version: i64,
    /// The record.
    pub value: T,
    /// When retention may remove it; `None` keeps it.
    pub purge_at: Option<Time>,
    /// The guards of other records of the change set prove that this one has
    /// the expected version too; a store may save itself the look.
    pub proven: bool,
    /// How much of it changes, for a store that can change parts of a document.
    pub extent: Extent,
}

/// How much of a record changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// What a decision usually changes: of a reservation how it is settled, of a
    /// counter what it counts. Never an instant that reservations are found by.
    #[default]
    Usual,
    /// When it runs out or may be removed, too.
    Instants,
    /// Everything: it is another record under the same key.
    Whole,
}

impl<T> Change<T> {
    /// Whether the record is as the change expects, given the version that is
    /// there now. A record that should not exist yet is news to whoever wants
    /// to make it; any other mismatch is a conflict.
    pub(super) fn guard(&self, present: Option<i64>) -> Result<(), WriteError> {
        match (self.expected, present) {
            (None, Some(_)) => Err(WriteError::Exists),
            (expected, present) if expected == present => Ok(()),
            _ => Err(WriteError::Conflict),
        }
    }

    /// The same for records whose caller learns nothing from their existence.
    pub(super) fn guard_quietly(&self, present: Option<i64>) -> Result<(), WriteError> {
        self.guard(present).map_err(|_| WriteError::Conflict)
    }
}

/// A record that is to go.
#[derive(Clone, Debug)]
pub struct Removal<K> {
    /// Which record.
    pub key: K,
    /// The version that it must have now.
    pub expected: i64,
}

impl<K> Removal<K> {
    /// Whether the record is as the removal expects, given the version that is
    /// there now.
    pub(super) fn guard(&self, present: Option<i64>) -> Result<(), WriteError> {
        if present == Some(self.expected) { Ok(()) } else { Err(WriteError::Conflict) }
    }
}

/// A resource that belongs to a reservation from now on.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The resource.
    pub resource: ResourceKey,
    /// The reservation.
    pub owner: ReservationKey,
    /// When retention may remove it: with its reservation.
    pub purge_at: Option<Time>,
}

/// A resource that is free again.
#[derive(Clone, Debug)]
pub struct Unbinding {
    /// The resource.
    pub resource: ResourceKey,
    /// The reservation that it belongs to now, which changes in the same change
    /// set: its guard stands for the binding.
    pub owner: ReservationKey,
}

/// Changes that are made together or not at all.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// Reservations.
    pub reservations: Vec<Change<Arc<Reservation>>>,
    /// Reservations to be removed; none of them may be changed too.
    pub removed_reservations: Vec<Removal<ReservationKey>>,
    /// Counters.
    pub counters: Vec<Change<Counter>>,
    /// Bindings to be made, once those to be removed are gone; none of these
    /// resources may be bound then.
    pub resources: Vec<Binding>,
    /// Bindings to be removed.
    pub removed_resources: Vec<Unbinding>,
    /// Subjects.
    pub subjects: Vec<Change<Subject>>,
    /// Subjects to be removed; none of them may be changed too.
    pub removed_subjects: Vec<Removal<SubjectKey>>,
    /// Policy revisions to be added; none of these may exist yet.
    pub policies: Vec<PolicyRevision>,
    /// Events to be added.
    pub events: Vec<Event>,
    /// When the rules that the changes were decided by are too old to be
    /// written any more, by this process's monotonic clock. A store that has
    /// not committed by then gives up and answers [`WriteError::Conflict`].
    pub valid_until: Option<Instant>,
}

impl ChangeSet {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty()
            && self.removed_reservations.is_empty()
            && self.counters.is_empty()
            && self.resources.is_empty()
            && self.removed_resources.is_empty()
            && self.subjects.is_empty()
            && self.removed_subjects.is_empty()
            && self.policies.is_empty()
            && self.events.is_empty()
    }
}

/// Why a read failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The store did not answer; trying again later may help.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A record is not what this program writes.
    #[error("the record {key} is damaged: {message}")]
    Damaged {
        /// Which record.
        key: String,
        /// What is wrong with it.
        message: String,
    },
}

/// Why a write did not succeed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WriteError {
    /// Nothing was written: a record is not at the expected version, or
    /// somebody else is writing it.
    #[error("another writer was first")]
    Conflict,
    /// Nothing was written: a reservation, resource or policy revision that
    /// was to be made is there already.
    #[error("a record exists already")]
    Exists,
    /// Nothing was written: the store did not take it.
    #[error("nothing was written: {0}")]
    Failed(String),
    /// Whether it was written cannot be told.
    #[error("it is unknown whether the changes were written: {0}")]
    Unknown(String),
}
