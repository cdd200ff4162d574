//! The records that decisions read and change.
//!
//! A [`Base`] is what was loaded; a [`State`] lies over it and collects what
//! decisions change, so that a batch can be folded again from the same base.
//! A decision that needs a record which is not there reports it as missing
//! and is made again once it is loaded: the rules alone know what they need.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::counter::{Counter, CounterId};
use super::name::{ReservationKey, ResourceKey, SubjectKey};
use super::reservation::Reservation;
use super::subject::Subject;

/// Decided nothing: records are missing, and [`State::take_missing`] tells
/// which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing;

/// Names of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Reservations.
    pub reservations: Vec<ReservationKey>,
    /// Counters.
    pub counters: Vec<Arc<CounterId>>,
    /// Resource bindings.
    pub resources: Vec<ResourceKey>,
    /// Subjects.
    pub subjects: Vec<SubjectKey>,
}

impl Keys {
    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty()
            && self.counters.is_empty()
            && self.resources.is_empty()
            && self.subjects.is_empty()
    }
}

/// Loaded records of one kind; `None` for one that does not exist.
pub type Rows<K, V> = HashMap<K, Option<V>>;

/// What was loaded.
#[derive(Clone, Debug, Default)]
pub struct Base {
    /// Reservations.
    pub reservations: Rows<ReservationKey, Reservation>,
    /// Counters.
    pub counters: Rows<Arc<CounterId>, Counter>,
    /// Resource bindings: the reservation that each belongs to.
    pub resources: Rows<ResourceKey, ReservationKey>,
    /// Subjects.
    pub subjects: Rows<SubjectKey, Subject>,
}

/// What decisions changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Reservations made or settled.
    pub reservations: HashMap<ReservationKey, Reservation>,
    /// Counters charged or given back to.
    pub counters: HashMap<Arc<CounterId>, Counter>,
    /// Resources bound.
    pub resources: HashMap<ResourceKey, ReservationKey>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty() && self.counters.is_empty() && self.resources.is_empty()
    }
}

/// A base and the changes made over it.
#[derive(Debug)]
pub struct State<'a> {
    base: &'a Base,
    /// Take the id of a Reserve and the resources of a commit to be free where
    /// they were not loaded: the unique indexes object if they are not.
    trusting: bool,
    changes: Changes,
    missing: Keys,
    read: Keys,
}

impl<'a> State<'a> {
    /// Nothing changed yet. A `trusting` state takes the id of a Reserve and
    /// the resources of a commit to be free where they were not loaded, and
    /// relies on the unique indexes to object; another reports them missing.
    pub fn over(base: &'a Base, trusting: bool) -> Self {
        Self {
            base,
            trusting,
            changes: Changes::default(),
            missing: Keys::default(),
            read: Keys::default(),
        }
    }

    /// What was changed.
    pub fn into_changes(self) -> Changes {
        self.changes
    }

    /// The records that decisions asked for in vain.
    pub fn take_missing(&mut self) -> Keys {
        std::mem::take(&mut self.missing)
    }

    /// The records that decisions looked at since the last call, subjects
    /// excepted: what an answer that changes nothing rests on.
    pub fn take_read(&mut self) -> Keys {
        std::mem::take(&mut self.read)
    }

    /// The reservation, or `None` where there is none.
    pub fn reservation(&mut self, key: &ReservationKey) -> Result<Option<&Reservation>, Missing> {
        self.read.reservations.push(key.clone());
        look_up(
            key,
            &self.changes.reservations,
            &self.base.reservations,
            &mut self.missing.reservations,
        )
    }

    /// The reservation that a Reserve would make: most often there is none.
    pub fn reservation_to_make(
        &mut self,
        key: &ReservationKey,
    ) -> Result<Option<&Reservation>, Missing> {
        if self.trusting && !self.base.reservations.contains_key(key) {
            self.read.reservations.push(key.clone());
            return Ok(self.changes.reservations.get(key));
        }
        self.reservation(key)
    }

    /// Whom the resource belongs to that a commit would bind: most often
    /// nobody.
    pub fn resource_to_bind(
        &mut self,
        key: &ResourceKey,
    ) -> Result<Option<&ReservationKey>, Missing> {
        if self.trusting && !self.base.resources.contains_key(key) {
            self.read.resources.push(key.clone());
            return Ok(self.changes.resources.get(key));
        }
        self.resource(key)
    }

    /// Whom the resource belongs to, or `None` where it is free.
    pub fn resource(&mut self, key: &ResourceKey) -> Result<Option<&ReservationKey>, Missing> {
        self.read.resources.push(key.clone());
        look_up(key, &self.changes.resources, &self.base.resources, &mut self.missing.resources)
    }

    /// The subject, or `None` where it was never put.
    pub fn subject(&mut self, key: &SubjectKey) -> Result<Option<&'a Subject>, Missing> {
        match self.base.subjects.get(key) {
            Some(subject) => Ok(subject.as_ref()),
            None => {
                self.missing.subjects.push(key.clone());
                Err(Missing)
            }
        }
    }

    /// The counters, in that order. All that are missing are reported at once.
    pub fn counters(&mut self, ids: &[Arc<CounterId>]) -> Result<(), Missing> {
        let mut complete = Ok(());
        for id in ids {
            self.read.counters.push(Arc::clone(id));
            if !self.changes.counters.contains_key(id) && !self.base.counters.contains_key(id) {
                self.missing.counters.push(Arc::clone(id));
                complete = Err(Missing);
            }
        }
        complete
    }

    /// A counter that [`State::counters`] has found; fresh where none is
    /// stored.
    pub fn counter(&self, id: &Arc<CounterId>) -> std::borrow::Cow<'_, Counter> {
        let loaded = || self.base.counters.get(id).and_then(Option::as_ref);
        match self.changes.counters.get(id).or_else(loaded) {
            Some(counter) => std::borrow::Cow::Borrowed(counter),
            None => std::borrow::Cow::Owned(Counter::new(Arc::clone(id))),
        }
    }

    /// A counter that [`State::counters`] has found, to be changed.
    pub fn counter_mut(&mut self, id: &Arc<CounterId>) -> &mut Counter {
        let base = self.base;
        self.changes.counters.entry(Arc::clone(id)).or_insert_with(|| {
            let loaded = base.counters.get(id).and_then(Option::as_ref);
            loaded.cloned().unwrap_or_else(|| Counter::new(Arc::clone(id)))
        })
    }

    /// Makes or replaces a reservation.
    pub fn put_reservation(&mut self, reservation: Reservation) {
        self.changes.reservations.insert(reservation.key.clone(), reservation);
    }

    /// Binds a resource.
    pub fn bind(&mut self, resource: ResourceKey, owner: ReservationKey) {
        self.changes.resources.insert(resource, owner);
    }
}

fn look_up<'s, K, V>(
    key: &K,
    changed: &'s HashMap<K, V>,
    base: &'s Rows<K, V>,
    missing: &mut Vec<K>,
) -> Result<Option<&'s V>, Missing>
where
    K: Clone + Eq + Hash,
{
    if let Some(value) = changed.get(key) {
        return Ok(Some(value));
    }
    match base.get(key) {
        Some(row) => Ok(row.as_ref()),
        None => {
            missing.push(key.clone());
            Err(Missing)
        }
    }
}
