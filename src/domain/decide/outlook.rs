//! When a request that does not fit could pass, if nothing else happens.
//!
//! Holds lapse, units leave windows that move on, windows end and others
//! begin, overrides expire. All of that is known beforehand, so the instant is
//! exact, not a guess.

use super::claim::Claim;
use crate::domain::policy::Bound;
use crate::domain::state::State;
use crate::domain::time::Time;

/// How often limits are asked in turn before the search is given up: each time
/// one of them has named a later instant, of which overrides and periods allow
/// only so many.
const ROUNDS: usize = 1000;

impl Claim<'_> {
    /// The earliest instant, `from` or later, at which this claim fits;
    /// `None` when waiting alone never helps.
    pub fn first_pass(&self, state: &State<'_>, from: Time) -> Option<Time> {
        let mut at = from;
        loop {
            at = self.window_from(at)?;
            let counter = self.counter_at(at)?;
            let window_end = counter.window.end();
            let (bound, bound_end) = self.bound_at(at);
            let fits = bound.is_some_and(|bound| self.amount <= bound.ceiling());
            if let Some(bound) = bound.filter(|_| fits) {
                let first = state.counter(&counter).first_fit(bound, self.amount, at);
                let until = earlier(window_end, bound_end);
                if let Some(first) = first.filter(|at| until.is_none_or(|until| *at < until)) {
                    return Some(first);
                }
                at = until?;
            } else {
                // No window has room for it before the bound changes.
                at = bound_end?;
            }
        }
    }

    /// The earliest instant, `from` or later, at which this claim refuses
    /// nothing. An observed limit only refuses what could not be counted.
    fn first_admission(&self, state: &State<'_>, from: Time) -> Option<Time> {
        if self.enforced {
            return self.first_pass(state, from);
        }
        let mut at = from;
        while let Some(counter) = self.counter_at(at) {
            let end = counter.window.end();
            let first = state.counter(&counter).first_fit(Bound::Unlimited, self.amount, at);
            if let Some(first) = first.filter(|at| end.is_none_or(|end| *at < end)) {
                return Some(first);
            }
            at = end?;
        }
        // Where there is no window, nothing is counted.
        Some(at)
    }
}

/// The earliest instant, `now` or later, at which no claim refuses.
pub(super) fn all_pass(claims: &[Claim<'_>], state: &State<'_>, now: Time) -> Option<Time> {
    let mut at = now;
    for _ in 0..ROUNDS {
        let mut latest = at;
        for claim in claims {
            latest = latest.max(claim.first_admission(state, at)?);
        }
        if latest == at {
            return Some(at);
        }
        at = latest;
    }
    None
}

fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
