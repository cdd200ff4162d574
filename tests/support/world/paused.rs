//! A store that stops once, right after it has looked up reservations or has
//! written: so that what happens elsewhere in that moment can be arranged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use quota_authority::domain::counter::{Counter, CounterId};
use quota_authority::domain::event::{Event, RefusalRecord};
use quota_authority::domain::name::{ReservationKey, SubjectKey};
use quota_authority::domain::policy::{PolicyRevision, RevisionHead};
use quota_authority::domain::reservation::Reservation;
use quota_authority::domain::state::Keys;
use quota_authority::domain::subject::Subject;
use quota_authority::domain::time::Time;
use quota_authority::store::{
    ChangeSet, CounterFeed, CounterFilter, CounterPlace, Feed, Kept, Loaded, ReservationFilter,
    Retention, SharedStore, Store, StoreError, SubjectFilter, TestClock, TrailFilter, TrailPlace,
    Versioned, Visitor, WriteError,
};
use tokio::sync::Notify;

/// The store.
pub struct PausedStore {
    inner: SharedStore,
    armed: AtomicBool,
    armed_for_write: AtomicBool,
    reached: Notify,
    released: Notify,
}

impl PausedStore {
    pub fn new(inner: SharedStore) -> Arc<Self> {
        let (reached, released) = (Notify::new(), Notify::new());
        let (armed, armed_for_write) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, armed, armed_for_write, reached, released })
    }

    /// Stops at the next look at reservations.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Stops after the next write.
    pub fn arm_for_write(&self) {
        self.armed_for_write.store(true, Ordering::SeqCst);
    }

    /// Waits until it has stopped.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets it go on.
    pub fn release(&self) {
        self.released.notify_one();
    }
}

#[async_trait]
impl Store for PausedStore {
    fn name(&self) -> &'static str {
        "paused"
    }

    fn now(&self) -> Time {
        self.inner.now()
    }

    async fn tick(&self) -> Result<(), StoreError> {
        self.inner.tick().await
    }

    fn test_clock(&self) -> Option<Arc<TestClock>> {
        self.inner.test_clock()
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        let loaded = self.inner.load(keys).await;
        if !keys.reservations.is_empty() && self.armed.swap(false, Ordering::SeqCst) {
            self.reached.notify_one();
            self.released.notified().await;
        }
        loaded
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let written = self.inner.write(changes).await;
        if self.armed_for_write.swap(false, Ordering::SeqCst) {
            self.reached.notify_one();
            self.released.notified().await;
        }
        written
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        self.inner.policy_head(namespace).await
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        self.inner.policy(namespace, revision).await
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        self.inner.revisions_before(namespace, before, limit).await
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        self.inner.subjects_after(filter, key, limit).await
    }

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        self.inner.reservations_after(key, limit).await
    }

    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        self.inner.counters_after(key, limit).await
    }

    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError> {
        self.inner.events_before(filter, before, limit).await
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        self.inner.refusals_before(filter, before, limit).await
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        self.inner.note_refusals(refusals).await
    }

    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        self.inner.charged(counters, held_after, visit).await
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        self.inner.reservations_before(filter, before, limit).await
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        self.inner.counters_of(filter, after, limit).await
    }

    fn changes(&self) -> Feed {
        self.inner.changes()
    }

    fn counter_changes(&self) -> CounterFeed {
        self.inner.counter_changes()
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        self.inner.value(name).await
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        self.inner.swap(name, expected, new).await
    }

    async fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        self.inner.retain(retention).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
