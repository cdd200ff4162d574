//! The trail: what a reservation's history says that each step did.
//!
//! A reservation tells what happened to it; which counters that moved, and by
//! how much, follows from its charges. So that the trail can be held against
//! the counters, the changes of all steps add up to what the reservation counts
//! now: its committed units as used, those of a live hold as held.

use std::sync::Arc;

use super::counter::CounterId;
use super::event::{Event, EventKind, RefusalRecord, map_weight};
use super::name::{Dimensions, quoted};
use super::reservation::{Charge, HistoryEntry, HistoryEvent, Reservation, sum};
use super::status::LimitStatus;
use super::time::Time;
use super::window::Window;

/// The most bytes of one detail that lists things.
const MAX_DETAIL: usize = 512;

/// One entry of the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailEntry {
    /// When.
    pub time: Time,
    /// What.
    pub kind: TrailKind,
    /// Who.
    pub principal: String,
    /// Why: where a call gave a reason; of a refusal what the contract calls it.
    pub reason: String,
    /// The reservation concerned; empty when none is.
    pub reservation_id: String,
    /// The subject concerned, as `kind/id`; empty when none is.
    pub subject: String,
    /// The limits concerned.
    pub limits: Vec<LimitStatus>,
    /// What it did to the counters that the reservation is charged to; those
    /// that it left as they were are not listed.
    pub changes: Vec<CounterChange>,
    /// More, by name.
    pub details: Dimensions,
}

/// What an entry of the trail tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailKind {
    /// A step of a reservation.
    Step(HistoryEvent),
    /// A change of something else.
    Change(EventKind),
    /// A call that was refused.
    Refused,
}

/// What one step of a reservation did to one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterChange {
    /// Which counter.
    pub counter: Arc<CounterId>,
    /// Units that became used, or free again where it is below 0.
    pub used: i64,
    /// Units that became held, or no longer are where it is below 0.
    pub held: i64,
}

/// What became of a reservation until `now`, oldest first.
pub fn steps(reservation: &Reservation, now: Time) -> Vec<TrailEntry> {
    let mut charged = Charged::new(reservation);
    let step = |entry: HistoryEntry| TrailEntry {
        time: entry.time,
        kind: TrailKind::Step(entry.event),
        changes: charged.step(&entry),
        details: details(reservation, &entry),
        principal: entry.principal,
        reason: entry.reason,
        reservation_id: reservation.key.id().into_owned(),
        subject: String::new(),
        limits: Vec::new(),
    };
    reservation.history_at(now).into_iter().map(step).collect()
}

impl From<Event> for TrailEntry {
    fn from(event: Event) -> Self {
        Self {
            time: event.time,
            kind: TrailKind::Change(event.kind),
            principal: event.principal,
            reason: event.reason,
            reservation_id: event.reservation_id,
            subject: event.subject,
            limits: event.limits,
            changes: Vec::new(),
            details: event.details,
        }
    }
}

impl From<RefusalRecord> for TrailEntry {
    fn from(refused: RefusalRecord) -> Self {
        let mut details = refused.details;
        details.insert("call".to_owned(), refused.call);
        details.insert("message".to_owned(), refused.message);
        if !refused.items.is_empty() {
            let amounts: Vec<i64> = refused.items.iter().map(|item| item.amount).collect();
            let metrics = refused.items.iter().map(|item| item.metric.as_str());
            details.insert("items".to_owned(), amounts_of(metrics, &amounts));
        }
        Self {
            time: refused.time,
            kind: TrailKind::Refused,
            principal: refused.principal,
            reason: refused.reason,
            reservation_id: refused.reservation_id,
            subject: details.get("subject").cloned().unwrap_or_default(),
            limits: refused.limits,
            changes: Vec::new(),
            details,
        }
    }
}

impl TrailEntry {
    /// About how many bytes it has.
    pub fn weight(&self) -> usize {
        let names = [&self.principal, &self.reason, &self.reservation_id, &self.subject];
        let change = |change: &CounterChange| {
            64 + change.counter.limit.len() + map_weight(&change.counter.key)
        };
        128 + names.map(String::len).iter().sum::<usize>()
            + self.limits.iter().map(LimitStatus::weight).sum::<usize>()
            + self.changes.iter().map(change).sum::<usize>()
            + map_weight(&self.details)
    }
}

/// What a reservation holds of its counters while its history is told.
struct Charged<'r> {
    charges: &'r [Charge],
    /// It used what it took at once, and never held it.
    at_once: bool,
    /// Units held, charge by charge.
    held: Vec<i64>,
}

impl<'r> Charged<'r> {
    fn new(reservation: &'r Reservation) -> Self {
        Self {
            charges: &reservation.charges,
            at_once: reservation.request.as_ref().is_some_and(|request| request.commit),
            held: vec![0; reservation.charges.len()],
        }
    }

    /// What a step did to each counter.
    fn step(&mut self, entry: &HistoryEntry) -> Vec<CounterChange> {
        let mut changes = Vec::new();
        for (n, (charge, holding)) in self.charges.iter().zip(&mut self.held).enumerate() {
            let units = sum(charge, &entry.amounts);
            let (used, held) = match entry.event {
                HistoryEvent::Reserved if self.at_once => (0, 0),
                HistoryEvent::Reserved => (0, units),
                // One that comes after the expiry finds nothing held any more.
                HistoryEvent::Committed => (units, -*holding),
                HistoryEvent::Released | HistoryEvent::Expired => (0, -*holding),
                HistoryEvent::Extended => (0, 0),
                HistoryEvent::Refunded => {
                    let unfreed = entry.unfreed.iter().filter(|(charge, _)| *charge == n);
                    (unfreed.fold(-units, |sum, (_, units)| sum + units), 0)
                }
                HistoryEvent::Adjusted => (units, 0),
            };
            *holding += held;
            if (used, held) != (0, 0) {
                changes.push(CounterChange { counter: Arc::clone(&charge.counter), used, held });
            }
        }
        changes
    }
}

fn details(reservation: &Reservation, entry: &HistoryEntry) -> Dimensions {
    let mut details = Dimensions::new();
    let mut tell = |name: &str, value: String| drop(details.insert(name.to_owned(), value));
    if !entry.amounts.is_empty() {
        let metrics = reservation.items().iter().map(|item| item.metric.as_str());
        tell("amounts", amounts_of(metrics, &entry.amounts));
    }
    match entry.event {
        HistoryEvent::Reserved => {
            tell("policy_revision", reservation.policy_revision.to_string());
            if let Some(request) = &reservation.request
                && !request.commit
            {
                tell("ttl", request.ttl.to_string());
            }
        }
        HistoryEvent::Committed => {
            if let super::reservation::Settled::Committed { resources, .. } = &reservation.settled
                && !resources.is_empty()
            {
                tell("resources", listed(resources.iter().map(|name| quoted(name))));
            }
        }
        HistoryEvent::Extended if entry.times > 1 => tell("times", entry.times.to_string()),
        HistoryEvent::Refunded => tell("refund_id", entry.refund_id.clone()),
        HistoryEvent::Released
        | HistoryEvent::Expired
        | HistoryEvent::Extended
        | HistoryEvent::Adjusted => {}
    }
    details
}

/// Amounts item by item, each with what is counted: `posts=3, edits=1`.
fn amounts_of<'m>(metrics: impl Iterator<Item = &'m str>, amounts: &[i64]) -> String {
    listed(metrics.zip(amounts).map(|(metric, amount)| format!("{metric}={amount}")))
}

/// The parts, as many as are told.
fn listed(parts: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for part in parts {
        if text.len() + part.len() > MAX_DETAIL && !text.is_empty() {
            text.push_str(", …");
            break;
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&part);
    }
    text
}

/// The bounds of the window that a charge was taken from; `None` of one that
/// has none of its own: a lifetime, and a rolling window, which moves on.
pub fn bounds(window: &Window) -> Option<(Time, Time)> {
    window.start().zip(window.end())
}

#[cfg(test)]
mod tests;
