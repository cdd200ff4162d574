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
use super::recount::Recount;
use super::reservation::Reservation;
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
    let mut expected: HashMap<Arc<CounterId>, Recount> = HashMap::new();
    for reservation in reservations {
        for charge in reservation.charges.iter() {
            let recount = expected.entry(Arc::clone(&charge.counter)).or_default();
            recount.add(charge, reservation, now);
        }
    }
    let mut found = Vec::new();
    for counter in counters {
        let sums = expected.remove(&counter.id).unwrap_or_default();
        found.extend(counter_breaches(counter, &sums, now));
    }
    for (counter, sums) in expected {
        if sums.used(&counter.window, now) != 0 || !sums.live(now).is_empty() {
            let message = "reservations are charged to it, but it does not exist".to_owned();
            found.push(Breach { promise: "I2", counter, message });
        }
    }
    found
}

fn counter_breaches(counter: &Counter, sums: &Recount, now: Time) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut breach = |promise, message| {
        found.push(Breach { promise, counter: Arc::clone(&counter.id), message });
    };
    let live: BTreeMap<Time, i64> = counter.live(now).collect();
    let (used, expected) =
        (counter.used(now), sums.used_beside(Some(counter), &counter.id.window, now));
    let total = used.saturating_add(counter.held(now));
    if let Some(ceiling) = sums.ceiling()
        && total > ceiling
    {
        breach("I1", format!("used + held is {total}, but at most {ceiling} was ever allowed"));
    }
    if used != expected {
        breach("I2", format!("used is {used}, reservations sum to {expected}"));
    }
    if live != sums.live(now) {
        breach("I2", format!("holds are {live:?}, reservations sum to {:?}", sums.live(now)));
    }
    if counter.has_negative() {
        breach("I3", format!("used {:?}, holds {:?}", counter.used, counter.holds));
    }
    found
}
