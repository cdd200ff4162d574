//! The records that decisions read and change.
//!
//! [`Records`] are what is known; a [`State`] lies over them and collects what
//! decisions change, so that a batch can be folded again from the same records.
//! A decision that needs a record which is not known reports it as missing and
//! is made again once it is loaded: the rules alone know what they need.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::counter::{Counter, CounterId};
use super::event::Event;
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

/// The records that decisions are made over, as far as they are known.
/// `None` means not known, `Some(None)` that there is no such record.
pub trait Records: Sync {
    /// A reservation.
    fn reservation(&self, key: &ReservationKey) -> Option<Option<&Arc<Reservation>>>;
    /// A counter.
    fn counter(&self, id: &Arc<CounterId>) -> Option<Option<&Counter>>;
    /// The reservation that a resource belongs to.
    fn resource(&self, key: &ResourceKey) -> Option<Option<&ReservationKey>>;
    /// A subject.
    fn subject(&self, key: &SubjectKey) -> Option<Option<Arc<Subject>>>;
}

/// What decisions changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Reservations made or changed; `None` for one that is undone, whose id is
    /// free again.
    pub reservations: HashMap<ReservationKey, Option<Arc<Reservation>>>,
    /// Counters charged or given back to.
    pub counters: HashMap<Arc<CounterId>, Counter>,
    /// Resources and whom they belong to now; `None` for one that is free again.
    pub resources: HashMap<ResourceKey, Option<ReservationKey>>,
    /// Resources that were bound before and are set free, each with whom it
    /// belonged to. They may be bound anew by the same changes.
    pub freed: Vec<(ResourceKey, ReservationKey)>,
    /// What else is told in the trail.
    pub events: Vec<Event>,
}

/// Records and the changes made over them.
pub struct State<'a> {
    records: &'a dyn Records,
    /// Take the id of a Reserve and the resources of a commit to be free where
    /// they are not known: the unique indexes object if they are not.
    trusting: bool,
    changes: Changes,
    missing: Keys,
    read: Keys,
}

impl<'a> State<'a> {
    /// Nothing changed yet. A `trusting` state takes the id of a Reserve and
    /// the resources of a commit to be free where they are not known, and
    /// relies on the unique indexes to object; another reports them missing.
    pub fn over(records: &'a dyn Records, trusting: bool) -> Self {
        let (missing, read) = (Keys::default(), Keys::default());
        Self { records, trusting, changes: Changes::default(), missing, read }
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
    pub fn reservation(
        &mut self,
        key: &ReservationKey,
    ) -> Result<Option<&Arc<Reservation>>, Missing> {
        self.read.reservations.push(key.clone());
        if let Some(changed) = self.changes.reservations.get(key) {
            return Ok(changed.as_ref());
        }
        self.records.reservation(key).ok_or_else(|| {
            self.missing.reservations.push(key.clone());
            Missing
        })
    }

    /// The reservation that a Reserve would make: most often there is none.
    pub fn reservation_to_make(
        &mut self,
        key: &ReservationKey,
    ) -> Result<Option<&Arc<Reservation>>, Missing> {
        if self.trusting && self.records.reservation(key).is_none() {
            self.read.reservations.push(key.clone());
            return Ok(self.changes.reservations.get(key).and_then(Option::as_ref));
        }
        self.reservation(key)
    }

    /// Whom the resource belongs to, or `None` where it is free.
    pub fn resource(&mut self, key: &ResourceKey) -> Result<Option<&ReservationKey>, Missing> {
        self.read.resources.push(key.clone());
        if let Some(changed) = self.changes.resources.get(key) {
            return Ok(changed.as_ref());
        }
        self.records.resource(key).ok_or_else(|| {
            self.missing.resources.push(key.clone());
            Missing
        })
    }

    /// Whom the resource belongs to that a commit would bind: most often
    /// nobody.
    pub fn resource_to_bind(
        &mut self,
        key: &ResourceKey,
    ) -> Result<Option<&ReservationKey>, Missing> {
        if self.trusting && self.records.resource(key).is_none() {
            self.read.resources.push(key.clone());
            return Ok(self.changes.resources.get(key).and_then(Option::as_ref));
        }
        self.resource(key)
    }

    /// The subject, or `None` where it was never put.
    pub fn subject(&mut self, key: &SubjectKey) -> Result<Option<Arc<Subject>>, Missing> {
        self.records.subject(key).ok_or_else(|| {
            self.missing.subjects.push(key.clone());
            Missing
        })
    }

    /// The counters. All that are missing are reported at once.
    pub fn counters<'c>(
        &mut self,
        ids: impl IntoIterator<Item = &'c Arc<CounterId>>,
    ) -> Result<(), Missing> {
        let mut complete = Ok(());
        for id in ids {
            self.read.counters.push(Arc::clone(id));
            if !self.changes.counters.contains_key(id) && self.records.counter(id).is_none() {
                self.missing.counters.push(Arc::clone(id));
                complete = Err(Missing);
            }
        }
        complete
    }

    /// A counter that [`State::counters`] has found; fresh where none is
    /// stored.
    pub fn counter(&self, id: &Arc<CounterId>) -> Cow<'_, Counter> {
        let known = || self.records.counter(id).flatten();
        match self.changes.counters.get(id).or_else(known) {
            Some(counter) => Cow::Borrowed(counter),
            None => Cow::Owned(Counter::new(Arc::clone(id))),
        }
    }

    /// A counter that [`State::counters`] has found, to be changed.
    pub fn counter_mut(&mut self, id: &Arc<CounterId>) -> &mut Counter {
        let records = self.records;
        self.changes.counters.entry(Arc::clone(id)).or_insert_with(|| {
            let known = records.counter(id).flatten();
            known.cloned().unwrap_or_else(|| Counter::new(Arc::clone(id)))
        })
    }

    /// Makes or replaces a reservation.
    pub fn put_reservation(&mut self, reservation: Arc<Reservation>) {
        self.changes.reservations.insert(reservation.key.clone(), Some(reservation));
    }

    /// Takes a reservation back as if it had never been made.
    pub fn remove_reservation(&mut self, key: &ReservationKey) {
        self.changes.reservations.insert(key.clone(), None);
    }

    /// Binds a resource.
    pub fn bind(&mut self, resource: ResourceKey, owner: ReservationKey) {
        self.changes.resources.insert(resource, Some(owner));
    }

    /// Whether a resource that belongs to `owner` may be set free. Where it was
    /// taken to be unused, and bound to another by these very changes, that is
    /// found out here: it must be known before anything is decided about it.
    pub fn resource_to_free(
        &mut self,
        key: &ResourceKey,
        owner: &ReservationKey,
    ) -> Result<(), Missing> {
        match self.changes.resources.get(key) {
            Some(Some(other)) if other != owner => {
                self.missing.resources.push(key.clone());
                Err(Missing)
            }
            _ => Ok(()),
        }
    }

    /// Sets a resource free that belongs to `owner`, after
    /// [`State::resource_to_free`].
    pub fn unbind(&mut self, resource: ResourceKey, owner: &ReservationKey) {
        let bound_here = self.changes.resources.insert(resource.clone(), None).flatten().is_some();
        if !bound_here {
            self.changes.freed.push((resource, owner.clone()));
        }
    }

    /// Tells something in the trail.
    pub fn tell(&mut self, event: Event) {
        self.changes.events.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of which nothing is known.
    struct Unknown;

    impl Records for Unknown {
        fn reservation(&self, _: &ReservationKey) -> Option<Option<&Arc<Reservation>>> {
            None
        }

        fn counter(&self, _: &Arc<CounterId>) -> Option<Option<&Counter>> {
            None
        }

        fn resource(&self, _: &ResourceKey) -> Option<Option<&ReservationKey>> {
            None
        }

        fn subject(&self, _: &SubjectKey) -> Option<Option<Arc<Subject>>> {
            None
        }
    }

    /// A commit took the resource to be free, and then its owner is refunded:
    /// neither binding may be lost.
    #[test]
    fn a_resource_that_was_taken_to_be_unused_is_looked_up_before_its_owner_frees_it() {
        let [first, second] = ["a", "b"].map(|id| ReservationKey::new("n", id));
        let resource = ResourceKey::new("n", "r");
        let mut state = State::over(&Unknown, true);
        assert_eq!(state.resource_to_bind(&resource), Ok(None));
        state.bind(resource.clone(), second.clone());
        assert_eq!(state.resource_to_free(&resource, &first), Err(Missing));
        assert_eq!(state.take_missing().resources, std::slice::from_ref(&resource));
        assert_eq!(state.resource_to_free(&resource, &second), Ok(()));
        state.unbind(resource.clone(), &second);
        assert!(state.into_changes().freed.is_empty(), "it was bound by these changes");
        let mut state = State::over(&Unknown, true);
        assert_eq!(state.resource_to_free(&resource, &first), Ok(()));
        state.unbind(resource.clone(), &first);
        assert_eq!(state.into_changes().freed, [(resource, first)]);
    }
}
