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

use super::counter::{Bucket, Counter, CounterId};
use super::reservation::{Charge, OVERDRAWN, Reservation, ReservationState, Settled};
use super::time::Time;
use super::window::Window;

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
            sums.add_use(charge, reservation);
            if reservation.state(now) == ReservationState::Held {
                let held = sums.holds.entry(reservation.expire_time).or_default();
                *held = held.saturating_add(reservation.held_by(charge));
            }
            // An operator's correction and an overdrawn commit may go beyond it.
            let beyond = reservation.request.as_ref().is_some_and(|request| request.adjustment)
                || reservation.history.iter().any(|step| step.reason == OVERDRAWN);
            if beyond {
                sums.ceiling = Some(i64::MAX);
            } else if charge.enforced {
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
        if sums.used_at(&counter.window, now) != 0 || !sums.holds.is_empty() {
            let message = "reservations are charged to it, but it does not exist".to_owned();
            found.push(Breach { promise: "I2", counter, message });
        }
    }
    found
}

#[derive(Default)]
struct Sums {
    used: i64,
    /// Of a window that moves on: by the start of the bucket.
    recent: BTreeMap<Time, Bucket>,
    holds: BTreeMap<Time, i64>,
    /// The largest max that any charge was admitted under.
    ceiling: Option<i64>,
}

impl Sums {
    fn add_use(&mut self, charge: &Charge, reservation: &Reservation) {
        let units = reservation.used_by(charge);
        self.used = self.used.saturating_add(units);
        let (Window::Rolling(rolling), Settled::Committed { at, .. }) =
            (&charge.counter.window, &reservation.settled)
        else {
            return;
        };
        for (start, units) in &charge.taken {
            let bucket = self.recent.entry(*start).or_default();
            bucket.units = bucket.units.saturating_sub(*units);
        }
        // What was refunded since still says when the others of its bucket go.
        if charge.taken.is_empty() {
            let bucket = self.recent.entry(rolling.bucket_of(*at)).or_default();
            bucket.units = bucket.units.saturating_add(units);
            bucket.last = bucket.last.max(*at);
        }
    }

    fn used_at(&self, window: &Window, now: Time) -> i64 {
        let Window::Rolling(rolling) = window else { return self.used };
        let live = self.recent.values().filter(|bucket| bucket.last.plus(rolling.length) > now);
        live.fold(0, |sum, bucket| sum.saturating_add(bucket.units))
    }
}

fn counter_breaches(counter: &Counter, sums: &Sums, now: Time) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut breach = |promise, message| {
        found.push(Breach { promise, counter: Arc::clone(&counter.id), message });
    };
    let live: BTreeMap<Time, i64> = counter.live(now).collect();
    let (used, expected) = (counter.used(now), sums.used_at(&counter.id.window, now));
    let total = used.saturating_add(counter.held(now));
    if let Some(ceiling) = sums.ceiling
        && total > ceiling
    {
        breach("I1", format!("used + held is {total}, but at most {ceiling} was ever allowed"));
    }
    if used != expected {
        breach("I2", format!("used is {used}, reservations sum to {expected}"));
    }
    if live != sums.holds {
        breach("I2", format!("holds are {live:?}, reservations sum to {:?}", sums.holds));
    }
    if counter.has_negative() {
        breach("I3", format!("used {:?}, holds {:?}", counter.used, counter.holds));
    }
    found
}
