//! The promises that counters and reservations must keep, numbered as
//! everywhere: asserted after tests, simulated, audited.
//!
//! * **I1** At every admission under an enforced limit, used + held ≤ the max
//!   that was in force for it.
//! * **I2** A counter equals the sum over the reservations charged to it.
//! * **I3** used ≥ 0 and held ≥ 0.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::counter::{Counter, CounterId};
use super::reservation::{Reservation, ReservationState};
use super::time::Time;

/// A promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which promise, such as `I2`.
    pub promise: &'static str,
    /// The counter.
    pub counter: Arc<CounterId>,
    /// What should be and what is.
    pub message: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: counter {}: {}", self.promise, self.counter.text, self.message)
    }
}

/// Every breach of I1 to I3 by `counters`, given all `reservations` that were
/// ever charged to them, at `now`.
pub fn breaches(counters: &[Counter], reservations: &[Arc<Reservation>], now: Time) -> Vec<Breach> {
    let mut expected: HashMap<Arc<CounterId>, Sums> = HashMap::new();
    for reservation in reservations {
        for charge in reservation.charges.iter() {
            let sums = expected.entry(Arc::clone(&charge.counter)).or_default();
            sums.used = sums.used.saturating_add(reservation.used_by(charge));
            if reservation.state(now) == ReservationState::Held {
                let held = sums.holds.entry(reservation.expire_time).or_default();
                *held = held.saturating_add(reservation.held_by(charge));
            }
            if charge.enforced {
                sums.ceiling = sums.ceiling.max(Some(charge.bound.ceiling()));
            }
        }
    }
    let mut found = Vec::new();
    for counter in counters {
        let sums = expected.remove(&counter.id).unwrap_or_default();
        found.extend(counter_breaches(counter, &sums, now));
    }
    for (counter, sums) in expected {
        if sums.used != 0 || !sums.holds.is_empty() {
            let message = "reservations are charged to it, but it does not exist".to_owned();
            found.push(Breach { promise: "I2", counter, message });
        }
    }
    found
}

#[derive(Default)]
struct Sums {
    used: i64,
    holds: BTreeMap<Time, i64>,
    /// The largest max that any charge was admitted under.
    ceiling: Option<i64>,
}

fn counter_breaches(counter: &Counter, sums: &Sums, now: Time) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut breach = |promise, message| {
        found.push(Breach { promise, counter: Arc::clone(&counter.id), message });
    };
    let live: BTreeMap<Time, i64> = counter.live(now).collect();
    let total = counter.used.saturating_add(counter.held(now));
    if let Some(ceiling) = sums.ceiling
        && total > ceiling
    {
        breach("I1", format!("used + held is {total}, but at most {ceiling} was ever allowed"));
    }
    if counter.used != sums.used {
        breach("I2", format!("used is {}, reservations sum to {}", counter.used, sums.used));
    }
    if live != sums.holds {
        breach("I2", format!("holds are {live:?}, reservations sum to {:?}", sums.holds));
    }
    if counter.used < 0 || counter.holds.values().any(|&units| units < 0) {
        breach("I3", format!("used {}, holds {:?}", counter.used, counter.holds));
    }
    found
}
