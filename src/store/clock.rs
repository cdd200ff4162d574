//! The clocks of stores that have none of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;

use crate::domain::time::{Span, Time};

/// A clock that is read without asking a database.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// This machine's: right for a store that only this machine has.
    #[default]
    System,
    /// One that a test moves.
    Manual(ManualClock),
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Time {
        match self {
            Self::System => system(),
            Self::Manual(clock) => Time::saturating(clock.0.load(Ordering::SeqCst)),
        }
    }
}

/// A clock that stands still until it is moved; copies share one time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at `time`.
    pub fn at(time: Time) -> Self {
        Self(Arc::new(AtomicI64::new(time.as_millis())))
    }

    /// Moves it on.
    pub fn advance(&self, span: Span) {
        self.0.fetch_add(span.as_millis(), Ordering::SeqCst);
    }

    /// Sets it, backwards too: that is what a clock step is.
    pub fn set(&self, time: Time) {
        self.0.store(time.as_millis(), Ordering::SeqCst);
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the host's clock")]
fn system() -> Time {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::saturating(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
