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
use tokio::time::Instant;

use super::cache::Cache;
use super::catalog::Catalog;
use super::queue::Pending;
use crate::domain::counter::{Counter, CounterId};
use crate::domain::decide::{Answer, Rules, Stop, decide};
use crate::domain::name::{ReservationKey, ResourceKey};
use crate::domain::policy::Policy;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Reservation;
use crate::domain::state::{Base, Changes, Keys, Rows, State};
use crate::domain::time::{Span, Time};
use crate::store::{Binding, Change, ChangeSet, SharedStore, StoreError, Versioned};

/// The policies that a batch is decided by.
pub(super) type Policies = HashMap<String, Option<Arc<Policy>>>;

/// What a decision came to.
pub(super) type Outcome = Result<Answer, Refusal>;

/// The records that a batch is decided over.
#[derive(Default)]
pub(super) struct Working {
    base: Base,
    reservations: Provenance<ReservationKey>,
    counters: Provenance<Arc<CounterId>>,
    resources: Provenance<ResourceKey>,
    /// How often the store was read.
    reads: u32,
    /// Nothing is taken to be absent that was not looked up.
    careful: bool,
}

/// Where the records of one kind come from.
struct Provenance<K> {
    versions: HashMap<K, i64>,
    /// The records that were read, and by which read.
    certain: HashMap<K, u32>,
}

impl<K> Default for Provenance<K> {
    fn default() -> Self {
        Self { versions: HashMap::new(), certain: HashMap::new() }
    }
}

/// A fold over a batch.
pub(super) enum Folded {
    /// These records must be read first; cached ones will do.
    Missing(Keys),
    /// These records must be read first, for certain.
    Unproven(Keys),
    /// Decided.
    Decided(Vec<Outcome>, Changes),
}

/// Where a batch's records are read.
pub(super) struct Sources<'s> {
    pub store: &'s SharedStore,
    pub catalog: &'s Catalog,
    /// `None` for a reader, who wants to know what the store says and not what
    /// this process wrote last.
    pub cache: Option<&'s mut Cache>,
}

impl Working {
    /// Nothing is there yet. A `careful` one looks up every id and resource
    /// before it takes them to be unused.
    pub fn new(careful: bool) -> Self {
        Self { careful, ..Self::default() }
    }

    /// Decides every command of the batch, in order, each over what the ones
    /// before it left.
    pub fn fold(
        &self,
        batch: &[Pending],
        policies: &Policies,
        clock: Time,
        retention: Span,
    ) -> Folded {
        let mut state = State::over(&self.base, !self.careful);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut rests_on = Vec::new();
        let mut complete = true;
        for pending in batch {
            let policy = policies.get(&pending.namespace).and_then(Option::as_deref);
            let rules = Rules { policy, clock, retention };
            let outcome = match decide(&mut state, &rules, &pending.command) {
                Ok(answer) => Ok(answer),
                Err(Stop::Refused(refusal)) => Err(refusal),
                Err(Stop::Missing) => {
                    complete = false;
                    continue;
                }
            };
            let read = state.take_read();
            if !matches!(&outcome, Ok(answer) if !answer.replayed) {
                rests_on.push(read);
            }
            outcomes.push(outcome);
        }
        if !complete {
            // Decisions made over records that are missing do not count.
            return Folded::Missing(state.take_missing());
        }
        let changes = state.into_changes();
        let unproven = self.unproven(rests_on, &changes);
        if unproven.is_empty() {
            Folded::Decided(outcomes, changes)
        } else {
            Folded::Unproven(unproven)
        }
    }

    fn unproven(&self, rests_on: Vec<Keys>, changes: &Changes) -> Keys {
        let mut unproven = Keys::default();
        for keys in rests_on {
            let read = |certain: Option<&u32>| certain.copied().unwrap_or_default();
            let counters = keys.counters.iter().map(|k| read(self.counters.certain.get(k)));
            let resources = keys.resources.iter().map(|k| read(self.resources.certain.get(k)));
            let latest = counters.chain(resources).max().unwrap_or_default();
            unproven.reservations.extend(keys.reservations.into_iter().filter(|key| {
                let absent = || matches!(self.base.reservations.get(key), Some(None));
                let proven = match self.reservations.certain.get(key) {
                    None => false,
                    Some(read) => !absent() || *read >= latest,
                };
                !proven && !changes.reservations.contains_key(key)
            }));
            let certain = &self.counters.certain;
            let open = |k: &_| !certain.contains_key(k) && !changes.counters.contains_key(k);
            unproven.counters.extend(keys.counters.into_iter().filter(open));
            let certain = &self.resources.certain;
            let open = |k: &_| !certain.contains_key(k) && !changes.resources.contains_key(k);
            unproven.resources.extend(keys.resources.into_iter().filter(open));
        }
        unproven
    }

    /// The records.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Brings records in: from the cache where that will do, from the store
    /// otherwise.
    pub async fn bring_in(
        &mut self,
        keys: Keys,
        cached: bool,
        sources: &mut Sources<'_>,
    ) -> Result<(), StoreError> {
        let mut wanted = distinct(keys);
        if cached && let Some(cache) = &mut sources.cache {
            wanted.counters.retain(|id| match cache.counter(id) {
                Some(record) => {
                    self.counters.versions.insert(Arc::clone(id), record.version);
                    self.base.counters.insert(Arc::clone(id), Some(record.value.clone()));
                    false
                }
                None => true,
            });
            wanted.reservations.retain(|key| match cache.reservation(key) {
                Some(record) => {
                    self.reservations.versions.insert(key.clone(), record.version);
                    self.base.reservations.insert(key.clone(), Some(record.value.clone()));
                    false
                }
                None => true,
            });
        }
        wanted.subjects.retain(|key| match sources.catalog.subject(key) {
            Some(subject) => {
                self.base.subjects.insert(key.clone(), subject);
                false
            }
            None => true,
        });
        if wanted.is_empty() {
            return Ok(());
        }
        let asked = Instant::now();
        let loaded = sources.store.load(&wanted).await?;
        self.reads += 1;
        let read = self.reads;
        take_in(loaded.reservations, &mut self.base.reservations, &mut self.reservations, read);
        take_in(loaded.counters, &mut self.base.counters, &mut self.counters, read);
        for (key, owner) in loaded.resources {
            self.resources.certain.insert(key.clone(), read);
            self.base.resources.insert(key, owner);
        }
        let unversioned = |row: Option<Versioned<_>>| row.map(|row| row.value);
        let subjects = loaded.subjects.into_iter().map(|(key, row)| (key, unversioned(row)));
        let subjects: HashMap<_, _> = subjects.collect();
        sources.catalog.read(&subjects, asked);
        self.base.subjects.extend(subjects);
        Ok(())
    }

    /// Whether any of these reservations was found to exist.
    pub fn found<'k>(&self, mut keys: impl Iterator<Item = &'k ReservationKey>) -> bool {
        keys.any(|key| matches!(self.base.reservations.get(key), Some(Some(_))))
    }

    /// The changes as a store takes them: each under the version that its
    /// record was decided over.
    pub fn change_set(&self, changes: Changes, now: Time, retention: Span) -> ChangeSet {
        let first = now.as_millis().saturating_mul(1000);
        let versions = |expected: Option<i64>| (expected, expected.map_or(first, |v| v + 1));
        let purge = |key: &ReservationKey| changes.reservations.get(key).and_then(|r| r.purge_at);
        let resources = changes
            .resources
            .iter()
            .map(|(resource, owner)| Binding {
                resource: resource.clone(),
                owner: owner.clone(),
                purge_at: purge(owner),
            })
            .collect();
        let reservation = |(key, value): (ReservationKey, Reservation)| {
            let (expected, version) = versions(self.reservations.versions.get(&key).copied());
            Change { expected, version, purge_at: value.purge_at, value }
        };
        let counter = |(id, value): (Arc<CounterId>, Counter)| {
            let (expected, version) = versions(self.counters.versions.get(&id).copied());
            Change { expected, version, purge_at: value.purge_at(retention), value }
        };
        ChangeSet {
            resources,
            reservations: changes.reservations.into_iter().map(reservation).collect(),
            counters: changes.counters.into_iter().map(counter).collect(),
            ..ChangeSet::default()
        }
    }
}

fn take_in<K: Clone + Eq + Hash, V>(
    loaded: HashMap<K, Option<Versioned<V>>>,
    rows: &mut Rows<K, V>,
    provenance: &mut Provenance<K>,
    read: u32,
) {
    for (key, row) in loaded {
        provenance.certain.insert(key.clone(), read);
        match row {
            None => {
                provenance.versions.remove(&key);
                rows.insert(key, None);
            }
            Some(row) => {
                provenance.versions.insert(key.clone(), row.version);
                rows.insert(key, Some(row.value));
            }
        }
    }
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
