//! When a request that does not fit could pass, if nothing else happens.
//!
//! Holds lapse, units leave windows that move on, windows end and others
//! begin, overrides expire. All of that is known beforehand, so the instant is
//! exact, not a guess.

use super::claim::Claim;
use crate::domain::policy::Bound;
use crate::domain::state::{Missing, State};
use crate::domain::time::Time;
use crate::domain::window::Window;

/// How often limits are asked in turn before the search is given up: each time
/// one of them has named a later instant, of which overrides and periods allow
/// only so many.
const ROUNDS: usize = 1000;

impl Claim<'_> {
    /// The earliest instant, `from` or later, at which this claim fits;
    /// `None` when waiting alone never helps.
    ///
    /// # Errors
    ///
    /// The counter of a later billing period is not known yet.
    pub fn first_pass(&self, state: &mut State<'_>, from: Time) -> Result<Option<Time>, Missing> {
        let mut at = from;
        loop {
            let Some(start) = self.window_from(at) else { return Ok(None) };
            at = start;
            let Some(counter) = self.counter_at(at) else { return Ok(None) };
            // What is used of a billing period may have been used before its
            // bounds were put there. Other windows to come are unused.
            if matches!(counter.window, Window::Billing { .. }) {
                state.counters([&counter])?;
            }
            let window_end = counter.window.end();
            let (bound, bound_end) = self.bound_at(at);
            let fits = bound.is_some_and(|bound| self.amount <= bound.ceiling());
            if let Some(bound) = bound.filter(|_| fits) {
                let first = state.counter(&counter).first_fit(bound, self.amount, at);
                let until = earlier(window_end, bound_end);
                if let Some(first) = first.filter(|at| until.is_none_or(|until| *at < until)) {
                    return Ok(Some(first));
                }
                let Some(until) = until else { return Ok(None) };
                at = until;
            } else {
                // No window has room for it before the bound changes.
                let Some(end) = bound_end else { return Ok(None) };
                at = end;
            }
        }
    }

    /// The earliest instant, `from` or later, at which this claim refuses
    /// nothing. An observed limit only refuses what could not be counted.
    fn first_admission(&self, state: &mut State<'_>, from: Time) -> Result<Option<Time>, Missing> {
        if self.enforced {
            return self.first_pass(state, from);
        }
        let mut at = from;
        while let Some(counter) = self.counter_at(at) {
            let end = counter.window.end();
            let first = state.counter(&counter).first_fit(Bound::Unlimited, self.amount, at);
            if let Some(first) = first.filter(|at| end.is_none_or(|end| *at < end)) {
                return Ok(Some(first));
            }
            let Some(end) = end else { return Ok(None) };
            at = end;
        }
        // Where there is no window, nothing is counted.
        Ok(Some(at))
    }
}

/// The earliest instant, `now` or later, at which no claim refuses.
pub(super) fn all_pass(
    claims: &[Claim<'_>],
    state: &mut State<'_>,
    now: Time,
) -> Result<Option<Time>, Missing> {
    let mut at = now;
    for _ in 0..ROUNDS {
        let mut latest = at;
        for claim in claims {
            let Some(first) = claim.first_admission(state, at)? else { return Ok(None) };
            latest = latest.max(first);
        }
        if latest == at {
            return Ok(Some(at));
        }
        at = latest;
    }
    Ok(None)
}

fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
