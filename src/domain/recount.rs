//! Recounting a counter from the reservations that are charged to it (I2).

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::counter::{Bucket, Counter, CounterId, Used};
use super::reservation::{
    Charge, HistoryEntry, HistoryEvent, OVERDRAWN, Reservation, ReservationState, Settled, sum,
};
use super::time::{Span, Time};
use super::window::Window;

/// How many refunds a recount remembers the units of.
const REFUNDS: usize = 1024;

/// What reservations add up to on one counter.
#[derive(Clone, Debug, Default)]
pub struct Recount {
    used: i64,
    /// Of a window that moves on: by the start of the bucket.
    recent: BTreeMap<Time, Bucket>,
    /// Units held, by when they lapse; also of what has lapsed meanwhile.
    holds: BTreeMap<Time, i64>,
    /// The largest max that any charge was admitted under.
    ceiling: Option<i64>,
    /// The largest fencing token.
    token: i64,
    /// How many reservations are charged to it.
    reservations: i64,
    /// Whether one of them has a refund twice.
    doubled: bool,
    /// Units of single refunds, as many as are kept.
    refunds: HashSet<i64>,
}

/// How a counter differs from its reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Units used.
    Used,
    /// Units held, or when they lapse.
    Held,
    /// Reservations are charged to a counter that does not exist.
    MissingCounter,
    /// Units are counted that no reservation has.
    OrphanCharge,
    /// A refund was counted twice.
    DoubledRefund,
    /// The stored record cannot be read.
    Damaged,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "used",
            Self::Held => "held",
            Self::MissingCounter => "missing counter",
            Self::OrphanCharge => "orphan charge",
            Self::DoubledRefund => "doubled refund",
            Self::Damaged => "damaged",
        })
    }
}

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub kind: Kind,
    /// Units that are stored.
    pub stored: i64,
    /// Units that the reservations add up to.
    pub expected: i64,
}

/// What sets a counter right: to be added to it as it stands, whatever was
/// charged to it since it was recounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    used: i64,
    recent: BTreeMap<Time, Bucket>,
    holds: BTreeMap<Time, i64>,
    token: i64,
}

impl Recount {
    /// Counts one reservation's charge.
    pub fn add(&mut self, charge: &Charge, reservation: &Reservation, now: Time) {
        self.reservations += 1;
        self.token = self.token.max(charge.token);
        self.doubled |= has_a_refund_twice(reservation);
        if self.refunds.len() < REFUNDS {
            self.refunds.extend(reservation.refunds().map(|step| sum(charge, &step.amounts)));
        }
        if reservation.state(now) == ReservationState::Held {
            let held = self.holds.entry(reservation.expire_time).or_default();
            *held = held.saturating_add(reservation.held_by(charge));
        }
        self.add_use(charge, reservation, now);
        // An operator's correction and an overdrawn commit may go beyond it.
        let adjusted = reservation.request.as_ref().is_some_and(|request| request.adjustment);
        let overdrawn =
            |step: &HistoryEntry| step.event == HistoryEvent::Committed && step.reason == OVERDRAWN;
        if adjusted || reservation.history.iter().any(overdrawn) {
            self.ceiling = Some(i64::MAX);
        } else if charge.enforced {
            self.ceiling = self.ceiling.max(Some(charge.bound.ceiling()));
        }
    }

    fn add_use(&mut self, charge: &Charge, reservation: &Reservation, now: Time) {
        let units = reservation.used_by(charge);
        self.used = self.used.saturating_add(units);
        let (Window::Rolling(rolling), Settled::Committed { at, .. }) =
            (&charge.counter.window, &reservation.settled)
        else {
            return;
        };
        // Of what has left the window nothing is kept, or there would be no end
        // of buckets.
        let left = |start: Time| start.plus(rolling.bucket).plus(rolling.length) <= now;
        for (start, units) in charge.taken.iter().filter(|(start, _)| !left(*start)) {
            let bucket = self.recent.entry(*start).or_default();
            bucket.units = bucket.units.saturating_sub(*units);
        }
        // What was refunded since still says when the others of its bucket go.
        let start = rolling.bucket_of(*at);
        if charge.taken.is_empty() && !left(start) {
            let bucket = self.recent.entry(start).or_default();
            bucket.units = bucket.units.saturating_add(units);
            bucket.last = bucket.last.max(*at);
        }
    }

    /// Units used at `now` in that window.
    pub fn used(&self, window: &Window, now: Time) -> i64 {
        self.used_beside(None, window, now)
    }

    /// The same where units return when the last of their bucket does that the
    /// stored counter knows of: it may have been undone since, and left no trace
    /// among the reservations.
    pub(super) fn used_beside(&self, stored: Option<&Counter>, window: &Window, now: Time) -> i64 {
        let Window::Rolling(rolling) = window else { return self.used };
        let known = match stored.map(|counter| &counter.used) {
            Some(Used::Recent(buckets)) => Some(buckets),
            _ => None,
        };
        let last = |(start, bucket): (&Time, &Bucket)| {
            let known = known.and_then(|buckets| buckets.get(start));
            known.map_or(bucket.last, |known| known.last.max(bucket.last))
        };
        let live = self.recent.iter().filter(|row| last((row.0, row.1)).plus(rolling.length) > now);
        live.fold(0, |sum, (_, bucket)| sum.saturating_add(bucket.units))
    }

    /// Units held at `now`, by when they lapse.
    pub fn live(&self, now: Time) -> BTreeMap<Time, i64> {
        self.holds.iter().filter(|(at, _)| **at > now).map(|(at, units)| (*at, *units)).collect()
    }

    /// How many reservations are charged to it.
    pub fn reservations(&self) -> i64 {
        self.reservations
    }

    /// The largest max that any enforced charge was admitted under; `None`
    /// where there was none.
    pub fn ceiling(&self) -> Option<i64> {
        self.ceiling
    }

    /// How what is stored differs, at `now`.
    pub fn differences(
        &self,
        stored: Option<&Counter>,
        id: &CounterId,
        now: Time,
    ) -> Vec<Difference> {
        let expected = self.used_beside(stored, &id.window, now);
        let live = self.live(now);
        let holds = live.values().fold(0_i64, |sum, units| sum.saturating_add(*units));
        let Some(counter) = stored else {
            let expected = expected.saturating_add(holds);
            let missing = Difference { kind: Kind::MissingCounter, stored: 0, expected };
            return if expected == 0 { Vec::new() } else { vec![missing] };
        };
        let kind = |usual| match self.reservations {
            0 => Kind::OrphanCharge,
            _ => usual,
        };
        let mut found = Vec::new();
        let used = counter.used(now);
        if used != expected {
            // By just what one refund gave back: most likely it was counted twice.
            let short = expected.checked_sub(used).filter(|short| *short > 0);
            let twice = short.is_some_and(|by| self.doubled || self.refunds.contains(&by));
            let usual = if twice { Kind::DoubledRefund } else { Kind::Used };
            found.push(Difference { kind: kind(usual), stored: used, expected });
        }
        if !counter.live(now).eq(live) {
            let stored = counter.held(now);
            found.push(Difference { kind: kind(Kind::Held), stored, expected: holds });
        }
        found
    }

    /// What sets `stored` right, as of the moment at which both were read.
    pub fn correction(&self, stored: Option<&Counter>, window: &Window, now: Time) -> Correction {
        let mut holds = self.live(now);
        for (at, units) in stored.into_iter().flat_map(|counter| counter.live(now)) {
            *holds.entry(at).or_default() -= units;
        }
        holds.retain(|_, units| *units != 0);
        let mut correction = Correction { holds, token: self.token, ..Correction::default() };
        let Window::Rolling(rolling) = window else {
            let stored = stored.map_or(0, |counter| counter.used(now));
            correction.used = self.used.saturating_sub(stored);
            return correction;
        };
        let mut recent = self.recent.clone();
        if let Some(Used::Recent(buckets)) = stored.map(|counter| &counter.used) {
            for (start, bucket) in buckets {
                let expected = recent.entry(*start).or_default();
                expected.units = expected.units.saturating_sub(bucket.units);
                expected.last = expected.last.max(bucket.last);
            }
        }
        recent.retain(|_, by| by.units != 0 && by.last.plus(rolling.length) > now);
        Correction { recent, ..correction }
    }
}

impl Counter {
    /// Sets the counter right by what a recount found. Never goes below 0.
    pub fn correct(&mut self, correction: &Correction, now: Time) {
        self.as_of = self.as_of.max(now);
        self.token = self.token.max(correction.token);
        match &mut self.used {
            Used::Total(used) => *used = used.saturating_add(correction.used).max(0),
            Used::Recent(buckets) => {
                for (start, by) in &correction.recent {
                    let bucket = buckets.entry(*start).or_default();
                    bucket.units = bucket.units.saturating_add(by.units).max(0);
                    bucket.last = bucket.last.max(by.last);
                }
                buckets.retain(|_, bucket| bucket.units > 0);
            }
        }
        for (at, by) in &correction.holds {
            let group = self.holds.entry(*at).or_default();
            *group = group.saturating_add(*by).max(0);
        }
        self.holds.retain(|_, units| *units > 0);
    }
}

/// Whether retention may have begun to remove what is charged to a counter of
/// that window at `now`, whose first end that was: what is left says nothing.
pub fn passed_over(window: &Window, first_end: Option<Time>, retention: Span, now: Time) -> bool {
    let end = first_end.into_iter().chain(window.end()).min();
    end.is_some_and(|end| end.plus(retention) <= now)
}

fn has_a_refund_twice(reservation: &Reservation) -> bool {
    let mut seen = HashSet::new();
    let mut refunds =
        reservation.history.iter().filter(|step| step.event == HistoryEvent::Refunded);
    refunds.any(|step| !seen.insert(step.refund_id.as_str()))
}

#[cfg(test)]
mod tests;
