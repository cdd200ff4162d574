//! A store that misbehaves as real ones do, by seed: for tests.
//!
//! Every fault that it injects is one that the trait allows: conflicts,
//! definite failures, outcomes unknown both ways, and delays.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::broadcast;

use super::{
    ChangeSet, Changed, CounterFeed, CounterFilter, CounterPlace, Feed, Kept, Loaded,
    ReservationFilter, Retention, SharedStore, Store, StoreError, SubjectFilter, TestClock,
    TrailFilter, TrailPlace, Versioned, Visitor, WriteError,
};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::Time;

/// What may go wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another writer is said to have been first.
    Conflict,
    /// Nothing is written, and the caller is told so.
    Failed,
    /// It is written, but the caller is told that this is unknown.
    AppliedUnknown,
    /// It is not written, and the caller is told that this is unknown.
    LostUnknown,
    /// It is written late, after the caller was told that this is unknown.
    LateUnknown,
    /// It is written, after a pause.
    Delay,
    /// It is written after three seconds, if it still may be by then.
    Slow,
}

impl Fault {
    /// Those that chance may draw.
    const ALL: [Self; 6] = [
        Self::Conflict,
        Self::Failed,
        Self::AppliedUnknown,
        Self::LostUnknown,
        Self::LateUnknown,
        Self::Delay,
    ];
}

/// A store that misbehaves.
pub struct FaultyStore {
    inner: SharedStore,
    state: Mutex<State>,
    announcements: broadcast::Sender<Changed>,
}

struct State {
    chance: fastrand::Rng,
    /// How many writes of a hundred go wrong by chance.
    percent: u32,
    /// Faults of the next writes, before chance has its say.
    scripted: VecDeque<Fault>,
    down: bool,
}

impl FaultyStore {
    /// Misbehaves at `percent` of writes, by `seed`.
    pub fn new(inner: SharedStore, seed: u64, percent: u32) -> Arc<Self> {
        let chance = fastrand::Rng::with_seed(seed);
        let state = State { chance, percent, scripted: VecDeque::new(), down: false };
        let announcements = broadcast::channel(64).0;
        Arc::new(Self { inner, state: Mutex::new(state), announcements })
    }

    /// Misbehaves so at the next writes.
    pub fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().scripted.extend(faults);
    }

    /// Answers nothing until it is up again.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// Tells those who follow the changes of one that was made elsewhere.
    pub fn announce(&self, changed: Changed) {
        // Nobody may be following.
        let _ = self.announcements.send(changed);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Option<Fault> {
        let mut state = self.state();
        if let Some(fault) = state.scripted.pop_front() {
            return Some(fault);
        }
        if state.chance.u32(0..100) >= state.percent {
            return None;
        }
        let which = state.chance.usize(0..Fault::ALL.len());
        Some(Fault::ALL[which])
    }

    fn up(&self) -> Result<(), StoreError> {
        if self.state().down {
            Err(StoreError::Unavailable("it is down".to_owned()))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn now(&self) -> Time {
        self.inner.now()
    }

    async fn tick(&self) -> Result<(), StoreError> {
        self.up()?;
        self.inner.tick().await
    }

    fn test_clock(&self) -> Option<Arc<TestClock>> {
        self.inner.test_clock()
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        self.up()?;
        self.inner.load(keys).await
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        self.up().map_err(|error| WriteError::Failed(error.to_string()))?;
        let unknown = || WriteError::Unknown("the reply was lost".to_owned());
        match self.draw() {
            None => self.inner.write(changes).await,
            Some(Fault::Conflict) => Err(WriteError::Conflict),
            Some(Fault::Failed) => Err(WriteError::Failed("no disk".to_owned())),
            Some(Fault::LostUnknown) => Err(unknown()),
            Some(Fault::AppliedUnknown) => {
                self.inner.write(changes).await?;
                Err(unknown())
            }
            Some(Fault::LateUnknown) => {
                let (inner, changes) = (Arc::clone(&self.inner), changes.clone());
                tokio::spawn(async move {
                    tokio::task::yield_now().await;
                    inner.write(&changes).await
                });
                Err(unknown())
            }
            Some(Fault::Slow) => {
                tokio::time::sleep(Duration::from_secs(3)).await;
                self.inner.write(changes).await
            }
            Some(Fault::Delay) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.inner.write(changes).await
            }
        }
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        self.up()?;
        self.inner.policy_head(namespace).await
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        self.up()?;
        self.inner.policy(namespace, revision).await
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        self.up()?;
        self.inner.revisions_before(namespace, before, limit).await
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        self.up()?;
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
        self.up()?;
        self.inner.events_before(filter, before, limit).await
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        self.up()?;
        self.inner.refusals_before(filter, before, limit).await
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        self.up()?;
        self.inner.note_refusals(refusals).await
    }

    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        self.up()?;
        self.inner.charged(counters, held_after, visit).await
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        self.up()?;
        self.inner.reservations_before(filter, before, limit).await
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        self.up()?;
        self.inner.counters_of(filter, after, limit).await
    }

    fn changes(&self) -> Feed {
        let announced = self.announcements.subscribe();
        let announced = stream::unfold(announced, async |mut announced| {
            let changed = announced.recv().await.ok()?;
            Some((changed, announced))
        });
        stream::select(self.inner.changes(), announced).boxed()
    }

    fn counter_changes(&self) -> CounterFeed {
        self.inner.counter_changes()
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        self.up()?;
        self.inner.value(name).await
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        self.up()?;
        self.inner.swap(name, expected, new).await
    }

    async fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        self.inner.retain(retention).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.up()?;
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
