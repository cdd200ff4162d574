//! Folding the rules over a batch, and what the outcomes rest on.
//!
//! A record in the working set is *certain* when it was read during this
//! attempt; otherwise it is cached or, for the id of a Reserve, merely taken to
//! be absent. An outcome that changes records is proven by the guards of its
//! writes. One that changes nothing (a refusal, a replay) may only rest on
//! certain records, or on records that the same batch writes under guard; the
//! rest is read, and the batch folded again.
//!
//! An id that is said to be unused must have been looked up no earlier than
//! the counters and resources that refuse it: otherwise another server could
//! admit the very id in between, and the caller be refused for want of the
//! units that he was just granted.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::cache::Cache;
use super::catalog::Catalog;
use super::queue::Pending;
use super::wait::{self, Ahead, Room};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::decide::{Answer, Command, Line, Rules, Stop, decide};
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::Policy;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Reservation;
use crate::domain::state::{Changes, Keys, Records, State};
use crate::domain::subject::Subject;
use crate::domain::time::{Span, Time};
use crate::store::{
    Binding, Change, ChangeSet, Extent, Removal, SharedStore, StoreError, Unbinding, Versioned,
};

/// The policies that a batch is decided by.
pub(super) type Policies = HashMap<String, Option<Arc<Policy>>>;

/// What a decision came to.
pub(super) type Outcome = Result<Answer, Refusal>;

/// The records that a batch is decided over: what was read during this
/// attempt and, beneath that, what this process wrote last.
pub(super) struct Working<'c> {
    catalog: &'c Catalog,
    /// `None` where only what the store says now will do.
    cache: Option<&'c Cache>,
    /// Nothing is taken to be absent that was not looked up.
    careful: bool,
    reservations: HashMap<ReservationKey, Read<Versioned<Arc<Reservation>>>>,
    counters: HashMap<Arc<CounterId>, Read<Versioned<Counter>>>,
    resources: HashMap<ResourceKey, Read<ReservationKey>>,
    subjects: HashMap<SubjectKey, Option<Arc<Subject>>>,
    /// How often the store was read.
    reads: u32,
}

/// A record that was read, or that there is none, and by which read.
struct Read<T> {
    record: Option<T>,
    by: u32,
}

/// A fold over a batch.
pub(super) enum Folded {
    /// These records must be read first.
    Unknown(Keys),
    /// Decided.
    Decided(Vec<Outcome>, Changes),
}

impl Records for Working<'_> {
    fn reservation(&self, key: &ReservationKey) -> Option<Option<&Arc<Reservation>>> {
        if let Some(read) = self.reservations.get(key) {
            return Some(read.record.as_ref().map(|row| &row.value));
        }
        Some(Some(&self.cache?.reservation(key)?.value))
    }

    fn counter(&self, id: &Arc<CounterId>) -> Option<Option<&Counter>> {
        if let Some(read) = self.counters.get(id) {
            return Some(read.record.as_ref().map(|row| &row.value));
        }
        Some(Some(&self.cache?.counter(id)?.value))
    }

    fn resource(&self, key: &ResourceKey) -> Option<Option<&ReservationKey>> {
        self.resources.get(key).map(|read| read.record.as_ref())
    }

    fn subject(&self, key: &SubjectKey) -> Option<Option<Arc<Subject>>> {
        self.subjects.get(key).cloned().or_else(|| self.catalog.subject(key))
    }
}

impl<'c> Working<'c> {
    /// Nothing is read yet. A `careful` one looks up every id and resource
    /// before it takes them to be unused.
    pub fn new(catalog: &'c Catalog, cache: Option<&'c Cache>, careful: bool) -> Self {
        Self {
            catalog,
            cache,
            careful,
            reservations: HashMap::new(),
            counters: HashMap::new(),
            resources: HashMap::new(),
            subjects: HashMap::new(),
            reads: 0,
        }
    }

    /// Decides every command of the batch, in order, each over what the ones
    /// before it left.
    pub fn fold(
        &self,
        batch: &[Pending],
        policies: &Policies,
        clock: Time,
        retention: Span,
        room: &Room,
    ) -> Folded {
        let mut state = State::over(self, !self.careful);
        let mut ahead = Ahead::of(room);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut rests_on = Vec::new();
        let mut complete = true;
        for pending in batch {
            let policy = policies.get(&pending.namespace).and_then(Option::as_deref);
            ahead.next(pending);
            let line = ahead.anybody().then_some(&ahead as &dyn Line);
            let rules = Rules { policy, clock, retention, line };
            let decided = differs_from_one_who_waits(&mut state, &ahead, pending)
                .and_then(|()| decide(&mut state, &rules, &pending.command));
            let outcome = match decided {
                Ok(answer) => Ok(answer),
                Err(Stop::Refused(refusal)) => Err(refusal),
                Err(Stop::Missing) => {
                    complete = false;
                    continue;
                }
            };
            if let Err(refusal) = &outcome
                && pending.may_stay()
                && wait::may_help(refusal)
            {
                ahead.stays(pending, refusal);
            }
            let read = state.take_read();
            if !matches!(&outcome, Ok(answer) if !answer.replayed) {
                rests_on.push(read);
            }
            outcomes.push(outcome);
        }
        if !complete {
            // Decisions made while records are missing do not count.
            return Folded::Unknown(state.take_missing());
        }
        let changes = state.into_changes();
        let unproven = self.unproven(rests_on, &changes);
        if unproven.is_empty() {
            Folded::Decided(outcomes, changes)
        } else {
            Folded::Unknown(unproven)
        }
    }

    /// The records that outcomes rest on and that nothing proves.
    fn unproven(&self, rests_on: Vec<Keys>, changes: &Changes) -> Keys {
        let mut unproven = Keys::default();
        for keys in rests_on {
            let counters = keys.counters.iter().filter_map(|k| Some(self.counters.get(k)?.by));
            let resources = keys.resources.iter().filter_map(|k| Some(self.resources.get(k)?.by));
            let latest = counters.chain(resources).max().unwrap_or_default();
            unproven.reservations.extend(keys.reservations.into_iter().filter(|key| {
                let proven = self
                    .reservations
                    .get(key)
                    .is_some_and(|read| read.record.is_some() || read.by >= latest);
                !proven && !changes.reservations.contains_key(key)
            }));
            let open = |k: &_| !self.counters.contains_key(k) && !changes.counters.contains_key(k);
            unproven.counters.extend(keys.counters.into_iter().filter(open));
            let open =
                |k: &_| !self.resources.contains_key(k) && !changes.resources.contains_key(k);
            unproven.resources.extend(keys.resources.into_iter().filter(open));
        }
        unproven
    }

    /// Reads records.
    pub async fn read(&mut self, keys: Keys, store: &SharedStore) -> Result<(), StoreError> {
        let wanted = distinct(keys);
        if wanted.is_empty() {
            return Ok(());
        }
        let asked = self.catalog.moment();
        let loaded = store.load(&wanted).await?;
        self.reads += 1;
        take_in(&mut self.reservations, loaded.reservations, self.reads);
        take_in(&mut self.counters, loaded.counters, self.reads);
        take_in(&mut self.resources, loaded.resources, self.reads);
        self.subjects.extend(self.catalog.read(loaded.subjects, asked));
        Ok(())
    }

    /// Takes in counters that were read otherwise.
    pub fn take_counters(&mut self, read: HashMap<Arc<CounterId>, Option<Versioned<Counter>>>) {
        self.reads += 1;
        take_in(&mut self.counters, read, self.reads);
    }

    /// Whether any of these reservations was found to exist.
    pub fn found<'k>(&self, mut keys: impl Iterator<Item = &'k ReservationKey>) -> bool {
        keys.any(|key| self.reservations.get(key).is_some_and(|read| read.record.is_some()))
    }

    /// The changes as a store takes them: each under the version that its
    /// record was decided over.
    pub fn change_set(&self, changes: Changes, now: Time, retention: Span) -> ChangeSet {
        debug_assert!(
            changes.reservations.values().flatten().all(|reservation| {
                let charges = reservation.charges.iter();
                charges.into_iter().all(|c| changes.counters.contains_key(&c.counter))
            }),
            "a reservation changes with all its counters"
        );
        let (mut reservations, mut removed) = (Vec::new(), Vec::new());
        let mut purge: HashMap<ReservationKey, Option<Time>> = HashMap::new();
        // A record that is made anew starts at a version that none before it
        // can have had, so that no stale guard ever fits it.
        let first = now.as_millis().saturating_mul(1000);
        let versions = |expected: Option<i64>| (expected, expected.map_or(first, |v| v + 1));
        for (key, value) in changes.reservations {
            let before = self.known(&key);
            let Some(value) = value else {
                // One that was made by this very batch was never there.
                let removal = |before: &Versioned<_>| Removal { key, expected: before.version };
                removed.extend(before.map(removal));
                continue;
            };
            let (expected, version) = versions(before.map(|before| before.version));
            let proven = self.proven_by_its_counters(&key, &value);
            let extent = before.map_or(Extent::Whole, |before| extent(&before.value, &value));
            let purge_at = value.purge_at;
            purge.insert(key, purge_at);
            reservations.push(Change { expected, version, value, purge_at, proven, extent });
        }
        let binding = |(resource, owner): (ResourceKey, Option<ReservationKey>)| {
            let owner = owner?;
            let purge_at = match resource.refund_id() {
                None => purge.get(&owner).copied().flatten(),
                // Nobody sends a lost call again after as long as that.
                Some(_) => Some(now.plus(retention)),
            };
            Some(Binding { resource, owner, purge_at })
        };
        let unbinding = |(resource, owner)| Unbinding { resource, owner };
        let counter = |(id, value): (Arc<CounterId>, Counter)| {
            let (expected, version) = versions(self.counter_version(&id));
            let (purge_at, extent) = (value.purge_at(retention), Extent::Usual);
            Change { expected, version, value, purge_at, proven: false, extent }
        };
        ChangeSet {
            resources: changes.resources.into_iter().filter_map(binding).collect(),
            removed_resources: changes.freed.into_iter().map(unbinding).collect(),
            reservations,
            removed_reservations: removed,
            counters: changes.counters.into_iter().map(counter).collect(),
            events: changes.events,
            ..ChangeSet::default()
        }
    }

    /// The reservation as it was read, or as it is cached.
    fn known(&self, key: &ReservationKey) -> Option<&Versioned<Arc<Reservation>>> {
        match self.reservations.get(key) {
            Some(read) => read.record.as_ref(),
            None => self.cache?.reservation(key),
        }
    }

    /// Whether a cached reservation may be changed without a guard of its own,
    /// since its counters, guarded as they are cached, stand for it.
    fn proven_by_its_counters(&self, key: &ReservationKey, reservation: &Reservation) -> bool {
        let as_cached = || {
            reservation.charges.iter().all(|charge| !self.counters.contains_key(&charge.counter))
        };
        !self.reservations.contains_key(key)
            && as_cached()
            && self.cache.is_some_and(|cache| cache.proven_by_its_counters(key))
    }

    fn counter_version(&self, id: &Arc<CounterId>) -> Option<i64> {
        match self.counters.get(id) {
            Some(read) => Some(read.record.as_ref()?.version),
            None => Some(self.cache?.counter(id)?.version),
        }
    }
}

/// An id that somebody waits under is used, though nothing is stored under it
/// yet: a Reserve of other content under it is refused. What is stored decides
/// first, as ever.
fn differs_from_one_who_waits(
    state: &mut State<'_>,
    ahead: &Ahead<'_>,
    pending: &Pending,
) -> Result<(), Stop> {
    let Command::Reserve(reserve) = &pending.command else { return Ok(()) };
    let asked = if ahead.anybody() { ahead.asked_under(&reserve.key) } else { None };
    let Some(differs) = asked.and_then(|asked| asked.difference(&reserve.request)) else {
        return Ok(());
    };
    if state.reservation(&reserve.key)?.is_some() {
        return Ok(());
    }
    let id = reserve.key.id().into_owned();
    Err(Refusal::ReservationIdReused { id, differs }.into())
}

/// How much of a reservation has changed.
fn extent(before: &Arc<Reservation>, after: &Arc<Reservation>) -> Extent {
    // Settling and extending one leave what it was charged where it is; one that
    // was undone and made again under its id has charges of its own.
    if !Arc::ptr_eq(&before.charges, &after.charges) {
        Extent::Whole
    } else if (before.expire_time, before.purge_at) != (after.expire_time, after.purge_at) {
        Extent::Instants
    } else {
        Extent::Usual
    }
}

fn take_in<K: Eq + Hash, T>(
    rows: &mut HashMap<K, Read<T>>,
    loaded: HashMap<K, Option<T>>,
    by: u32,
) {
    rows.extend(loaded.into_iter().map(|(key, record)| (key, Read { record, by })));
}

fn distinct(keys: Keys) -> Keys {
    fn once<K: Clone + Eq + Hash>(keys: Vec<K>) -> Vec<K> {
        let mut seen = HashSet::with_capacity(keys.len());
        keys.into_iter().filter(|key| seen.insert(key.clone())).collect()
    }
    Keys {
        reservations: once(keys.reservations),
        counters: once(keys.counters),
        resources: once(keys.resources),
        subjects: once(keys.subjects),
    }
}
