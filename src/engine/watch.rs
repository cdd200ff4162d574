//! Watching usage: what `GetUsage` says, at every change.
//!
//! A watcher listens for the counters that it shows and for its namespace's
//! rules, and knows the next instant at which something lapses. Behind that it
//! looks now and then, since a change may be told to nobody.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::pulse::Listener;
use super::{Engine, Error};
use crate::domain::decide::Usage;
use crate::domain::name::Dimensions;
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;
use crate::domain::window::Window;

/// Between two looks, should nobody have told of a change.
const POLL: Duration = Duration::from_secs(2);
/// The same where time is moved by hand, which nobody tells of.
const POLL_MOVED: Duration = Duration::from_millis(100);
/// The least between two readings: a busy counter changes all the time.
const BREATH: Duration = Duration::from_millis(50);
/// How long the store may not answer before a watcher is told.
const OUTAGE: Duration = Duration::from_secs(10);
/// How long one reading may take.
const READING: Duration = Duration::from_secs(5);
/// Before one that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Somebody who watches.
pub struct Watch {
    engine: Arc<Engine>,
    namespace: String,
    metric: String,
    dimensions: Dimensions,
    listener: Listener,
    /// What was last told.
    told: Option<Vec<LimitStatus>>,
    /// When the store last answered.
    answered: Instant,
    /// When to look again at the latest.
    look: Instant,
    _seat: Seat,
}

impl Engine {
    /// Watches where the limits stand that apply to a metric and dimensions.
    ///
    /// # Errors
    ///
    /// Too many watch.
    pub fn watch(
        self: &Arc<Self>,
        namespace: String,
        metric: String,
        dimensions: Dimensions,
    ) -> Result<Watch, Error> {
        let seat = Seat::take(&self.watchers, self.settings.watchers).ok_or(Error::Overloaded)?;
        let mut listener = self.pulse.listen();
        listener.want_namespace(&namespace);
        let now = Instant::now();
        Ok(Watch {
            engine: Arc::clone(self),
            namespace,
            metric,
            dimensions,
            listener,
            told: None,
            answered: now,
            look: now,
            _seat: seat,
        })
    }
}

impl Watch {
    /// Where the limits stand: at first at once, then when that has changed.
    ///
    /// # Errors
    ///
    /// It cannot be told any more: the reading is refused, the store has not
    /// answered for long, or the server is going.
    pub async fn next(&mut self) -> Result<Usage, Error> {
        loop {
            self.pause().await;
            if self.engine.pulse.closing() {
                return Err(Error::Unavailable("the server is shutting down".to_owned()));
            }
            match self.read().await {
                Ok(usage) => {
                    self.answered = Instant::now();
                    self.look = self.next_look(&usage);
                    let shown = usage.limits.iter().map(|limit| limit.counter.text.clone());
                    if self.listener.want_only(&shown.collect::<HashSet<_>>()) {
                        // What changed before it listened was not heard.
                        self.look = Instant::now();
                    }
                    if self.told.as_ref().is_none_or(|told| !alike(told, &usage.limits)) {
                        self.told = Some(usage.limits.clone());
                        return Ok(usage);
                    }
                }
                // A store that stumbles ends nobody's watch.
                Err(Error::Unavailable(_))
                    if self.told.is_some() && self.answered.elapsed() < OUTAGE =>
                {
                    self.look = Instant::now() + RETRY;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(&self) -> Result<Usage, Error> {
        let usage = self.engine.usage(&self.namespace, &self.metric, &self.dimensions, None);
        let late = || Error::Unavailable("the store did not answer in time".to_owned());
        tokio::time::timeout(READING, usage).await.unwrap_or_else(|_| Err(late()))
    }

    /// Waits until there is a reason to look.
    async fn pause(&self) {
        if self.told.is_none() {
            return;
        }
        tokio::select! {
            () = self.listener.ear().rung() => {}
            () = tokio::time::sleep_until(self.look) => {}
        }
        self.listener.ear().take();
        tokio::time::sleep_until(self.answered + BREATH).await;
    }

    fn next_look(&self, usage: &Usage) -> Instant {
        let store = &self.engine.store;
        let poll = if store.test_clock().is_some() { POLL_MOVED } else { POLL };
        let until = |at: Time| at.since(store.now()).as_millis().unsigned_abs() + 1;
        let lapses = usage.changes_at.map(|at| Duration::from_millis(until(at)));
        Instant::now() + lapses.map_or(poll, |lapses| lapses.min(poll))
    }
}

/// Whether they say the same. A window that moves on always ends now.
fn alike(told: &[LimitStatus], now: &[LimitStatus]) -> bool {
    let still = |limit: &LimitStatus| match limit.counter.window {
        Window::Rolling(_) => LimitStatus { window: None, ..limit.clone() },
        _ => limit.clone(),
    };
    told.iter().map(still).eq(now.iter().map(still))
}

/// One of the places for those who watch.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
