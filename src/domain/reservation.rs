//! Reservations: what was asked, what was taken, what became of it.

use std::collections::HashSet;
use std::sync::Arc;

use super::counter::CounterId;
use super::name::{Dimensions, ReservationKey};
use super::policy::Bound;
use super::time::{Span, Time};

/// The most items of one reservation.
pub const MAX_ITEMS: usize = 64;
/// The most counters that one reservation may be charged to.
pub const MAX_CHARGES: usize = 256;
/// The most resources bound to one reservation.
pub const MAX_RESOURCES: usize = 64;
/// The shortest time to live of a hold.
pub const MIN_TTL: Span = Span::from_secs(1);
/// The longest time to live of a hold.
pub const MAX_TTL: Span = Span::from_secs(86_400);
/// The time to live of a hold that names none.
pub const DEFAULT_TTL: Span = Span::from_secs(60);
/// The most refunds of one reservation: each stays in its history.
pub const MAX_REFUNDS: usize = 256;

/// What a caller asks to hold: everything about a Reserve that makes it this
/// one and no other. Two calls with the same id must agree in all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// At least one.
    pub items: Vec<ItemRequest>,
    /// How long to hold.
    pub ttl: Span,
    /// Commit in the same step.
    pub commit: bool,
    /// Resources to bind on commit.
    pub resources: Vec<String>,
    /// The caller's own notes.
    pub labels: Dimensions,
    /// An operator's correction and no call of a backend: one item whose amount
    /// is what he adds, or takes away where it is negative.
    pub adjustment: bool,
}

impl Request {
    /// The part in which two requests differ, if they do.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            ("purpose", self.adjustment != other.adjustment),
            ("items", self.items != other.items),
            ("ttl", self.ttl != other.ttl),
            ("commit", self.commit != other.commit),
            ("resources", self.resources != other.resources),
            ("labels", self.labels != other.labels),
        ]
        .into_iter()
        .find_map(|(part, differs)| differs.then_some(part))
    }
}

/// One thing asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRequest {
    /// The metric.
    pub metric: String,
    /// Units, at least 1; of an adjustment any but 0.
    pub amount: i64,
    /// The item's dimensions and those of the whole call.
    pub dimensions: Dimensions,
}

/// What one reservation took from one counter. Everything given back goes
/// there, whatever plan, policy or period rules by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Which counter.
    pub counter: Arc<CounterId>,
    /// Which items were counted, by position; never empty.
    pub items: Vec<usize>,
    /// Grows with every admission on the counter.
    pub token: i64,
    /// What the limit allowed when this was admitted.
    pub bound: Bound,
    /// Whether the limit refused, or only counted, when this was admitted.
    pub enforced: bool,
    /// Of an adjustment that took units from a rolling window: from which of its
    /// buckets, by their starts. Empty for everything else, which is counted in
    /// the bucket of its settling.
    pub taken: Vec<(Time, i64)>,
}

/// What became of a reservation, as stored. That a hold has expired is never
/// stored but derived: see [`Reservation::state`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Not yet.
    Open,
    /// Committed with these units, item by item.
    Committed {
        /// When.
        at: Time,
        /// Units, item by item.
        amounts: Vec<i64>,
        /// Resources bound by it.
        resources: Vec<String>,
    },
    /// Given back.
    Released {
        /// When.
        at: Time,
    },
}

/// Where a reservation stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// Units are held.
    Held,
    /// Units are used.
    Committed,
    /// Given back.
    Released,
    /// Ran out unsettled.
    Expired,
}

/// One step in a reservation's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When.
    pub time: Time,
    /// What.
    pub event: HistoryEvent,
    /// Units concerned, item by item.
    pub amounts: Vec<i64>,
    /// Who.
    pub principal: String,
    /// Why, where a reason was given; of a late commit [`RECLAIMED`] or
    /// [`OVERDRAWN`].
    pub reason: String,
    /// The refund's id; empty for everything else.
    pub refund_id: String,
    /// Of a refund: units that freed nothing, since an operator had taken them
    /// from the counter before, by the position of the charge.
    pub unfreed: Vec<(usize, i64)>,
    /// How many such steps this stands for: renewals by one caller that follow
    /// each other are kept as one, with the time of the last, since a lock that
    /// is held for weeks must not grow.
    pub times: i64,
}

impl HistoryEntry {
    /// A step with no reason and no refund, told once.
    pub fn new(event: HistoryEvent, time: Time, amounts: Vec<i64>, principal: &str) -> Self {
        Self {
            time,
            event,
            amounts,
            principal: principal.to_owned(),
            reason: String::new(),
            refund_id: String::new(),
            unfreed: Vec::new(),
            times: 1,
        }
    }
}

/// The reason of a late commit whose units were there to be taken again.
pub const RECLAIMED: &str = "reclaimed";
/// The reason of a late commit that was recorded whether they were there or
/// not.
pub const OVERDRAWN: &str = "overdrawn";

/// What happened in a [`HistoryEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// Admitted.
    Reserved,
    /// Turned into use.
    Committed,
    /// Given back.
    Released,
    /// Its end was put off.
    Extended,
    /// Given back after it had been used, in part or whole.
    Refunded,
    /// Booked by an operator.
    Adjusted,
    /// Ran out; derived, never stored.
    Expired,
}

/// A reservation as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Namespace and id.
    pub key: ReservationKey,
    /// What was asked for; `None` for the record that a Release left behind
    /// because it came before its Reserve.
    pub request: Option<Arc<Request>>,
    /// What was taken.
    pub charges: Arc<[Charge]>,
    /// When it was admitted.
    pub create_time: Time,
    /// When it lapses unless it is settled; the instant of admission for one
    /// that was never held.
    pub expire_time: Time,
    /// What became of it.
    pub settled: Settled,
    /// What happened, oldest first.
    pub history: Vec<HistoryEntry>,
    /// The policy revision that it was admitted under; 0 when none was.
    pub policy_revision: i64,
    /// Who reserved.
    pub principal: String,
    /// When retention may remove it; `None` keeps it for ever.
    pub purge_at: Option<Time>,
}

impl Reservation {
    /// Where it stands at `now`. A hold is expired *at* its `expire_time`.
    pub fn state(&self, now: Time) -> ReservationState {
        match self.settled {
            Settled::Committed { .. } => ReservationState::Committed,
            Settled::Released { .. } => ReservationState::Released,
            Settled::Open if now < self.expire_time => ReservationState::Held,
            Settled::Open => ReservationState::Expired,
        }
    }

    /// The items that were asked for.
    pub fn items(&self) -> &[ItemRequest] {
        self.request.as_ref().map_or(&[], |request| &request.items)
    }

    /// Units reserved, item by item.
    pub fn reserved(&self) -> Vec<i64> {
        self.items().iter().map(|item| item.amount).collect()
    }

    /// Units committed, item by item; `None` until then.
    pub fn committed(&self) -> Option<&[i64]> {
        match &self.settled {
            Settled::Committed { amounts, .. } => Some(amounts),
            _ => None,
        }
    }

    /// Units that `charge` counts as held, while the reservation is held.
    pub fn held_by(&self, charge: &Charge) -> i64 {
        sum(charge, &self.reserved())
    }

    /// Units that the counter of `charge` counts as used for it: those committed
    /// and not refunded, and those whose refund freed nothing.
    pub fn used_by(&self, charge: &Charge) -> i64 {
        let of = |(n, units): &(usize, i64)| {
            let meant = self.charges.get(*n).is_some_and(|other| other.counter == charge.counter);
            meant.then_some(*units)
        };
        let unfreed = self.refunds().flat_map(|step| step.unfreed.iter().filter_map(of));
        unfreed.fold(sum(charge, &self.left()), i64::saturating_add)
    }

    /// The refunds, each once: an id that stands there twice was counted twice
    /// by somebody else's hand.
    pub fn refunds(&self) -> impl Iterator<Item = &HistoryEntry> {
        let mut seen = HashSet::new();
        let refunds = self.history.iter().filter(|step| step.event == HistoryEvent::Refunded);
        refunds.filter(move |step| seen.insert(step.refund_id.as_str()))
    }

    /// Units refunded, item by item; never more than were committed.
    pub fn refunded(&self) -> Vec<i64> {
        let committed = self.committed().unwrap_or_default();
        let mut refunded = vec![0_i64; committed.len()];
        for step in self.refunds() {
            for (sum, amount) in refunded.iter_mut().zip(&step.amounts) {
                *sum = sum.saturating_add(*amount);
            }
        }
        let most = |(sum, committed): (&i64, &i64)| (*sum).min((*committed).max(0));
        refunded.iter().zip(committed).map(most).collect()
    }

    /// Units committed and not refunded, item by item; empty until committed.
    pub fn left(&self) -> Vec<i64> {
        let committed = self.committed().unwrap_or_default();
        committed.iter().zip(self.refunded()).map(|(committed, back)| committed - back).collect()
    }

    /// Whether it was committed after its hold had run out.
    pub fn is_late(&self) -> bool {
        let held = self.request.as_ref().is_some_and(|request| !request.commit);
        match &self.settled {
            Settled::Committed { at, .. } => held && *at >= self.expire_time,
            Settled::Open | Settled::Released { .. } => false,
        }
    }

    /// The history as of `now`, with the expiry that nobody wrote.
    pub fn history_at(&self, now: Time) -> Vec<HistoryEntry> {
        let mut history = self.history.clone();
        if self.state(now) == ReservationState::Expired || self.is_late() {
            let (event, at) = (HistoryEvent::Expired, self.expire_time);
            let committed = history.iter().position(|step| step.event == HistoryEvent::Committed);
            let place = committed.unwrap_or(history.len());
            history.insert(place, HistoryEntry::new(event, at, self.reserved(), ""));
        }
        history
    }
}

/// The units that `charge` counts of `amounts`, which are item by item.
pub fn sum(charge: &Charge, amounts: &[i64]) -> i64 {
    charge
        .items
        .iter()
        .filter_map(|&item| amounts.get(item))
        .fold(0, |sum, amount| sum.saturating_add(*amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_until(millis: i64) -> Reservation {
        Reservation {
            key: ReservationKey::new("n", "r"),
            request: None,
            charges: Arc::default(),
            create_time: Time::default(),
            expire_time: Time::saturating(millis),
            settled: Settled::Open,
            history: Vec::new(),
            policy_revision: 1,
            principal: String::new(),
            purge_at: None,
        }
    }

    #[test]
    fn a_hold_is_expired_at_its_instant_and_says_so_in_its_history() {
        let reservation = held_until(100);
        let at = |millis| reservation.state(Time::saturating(millis));
        assert_eq!(at(99), ReservationState::Held);
        assert_eq!(at(100), ReservationState::Expired);
        assert!(reservation.history_at(Time::saturating(99)).is_empty());
        let history = reservation.history_at(Time::saturating(100));
        assert_eq!(history[0].event, HistoryEvent::Expired);
        assert_eq!(history[0].time, reservation.expire_time);
    }

    #[test]
    fn a_settled_reservation_never_expires() {
        let at = Time::saturating(50);
        for settled in [
            Settled::Released { at },
            Settled::Committed { at, amounts: Vec::new(), resources: Vec::new() },
        ] {
            let reservation = Reservation { settled, ..held_until(100) };
            assert_ne!(reservation.state(Time::MAX), ReservationState::Expired);
            assert_ne!(reservation.state(Time::MAX), ReservationState::Held);
        }
    }
}
