//! Reserves that wait for room.
//!
//! A Reserve that may wait and is refused for want of quota is kept in the
//! [`Room`] of the batch loop. It is decided again when something has changed
//! that it waits for: a counter was written here, or (as the store's feed
//! tells) elsewhere, an instant has come at which it could pass, the rules of
//! its namespace have changed, or somebody before it has gone. Behind all that
//! the heads of the queues are looked at again and again, so that what nobody
//! told is found a little later.
//!
//! First come, first served on each counter: whoever is decided sees those who
//! wait before him as a [`Line`](crate::domain::decide::Line), and takes
//! nothing of a counter that one of them waits for.
//!
//! A granted reservation that its caller can no longer be told of is taken
//! back (see [`delivery`]).

mod ahead;
mod delivery;
mod lines;
mod room;

pub(super) use ahead::Ahead;
pub(super) use delivery::{Delivery, Grants};
pub(super) use lines::{Lines, Place};
pub(super) use room::Room;

use std::sync::Arc;

use tokio::time::Instant;

use super::pulse::Ear;
use super::ticket::Abandoned;
use crate::domain::refusal::Refusal;
use crate::domain::time::{Span, Time};

/// How a Reserve waits.
#[derive(Debug)]
pub(super) struct Wait {
    /// For how long it asked to.
    length: Span,
    begun: Instant,
    /// Until when: by its own length, or sooner by its caller's deadline.
    pub until: Instant,
    /// Under a test clock also until then.
    by_clock: Option<Time>,
    /// This is its last chance.
    pub over: bool,
    /// Where it stands in line, once it does.
    place: Option<Place>,
    /// When it could pass, by what was known when it was last decided.
    could_pass: Option<Time>,
}

impl Wait {
    /// Waits from now on.
    pub fn new(length: Span, deadline: Option<Instant>, clock: Option<Time>) -> Self {
        let begun = Instant::now();
        let end = begun + std::time::Duration::from_millis(length.as_millis().unsigned_abs());
        Self {
            length,
            begun,
            until: deadline.map_or(end, |deadline| deadline.min(end)),
            by_clock: clock.map(|now| now.plus(length)),
            over: false,
            place: None,
            could_pass: None,
        }
    }

    /// Whether it has stood in line.
    pub fn has_a_place(&self) -> bool {
        self.place.is_some()
    }

    /// It stands in line no more.
    pub fn leave(&mut self) {
        self.place = None;
    }

    /// Its number in the order of arrival; of those who have none yet the
    /// last.
    pub fn number(&self) -> u64 {
        self.place.as_ref().map_or(u64::MAX, Place::number)
    }

    /// The refusal of one that has waited in vain.
    pub fn in_vain(&self, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::QuotaExceeded { limits, retry_time, now } => {
                let passed = i64::try_from(self.begun.elapsed().as_millis()).unwrap_or(i64::MAX);
                let by_clock = self.by_clock.is_some_and(|until| now >= until);
                let waited =
                    if by_clock { self.length } else { self.length.min(Span::from_millis(passed)) };
                Refusal::WaitTimedOut { limits, retry_time, now, waited }
            }
            other => other,
        }
    }
}

/// Whether waiting could help against this refusal.
pub(super) fn may_help(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::QuotaExceeded { limits, .. }
        if !limits.iter().any(crate::domain::status::LimitStatus::never_fits))
}

/// Takes a command back when its caller goes, and lets those behind it be
/// tried at once.
pub(super) struct Leaving {
    pub abandoned: Abandoned,
    pub ear: Option<Arc<Ear>>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.abandoned.cancel()
            && let Some(ear) = &self.ear
        {
            ear.hear(|heard| heard.gone = true);
        }
    }
}

#[cfg(test)]
mod tests;
