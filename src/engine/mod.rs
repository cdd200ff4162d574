//! Group commit: the one way from a command to a durable answer.
//!
//! A command waits in the [`queue`]; the commands that arrive while one batch
//! is being written form the next. The [`batch`] loop folds the rules over
//! them in arrival order (the [`plan`]), writes everything that changed as one
//! change set, and answers its callers once that is durable. So a hot counter
//! costs one transaction per batch, not one per caller.

mod admin;
mod audit;
mod batch;
mod cache;
mod catalog;
mod holds;
mod list;
mod plan;
mod pulse;
mod queue;
mod read;
mod reconcile;
mod ticket;
mod trail;
mod wait;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use admin::{OverLimit, PolicyApplied, PolicyChange, SubjectPut};
pub use audit::{AuditQuery, AuditStep, Finding};
pub use holds::Holds;
pub use list::{CountersPlace, CountersQuery, ReservationPlace, ReservationQuery};
pub use reconcile::{Discrepancy, MAX_LIVE, ReconcileQuery, Reconciliation};
pub use trail::{TrailMark, TrailPage, TrailQuery};
pub use watch::Watch;

use crate::domain::decide::{Answer, Command, Reserve};
use crate::domain::refusal::Refusal;
use crate::domain::time::{Span, Time};
use crate::store::SharedStore;
use batch::Batcher;
use catalog::Catalog;
use pulse::Pulse;
use queue::{Pending, Queue};
use ticket::Ticket;
use trail::Recorder;
use wait::{Leaving, Lines, Wait};

/// How much longer than it asked to a Reserve may take when its wait is over,
/// before the store must be the trouble.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// How many audits, repairs and comparisons go on at once: each keeps thousands of
/// records or millions of digests in memory.
const THOROUGH: usize = 8;

/// Bounds of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most commands that may wait, of all namespaces together.
    pub queue: usize,
    /// The most commands of one namespace that may wait.
    pub queue_per_namespace: usize,
    /// The most commands in one batch.
    pub batch: usize,
    /// The most Reserves that may wait for room, of all namespaces together.
    pub waiters: usize,
    /// The most Reserves of one namespace that may wait for room.
    pub waiters_per_namespace: usize,
    /// The most who may watch usage.
    pub watchers: usize,
    /// The longest that a caller is kept waiting, whatever his own deadline,
    /// unless he asked to wait for room.
    pub patience: Duration,
    /// How long settled reservations are kept; counters of closed windows
    /// stay twice as long.
    pub retention: Span,
    /// Of how many reservations the trail is told in the order of time; of
    /// more, each by itself. Also how many records of a kind are looked at for
    /// one page of it.
    pub trail: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue: 16_384,
            queue_per_namespace: 8192,
            batch: 512,
            waiters: 10_000,
            waiters_per_namespace: 2000,
            watchers: 1000,
            patience: Duration::from_secs(10),
            retention: Span::from_days(30),
            trail: 10_000,
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Refused by the rules; nothing was changed.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The queues are full; nothing was begun.
    #[error("too many calls are waiting")]
    Overloaded,
    /// The store did not answer; nothing was changed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Whether the change was made cannot be told.
    #[error("it is unknown whether the change was made")]
    OutcomeUnknown,
    /// A record is damaged, or this program is wrong.
    #[error("{0}")]
    Internal(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Decides commands over a store.
pub struct Engine {
    store: SharedStore,
    settings: Settings,
    clock: MonotonicClock,
    queue: Arc<Queue>,
    catalog: Arc<Catalog>,
    pulse: Arc<Pulse>,
    lines: Arc<Lines>,
    /// How many watch.
    watchers: Arc<AtomicUsize>,
    doors: admin::Doors,
    /// Work that goes through everything, of which only so much goes on at once.
    thorough: Arc<Semaphore>,
    recorder: Recorder,
    /// Keep the catalog up to date, by asking again and again and by being
    /// told; and tell those who wait of what is done elsewhere.
    followers: [JoinHandle<()>; 3],
}

impl Engine {
    /// Starts an engine, and gives the task that writes its batches: it ends
    /// after [`Engine::stop`], or by a panic.
    pub fn start(store: SharedStore, settings: Settings) -> (Arc<Self>, JoinHandle<()>) {
        let queue = Arc::new(Queue::new(&settings));
        let pulse = Arc::new(Pulse::default());
        let lines = Lines::new(&pulse, &settings);
        let catalog = Arc::new(Catalog::new(Arc::clone(&store), Arc::clone(&pulse)));
        let clock = MonotonicClock::default();
        let batcher = Batcher::new(
            Arc::clone(&store),
            Arc::clone(&queue),
            Arc::clone(&catalog),
            clock.clone(),
            settings,
            Arc::clone(&lines),
            Arc::clone(&pulse),
        );
        let (stop, stopped) = oneshot::channel();
        let (recorder, records) = Recorder::new(Arc::clone(&store), stopped);
        let records = tokio::spawn(records);
        let batches = tokio::spawn(async move {
            batcher.run().await;
            // Whoever was refused has been, and what is known of it is written.
            drop(stop);
            let _ = records.await;
        });
        let followers = [
            tokio::spawn(Arc::clone(&catalog).refresh_forever()),
            tokio::spawn(Arc::clone(&catalog).follow_changes()),
            tokio::spawn(Arc::clone(&pulse).follow(Arc::clone(&store))),
        ];
        let thorough = Arc::new(Semaphore::new(THOROUGH));
        let doors = admin::Doors::new();
        let watchers = Arc::default();
        let engine = Self {
            store,
            settings,
            clock,
            queue,
            catalog,
            pulse,
            lines,
            watchers,
            doors,
            thorough,
            recorder,
            followers,
        };
        (Arc::new(engine), batches)
    }

    /// Decides one command; the answer is durable. The call ends by `deadline`
    /// or after the engine's patience, whichever is sooner.
    ///
    /// Dropping the future takes a command back whose write has not begun; one
    /// that has takes effect, and the same id sent again tells.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn submit(
        &self,
        command: Command,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        let latest = Instant::now() + self.settings.patience;
        let until = deadline.map_or(latest, |deadline| deadline.min(latest));
        self.submit_by(until, command, None).await
    }

    /// Reserves, and waits for room as long as asked for: until `deadline` at
    /// the latest. A grant that the caller can no longer be told of is undone:
    /// dropping the future lets go of what it was granted.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn reserve(
        &self,
        reserve: Reserve,
        wait: Span,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        if wait == Span::ZERO {
            return self.submit(Command::Reserve(reserve), deadline).await;
        }
        let clock = self.store.test_clock().map(|_| self.now());
        let wait = Wait::new(wait, deadline, clock);
        let now = Instant::now();
        // When the time is over the batch loop says so. Only if it does not,
        // the store is the trouble.
        let latest = (wait.until + LAST_CHANCE).max(now + self.settings.patience);
        let until = deadline.map_or(latest, |deadline| {
            let margin = deadline.saturating_duration_since(now) / 20;
            latest.min(deadline + margin.min(Duration::from_millis(100)))
        });
        self.submit_by(until, Command::Reserve(reserve), Some(wait)).await
    }

    async fn submit_by(
        &self,
        until: Instant,
        command: Command,
        wait: Option<Wait>,
    ) -> Result<Answer, Error> {
        let (sender, receiver) = oneshot::channel();
        let ticket = Arc::new(Ticket::default());
        let ear = wait.is_some().then(|| Arc::clone(self.lines.ear()));
        self.queue.push(Pending::new(command, Arc::clone(&ticket), sender).waiting(wait))?;
        let leaving = Leaving { abandoned: ticket.cancel_on_drop(), ear };
        match tokio::time::timeout_at(until, receiver).await {
            Ok(Ok(delivery)) => delivery.accept(),
            // Late, or the batch loop is gone: what is known is on the ticket.
            Ok(Err(_)) | Err(_) if leaving.abandoned.cancel() => {
                Err(Error::Unavailable("the store did not answer in time".to_owned()))
            }
            Ok(Err(_)) | Err(_) => {
                leaving.abandoned.keep();
                Err(Error::OutcomeUnknown)
            }
        }
    }

    /// The instant, never before one that was given out earlier.
    pub fn now(&self) -> Time {
        self.clock.read(&self.store)
    }

    /// Whether the store answers.
    ///
    /// # Errors
    ///
    /// It does not.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(self.store.ping().await?)
    }

    /// Sends away whoever waits for room or watches: the server is going, and
    /// will not be held up by them. Other calls are served as ever.
    pub fn let_go(&self) {
        self.pulse.close();
    }

    /// Takes no more commands, and lets those that are there be written.
    pub fn stop(&self) {
        self.let_go();
        self.queue.close();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        for follower in &self.followers {
            follower.abort();
        }
    }
}

impl From<crate::store::StoreError> for Error {
    fn from(error: crate::store::StoreError) -> Self {
        match error {
            crate::store::StoreError::Unavailable(message) => Self::Unavailable(message),
            damaged @ crate::store::StoreError::Damaged { .. } => {
                Self::Internal(damaged.to_string())
            }
        }
    }
}

/// The store's clock, which never runs back within this process.
#[derive(Clone, Debug)]
struct MonotonicClock(Arc<AtomicI64>);

impl Default for MonotonicClock {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(i64::MIN)))
    }
}

impl MonotonicClock {
    fn read(&self, store: &SharedStore) -> Time {
        let now = store.now().as_millis();
        Time::saturating(self.0.fetch_max(now, Ordering::Relaxed).max(now))
    }
}
