//! A clock that tests move, kept in the store so that several servers share it.
//!
//! It stands still until it is moved, and is never set back. A [`Store`] under
//! it is the same store with another [`now`](Store::now). Records that are
//! dated by the test clock and records that are dated by a real one must not
//! meet: [`open`] keeps them apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use thiserror::Error;
use tracing::warn;

use super::{
    ChangeSet, CounterFeed, CounterFilter, CounterPlace, Feed, Kept, Loaded, ReservationFilter,
    Retention, SharedStore, Store, StoreError, SubjectFilter, TrailFilter, TrailPlace, Versioned,
    Visitor, WriteError,
};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::{Span, Time};

/// The value that is the clock, in milliseconds since the epoch.
const NAME: &str = "test_clock";
/// The value that says that a server has used the store under its own clock:
/// when the first one did.
const REAL: &str = "real_clock";

/// By which clock the records of a store are dated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreClock {
    /// The store's own.
    #[default]
    Own,
    /// A test clock: it begins at this instant, or else at the present, and
    /// goes on from where it stands where the store has one already.
    Test(Option<Time>),
}

/// Why a store cannot be used under the clock that was asked for.
#[derive(Debug, Error)]
pub enum ClockError {
    /// A test clock was asked for where a real one has been used.
    #[error(
        "the store holds reservations or counters that were made under the real clock, and a \
         test clock would expire and reset them at will: use an empty database or folder with \
         --test-clock"
    )]
    RealRecords,
    /// A test clock has been used, and none was asked for.
    #[error(
        "the store has a test clock, which stands at {0}, and its records are dated by it: start \
         with --test-clock to go on with it, or use another database or folder"
    )]
    TestRecords(Time),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why the clock was not moved.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MoveError {
    /// It is never set back.
    #[error("the clock stands at {0}, and is never set back")]
    Back(Time),
    /// There is no instant so late.
    #[error("the clock stands at {0}, and goes no further than the year 9999")]
    Beyond(Time),
    /// The store could not be read; the clock was not moved.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store did not answer whether the clock was moved.
    #[error("it is unknown whether the clock was moved: {0}")]
    Unknown(StoreError),
}

/// Puts a store under this clock, if its records are dated by it.
///
/// # Errors
///
/// Its records are dated by another clock, or it cannot be read or written.
pub async fn open(store: SharedStore, clock: StoreClock) -> Result<SharedStore, ClockError> {
    match clock {
        StoreClock::Own => {
            // The mark first, then the look: of two servers that open a store
            // under different clocks at once, at least one sees the other.
            if store.value(REAL).await?.is_none() && read(&store).await?.is_none() {
                // Another server that is faster leaves the same mark.
                let _ = store.swap(REAL, None, store.now().as_millis()).await?;
            }
            if let Some(time) = read(&store).await? {
                return Err(ClockError::TestRecords(time));
            }
            store.retain(Retention::Due).await?;
            Ok(store)
        }
        StoreClock::Test(from) => {
            let time = begin(&store, from).await?;
            if store.value(REAL).await?.is_some() {
                return Err(ClockError::RealRecords);
            }
            store.retain(Retention::Nothing).await?;
            let known = AtomicI64::new(time.as_millis());
            let clock = Arc::new(TestClock { store: Arc::clone(&store), known });
            Ok(Arc::new(UnderTestClock { store, clock }))
        }
    }
}

/// Where the clock stands, once it has begun.
async fn begin(store: &SharedStore, from: Option<Time>) -> Result<Time, ClockError> {
    loop {
        let present = read(store).await?;
        if present.is_none() && store.value(REAL).await?.is_some() {
            return Err(ClockError::RealRecords);
        }
        if present.is_none() && holds_records(store).await? {
            // Unless another server has begun the clock meanwhile, and these
            // are records of its own.
            match read(store).await? {
                Some(_) => continue,
                None => return Err(ClockError::RealRecords),
            }
        }
        let start = match (present, from) {
            (None, from) => from.unwrap_or_else(|| store.now()),
            (Some(time), Some(from)) if from > time => from,
            (Some(time), from) => {
                if let Some(from) = from.filter(|from| *from < time) {
                    warn!(asked = %from, stands = %time, "the test clock is never set back");
                }
                return Ok(time);
            }
        };
        if store.swap(NAME, present.map(Time::as_millis), start.as_millis()).await? {
            return Ok(start);
        }
    }
}

async fn holds_records(store: &SharedStore) -> Result<bool, StoreError> {
    Ok(!store.reservations_after(None, 1).await?.is_empty()
        || !store.counters_after(None, 1).await?.is_empty())
}

/// Where the clock of a store stands; `None` where it has none.
async fn read(store: &SharedStore) -> Result<Option<Time>, StoreError> {
    let Some(millis) = store.value(NAME).await? else { return Ok(None) };
    let message = || format!("{millis} ms is not a time");
    let damaged = || StoreError::Damaged { key: NAME.to_owned(), message: message() };
    Time::from_millis(millis).ok_or_else(damaged).map(Some)
}

/// A clock that tests move.
pub struct TestClock {
    store: SharedStore,
    /// Where it stood when it was last read or moved, in milliseconds.
    known: AtomicI64,
}

impl TestClock {
    /// Where it stands.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the clock has vanished from it.
    pub async fn get(&self) -> Result<Time, StoreError> {
        let message = "it has vanished".to_owned();
        let vanished = || StoreError::Damaged { key: NAME.to_owned(), message };
        let time = read(&self.store).await?.ok_or_else(vanished)?;
        self.known.fetch_max(time.as_millis(), Ordering::SeqCst);
        Ok(time)
    }

    /// Sets it to an instant that is not before the one at which it stands.
    ///
    /// # Errors
    ///
    /// [`MoveError`].
    pub async fn set(&self, time: Time) -> Result<Time, MoveError> {
        let target = |now| if time < now { Err(MoveError::Back(now)) } else { Ok(time) };
        self.shift(target).await
    }

    /// Moves it on.
    ///
    /// # Errors
    ///
    /// [`MoveError`].
    pub async fn advance(&self, span: Span) -> Result<Time, MoveError> {
        let target = |now: Time| {
            let millis = now.as_millis().checked_add(span.as_millis());
            millis.and_then(Time::from_millis).ok_or(MoveError::Beyond(now))
        };
        self.shift(target).await
    }

    /// Moves it to where `target` says, going by where it stands: again when
    /// somebody else has moved it meanwhile.
    async fn shift(
        &self,
        target: impl Fn(Time) -> Result<Time, MoveError>,
    ) -> Result<Time, MoveError> {
        loop {
            let now = self.get().await?;
            let target = target(now)?;
            let (expected, new) = (now.as_millis(), target.as_millis());
            if expected == new {
                return Ok(now);
            }
            let swapped = self.store.swap(NAME, Some(expected), new).await;
            if swapped.map_err(MoveError::Unknown)? {
                self.known.fetch_max(new, Ordering::SeqCst);
                return Ok(target);
            }
        }
    }

    fn known(&self) -> Time {
        Time::saturating(self.known.load(Ordering::SeqCst))
    }
}

/// A store whose clock is the test clock.
struct UnderTestClock {
    store: SharedStore,
    clock: Arc<TestClock>,
}

#[async_trait]
impl Store for UnderTestClock {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn now(&self) -> Time {
        self.clock.known()
    }

    async fn tick(&self) -> Result<(), StoreError> {
        self.clock.get().await.map(|_| ())
    }

    fn test_clock(&self) -> Option<Arc<TestClock>> {
        Some(Arc::clone(&self.clock))
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        self.store.load(keys).await
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        self.store.write(changes).await
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        self.store.policy_head(namespace).await
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        self.store.policy(namespace, revision).await
    }

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        self.store.reservations_after(key, limit).await
    }

    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        self.store.counters_after(key, limit).await
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        self.store.revisions_before(namespace, before, limit).await
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        self.store.subjects_after(filter, key, limit).await
    }

    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError> {
        self.store.events_before(filter, before, limit).await
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        self.store.refusals_before(filter, before, limit).await
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        self.store.note_refusals(refusals).await
    }

    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        self.store.charged(counters, held_after, visit).await
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        self.store.reservations_before(filter, before, limit).await
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        self.store.counters_of(filter, after, limit).await
    }

    fn changes(&self) -> Feed {
        self.store.changes()
    }

    fn counter_changes(&self) -> CounterFeed {
        self.store.counter_changes()
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        self.store.value(name).await
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        self.store.swap(name, expected, new).await
    }

    async fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        self.store.retain(retention).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::clock::{Clock, ManualClock};
    use crate::store::memory::MemoryStore;

    fn at(millis: i64) -> Time {
        Time::from_millis(millis).unwrap()
    }

    /// A store whose own clock stands at 1000 ms.
    fn memory() -> SharedStore {
        Arc::new(MemoryStore::new(Clock::Manual(ManualClock::at(at(1000)))))
    }

    async fn started(store: &SharedStore, from: Option<Time>) -> SharedStore {
        open(Arc::clone(store), StoreClock::Test(from)).await.unwrap()
    }

    #[tokio::test]
    async fn it_begins_at_the_present_or_where_it_is_told_to_and_is_never_set_back() {
        assert_eq!(started(&memory(), None).await.now(), at(1000));
        let store = memory();
        assert_eq!(started(&store, Some(at(5))).await.now(), at(5));
        assert_eq!(started(&store, None).await.now(), at(5), "not the present");
        assert_eq!(started(&store, Some(at(7))).await.now(), at(7));
        assert_eq!(started(&store, Some(at(6))).await.now(), at(7));
    }

    #[tokio::test]
    async fn it_stands_still_until_it_is_moved_and_only_forward() {
        let store = started(&memory(), Some(at(5))).await;
        let clock = store.test_clock().unwrap();
        assert_eq!(clock.set(at(9)).await, Ok(at(9)));
        assert_eq!(clock.set(at(9)).await, Ok(at(9)), "where it stands");
        assert_eq!(clock.set(at(8)).await, Err(MoveError::Back(at(9))));
        assert_eq!(clock.advance(Span::from_millis(3)).await, Ok(at(12)));
        assert_eq!(clock.advance(Span::ZERO).await, Ok(at(12)));
        let far = Span::from_millis(i64::MAX);
        assert_eq!(clock.advance(far).await, Err(MoveError::Beyond(at(12))));
        let rest = Time::MAX.since(at(12));
        assert_eq!(clock.advance(rest).await, Ok(Time::MAX));
        let more = clock.advance(Span::from_millis(1)).await;
        assert_eq!(more, Err(MoveError::Beyond(Time::MAX)));
        assert_eq!(store.now(), Time::MAX);
    }

    #[tokio::test]
    async fn a_move_made_elsewhere_is_seen_with_the_next_tick() {
        let shared = memory();
        let (one, other) = (started(&shared, None).await, started(&shared, None).await);
        one.test_clock().unwrap().advance(Span::from_secs(1)).await.unwrap();
        assert_eq!((one.now(), other.now()), (at(2000), at(1000)));
        other.tick().await.unwrap();
        assert_eq!(other.now(), at(2000));
    }

    #[tokio::test]
    async fn moves_made_at_once_all_count() {
        let shared = memory();
        let moves = (0..8).map(|_| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let clock = started(&shared, None).await.test_clock().unwrap();
                for _ in 0..50 {
                    clock.advance(Span::from_millis(1)).await.unwrap();
                }
            })
        });
        for moved in moves.collect::<Vec<_>>() {
            moved.await.unwrap();
        }
        assert_eq!(shared.value(NAME).await, Ok(Some(1400)));
    }

    #[tokio::test]
    async fn a_store_that_was_used_by_its_own_clock_is_refused_with_another() {
        let store = memory();
        open(Arc::clone(&store), StoreClock::Own).await.unwrap();
        let refused = open(store, StoreClock::Test(None)).await.err().unwrap();
        assert!(matches!(refused, ClockError::RealRecords), "{refused}");
    }

    #[tokio::test]
    async fn a_store_that_has_a_test_clock_is_refused_without_one() {
        let store = memory();
        started(&store, Some(at(5))).await;
        let refused = open(store, StoreClock::Own).await.err().unwrap();
        assert!(matches!(refused, ClockError::TestRecords(time) if time == at(5)), "{refused}");
    }
}
