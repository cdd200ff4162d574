//! A store in memory: for tests, and for the CI of those who build against the
//! contract. Nothing survives the process.

use async_trait::async_trait;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

use super::lists::{CounterFacts, Lists, ReservationFacts};
use super::trail::{REFUSALS_KEPT, newest};
use super::{
    Binding, Change, ChangeSet, Charged, CounterFilter, CounterPlace, Extent, Kept, Loaded,
    ReservationFilter, Retention, Store, StoreError, SubjectFilter, TrailFilter, TrailPlace,
    Unbinding, Versioned, Visitor, WriteError,
};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::store::clock::Clock;

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    reservations: BTreeMap<Arc<str>, Versioned<Arc<Reservation>>>,
    counters: BTreeMap<Arc<str>, Versioned<Counter>>,
    lists: Lists,
    resources: HashMap<ResourceKey, ReservationKey>,
    // By key, so that they can be listed.
    subjects: BTreeMap<SubjectKey, Versioned<Subject>>,
    policies: HashMap<String, BTreeMap<i64, PolicyRevision>>,
    events: Vec<Event>,
    /// The last ones, and how many there were before them.
    refusals: VecDeque<RefusalRecord>,
    forgotten: u64,
    values: HashMap<String, i64>,
}

impl MemoryStore {
    /// An empty store that reads this clock.
    pub fn new(clock: Clock) -> Self {
        Self { clock, records: Mutex::default() }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.records().events.clone()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        Ok(self.records().load(keys))
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let mut records = self.records();
        records.check(changes)?;
        if changes.valid_until.is_some_and(|until| Instant::now() > until) {
            return Err(WriteError::Conflict);
        }
        records.apply(changes);
        Ok(())
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        let records = self.records();
        let revisions = records.policies.get(namespace);
        Ok(revisions.and_then(|all| all.last_key_value()).map(|(&revision, _)| revision))
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        Ok(self.records().policies.get(namespace).and_then(|all| all.get(&revision)).cloned())
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        let records = self.records();
        let Some(revisions) = records.policies.get(namespace) else { return Ok(Vec::new()) };
        let older = revisions.range(..before.unwrap_or(i64::MAX)).rev().take(limit);
        Ok(older.map(|(_, revision)| revision.head()).collect())
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        let Some((after, end)) = filter.between(key) else { return Ok(Vec::new()) };
        let bounds = [after, end].map(SubjectKey::from_stored);
        let records = self.records();
        let found = records.subjects.range((Excluded(&bounds[0]), Excluded(&bounds[1])));
        let meant = found.filter(|(_, row)| filter.has_plan(&row.value.plan));
        Ok(meant.take(limit).map(|(_, row)| row.clone()).collect())
    }

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        Ok(page(&self.records().reservations, key, limit))
    }

    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        Ok(page(&self.records().counters, key, limit))
    }

    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError> {
        let records = self.records();
        let meant = (0..).zip(&records.events).filter(|(_, event)| filter.wants_event(event));
        Ok(newest(meant, |event| event.time, before, limit))
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        let records = self.records();
        let all = (records.forgotten..).zip(&records.refusals);
        let meant = all.filter(|(_, refused)| filter.wants_refusal(refused));
        Ok(newest(meant, |refused| refused.time, before, limit))
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        let mut records = self.records();
        records.refusals.extend(refusals.iter().cloned());
        let beyond = records.refusals.len().saturating_sub(REFUSALS_KEPT);
        records.refusals.drain(..beyond);
        records.forgotten += beyond as u64;
        Ok(())
    }

    /// The moment is that of the lock: what is to be shown is gathered under it,
    /// by reference, and shown afterwards.
    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        let (found, reservations) = {
            let records = self.records();
            let keys = records.lists.charged(counters, held_after);
            let reservations = keys.iter().filter_map(|(key, _)| records.reservations.get(key));
            let reservations = reservations.map(|row| Arc::clone(&row.value)).collect::<Vec<_>>();
            (look_up(counters, |k| records.counters.get(&*k.text)), reservations)
        };
        let shown = reservations.into_iter().map(Charged::Reservation);
        // Whoever has seen enough is shown no more.
        let _ = [Charged::Counters(found)].into_iter().chain(shown).try_for_each(visit);
        Ok(())
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        let records = self.records();
        let keys = records.lists.reservations_before(filter, before, limit);
        let found = keys.iter().filter_map(|key| records.reservations.get(key));
        Ok(found.map(|row| Arc::clone(&row.value)).collect())
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        let records = self.records();
        let keys = records.lists.counters_of(filter, after, limit);
        let found = keys.iter().filter_map(|key| records.counters.get(key));
        Ok(found.map(|row| row.value.clone()).collect())
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.records().values.get(name).copied())
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        let mut records = self.records();
        if records.values.get(name).copied() != expected {
            return Ok(false);
        }
        records.values.insert(name.to_owned(), new);
        Ok(true)
    }

    /// Nothing is ever removed: the process ends before it would matter.
    async fn retain(&self, _retention: Retention) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {}
}

impl Records {
    fn load(&self, keys: &Keys) -> Loaded {
        Loaded {
            reservations: look_up(&keys.reservations, |k| self.reservations.get(k.as_str())),
            counters: look_up(&keys.counters, |k| self.counters.get(&*k.text)),
            resources: look_up(&keys.resources, |k| self.resources.get(k)),
            subjects: look_up(&keys.subjects, |k| self.subjects.get(k)),
        }
    }

    fn check(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        for change in &changes.counters {
            change.guard_quietly(version(self.counters.get(&*change.value.id.text)))?;
        }
        for change in &changes.reservations {
            let guarded = change.guard(version(self.reservations.get(change.value.key.as_str())));
            // Other stores take the caller's word for it; this one can tell.
            debug_assert!(!change.proven || guarded.is_ok(), "not proven: {}", change.value.key);
            guarded?;
        }
        for removal in &changes.removed_reservations {
            removal.guard(version(self.reservations.get(removal.key.as_str())))?;
        }
        for change in &changes.subjects {
            change.guard_quietly(version(self.subjects.get(&change.value.key())))?;
        }
        for removal in &changes.removed_subjects {
            removal.guard(version(self.subjects.get(&removal.key)))?;
        }
        let freed = |binding: &Binding| {
            let owner = self.resources.get(&binding.resource);
            let mut freed = changes.removed_resources.iter();
            freed.any(|freed| freed.resource == binding.resource && Some(&freed.owner) == owner)
        };
        let taken = |binding: &Binding| self.resources.contains_key(&binding.resource);
        let bound = changes.resources.iter().any(|binding| taken(binding) && !freed(binding));
        let applied = changes.policies.iter().any(|policy| {
            let revisions = self.policies.get(&policy.spec.namespace);
            revisions.is_some_and(|all| all.contains_key(&policy.revision))
        });
        if bound || applied { Err(WriteError::Exists) } else { Ok(()) }
    }

    fn remove_reservation(&mut self, key: &str) {
        if let Some(old) = self.reservations.remove(key) {
            self.lists.forget_reservation(key, &ReservationFacts::of(&old.value));
        }
    }

    fn apply(&mut self, changes: &ChangeSet) {
        for Change { version, value, extent, .. } in changes.reservations.iter().cloned() {
            if extent == Extent::Whole {
                self.remove_reservation(value.key.as_str());
            }
            let known = self.reservations.get_key_value(value.key.as_str());
            let key = known.map_or_else(|| Arc::from(value.key.as_str()), |(k, _)| Arc::clone(k));
            self.lists.put_reservation(&key, 0, &ReservationFacts::of(&value));
            self.reservations.insert(key, Versioned { version, value });
        }
        for removal in &changes.removed_reservations {
            self.remove_reservation(removal.key.as_str());
        }
        for Change { version, value, .. } in changes.counters.iter().cloned() {
            let text = self.counters.get_key_value(&*value.id.text).map(|(text, _)| text);
            let text = text.map_or_else(|| Arc::from(&*value.id.text), Arc::clone);
            self.lists.put_counter(&text, &CounterFacts::of(&value.id));
            self.counters.insert(text, Versioned { version, value });
        }
        for Change { version, value, .. } in changes.subjects.iter().cloned() {
            self.subjects.insert(value.key(), Versioned { version, value });
        }
        for removal in &changes.removed_subjects {
            self.subjects.remove(&removal.key);
        }
        for Unbinding { resource, owner } in &changes.removed_resources {
            if self.resources.get(resource) == Some(owner) {
                self.resources.remove(resource);
            }
        }
        for Binding { resource, owner, .. } in changes.resources.iter().cloned() {
            self.resources.insert(resource, owner);
        }
        for policy in changes.policies.iter().cloned() {
            let revisions = self.policies.entry(policy.spec.namespace.clone()).or_default();
            revisions.insert(policy.revision, policy);
        }
        self.events.extend(changes.events.iter().cloned());
    }
}

fn look_up<'r, K, V>(keys: &[K], get: impl Fn(&K) -> Option<&'r V>) -> HashMap<K, Option<V>>
where
    K: Clone + Eq + Hash,
    V: Clone + 'r,
{
    keys.iter().map(|key| (key.clone(), get(key).cloned())).collect()
}

fn version<T>(present: Option<&Versioned<T>>) -> Option<i64> {
    present.map(|present| present.version)
}

fn page<T: Clone>(
    all: &BTreeMap<Arc<str>, Versioned<T>>,
    key: Option<&str>,
    limit: usize,
) -> Vec<T> {
    let after = key.map_or(Unbounded, Excluded);
    all.range::<str, _>((after, Unbounded)).take(limit).map(|(_, row)| row.value.clone()).collect()
}
