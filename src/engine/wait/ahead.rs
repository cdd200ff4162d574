//! Who stands before the command that is decided.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Room, Wait};
use crate::domain::counter::CounterId;
use crate::domain::decide::{Command, Line};
use crate::domain::name::ReservationKey;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Request;
use crate::engine::queue::Pending;

/// Those who wait before the command that is decided next: the ones in the
/// room, and the ones of its batch that stay.
#[derive(Debug)]
pub struct Ahead<'r> {
    room: &'r Room,
    counters: HashSet<Arc<CounterId>>,
    requests: HashMap<ReservationKey, Arc<Request>>,
    /// The number of the one that is decided.
    number: u64,
}

impl<'r> Ahead<'r> {
    pub fn of(room: &'r Room) -> Self {
        let (counters, requests) = (HashSet::new(), HashMap::new());
        Self { room, counters, requests, number: u64::MAX }
    }

    /// Whether anybody waits at all.
    pub fn anybody(&self) -> bool {
        !self.room.is_empty() || !self.counters.is_empty()
    }

    /// This one is decided next.
    pub fn next(&mut self, pending: &Pending) {
        self.number = pending.wait.as_ref().map_or(u64::MAX, Wait::number);
    }

    /// This one stays.
    pub fn stays(&mut self, pending: &Pending, refusal: &Refusal) {
        if let Refusal::QuotaExceeded { limits, .. } = refusal {
            self.counters.extend(limits.iter().map(|limit| Arc::clone(&limit.counter)));
        }
        if let Command::Reserve(reserve) = &pending.command {
            let request = Arc::clone(&reserve.request);
            self.requests.entry(reserve.key.clone()).or_insert(request);
        }
    }

    /// What somebody asks for who waits under this id.
    pub fn asked_under(&self, key: &ReservationKey) -> Option<&Arc<Request>> {
        self.requests.get(key).or_else(|| self.room.asked_under(key))
    }
}

impl Line for Ahead<'_> {
    fn stands(&self, counter: &CounterId) -> bool {
        (!self.counters.is_empty() && self.counters.contains(counter))
            || (!self.room.is_empty()
                && self.room.head(counter).is_some_and(|first| first < self.number))
    }
}
