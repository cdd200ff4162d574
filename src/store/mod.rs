//! Where records live: one small trait, and the stores behind it.
//!
//! A store loads records by key and writes change sets: all of one, under
//! version guards, or none of it. It knows nothing of quotas. The conformance
//! suite in `tests/store_conformance.rs` says what every store must do; the
//! trait says it in words.

mod changes;
pub mod clock;
pub mod document;
mod feed;
mod filter;
mod lists;
mod trail;

pub mod embedded;
pub mod faulty;
pub mod memory;
pub mod mongo;
pub mod test_clock;

pub use changes::{
    Binding, Change, ChangeSet, Extent, Loaded, Removal, StoreError, Unbinding, Versioned,
    WriteError,
};
pub use feed::{Changed, CounterChanged, CounterFeed, Feed};
pub use filter::{CounterFilter, CounterPlace, ReservationFilter, SubjectFilter, Windows};
pub use test_clock::TestClock;
pub use trail::{Kept, TrailFilter, TrailPlace};

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::Time;

/// A store, whichever it is.
pub type SharedStore = Arc<dyn Store>;

/// What retention may remove from a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Records that are due by the store's own clock.
    Due,
    /// Nothing: the records are dated by another clock than the store's own.
    Nothing,
}

/// What [`Store::charged`] shows, step by step.
#[derive(Clone, Debug)]
pub enum Charged {
    /// The counters, `None` for one that does not exist. They come first. Where
    /// they come again, the reading had to begin anew, and all that was shown
    /// before counts for nothing.
    Counters(HashMap<Arc<CounterId>, Option<Versioned<Counter>>>),
    /// A reservation that is charged to one or several of them.
    Reservation(Arc<Reservation>),
}

/// Whoever looks at what [`Store::charged`] shows; he may have seen enough.
pub type Visitor<'v> = dyn FnMut(Charged) -> ControlFlow<()> + Send + 'v;

/// Durable records under version guards.
///
/// Everything that [`load`](Store::load), [`policy`](Store::policy) and the
/// pages return is durable, refusals excepted: no fail-over that the store
/// survives takes it back (I5). It is also current: it includes every write that was answered
/// before the read was sent, whichever process wrote it.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What kind of store this is, for people.
    fn name(&self) -> &'static str;

    /// The store's clock, as well as it is known without asking.
    fn now(&self) -> Time;

    /// Brings the clock up to date where another process may have moved it.
    /// Whoever is about to decide something asks for it first. Only a test
    /// clock is moved: all others tick by themselves.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    async fn tick(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The test clock, where that is the store's clock.
    fn test_clock(&self) -> Option<Arc<TestClock>> {
        None
    }

    /// Reads records by key. Every key that was asked for is in the answer.
    /// The reservations are read no earlier than everything else.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError>;

    /// Writes all changes in one atomic step, or none.
    ///
    /// # Errors
    ///
    /// What happened instead, told apart by [`WriteError`]; only
    /// [`WriteError::Unknown`] leaves open whether the changes were made.
    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError>;

    /// The current revision number of a namespace's policy; `None` when it has
    /// no policy.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the record is damaged.
    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError>;

    /// One revision of a namespace's policy.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the record is damaged.
    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError>;

    /// The next revisions of a namespace's policy, newest first, older than
    /// `before` where that is given. What the policies say is not read: a page
    /// of large ones costs no more than one of small ones.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError>;

    /// The next subjects by key, after the one with that key.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError>;

    /// The next reservations by key, after the one with that key.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError>;

    /// The next counters by key, after the one with that key.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError>;

    /// Reads counters and, as of the very same moment, every reservation that
    /// is charged to any of them, each shown once, whatever their number. With
    /// `held_after` only those are shown that are not settled and expire later
    /// than that, the soonest first. Ends early where the visitor breaks off.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged; what was shown is
    /// then not all there is.
    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError>;

    /// The next reservations, newest first: by create time and then by key,
    /// both falling, after the one of that place.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError>;

    /// The next counters of a limit, in the order of [`CounterPlace`], after
    /// that place.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError>;

    /// The next events, newest first, before that place where one is given.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError>;

    /// The next refusals, newest first, before that place where one is given.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a record is damaged.
    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError>;

    /// Keeps refusals for a while: the oldest go first, a crash may lose the
    /// latest.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; some of them may be kept even so.
    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError>;

    /// Follows the changes of policies and subjects, whoever makes them. Silent
    /// where only this process writes.
    fn changes(&self) -> Feed {
        feed::silent()
    }

    /// Follows the changes of counters, whoever makes them. Silent where only
    /// this process writes. A busy store has many: followed only while
    /// somebody wants to know.
    fn counter_changes(&self) -> CounterFeed {
        feed::silent()
    }

    /// A value of 64 bits by its name, kept apart from all records; `None`
    /// when it was never set. The name `schema` is the store's own.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError>;

    /// Sets such a value if it is `expected` now (`None`: if it was never
    /// set); false when it is not.
    ///
    /// # Errors
    ///
    /// The store did not answer: whether the value was set, or will be, cannot
    /// be told.
    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError>;

    /// Lets retention remove what it may. Until then it removes nothing that
    /// it has not been let remove before: whoever opens a store looks first at
    /// whose clock its records are dated by.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    async fn retain(&self, retention: Retention) -> Result<(), StoreError>;

    /// Whether the store answers; also corrects the clock.
    ///
    /// # Errors
    ///
    /// It does not.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Lets go of the store: no write of this process is under way any more.
    async fn close(&self);
}
