//! What this process wrote last, so that a warm call reads nothing.
//!
//! A cached record may be out of date: another server may have written since.
//! A change made from it is guarded by its version, and an answer that changes
//! nothing is never given from it (see [`super::plan`]).

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use crate::domain::counter::{Counter, CounterId};
use crate::domain::name::ReservationKey;
use crate::domain::reservation::{Reservation, Settled};
use crate::store::{ChangeSet, Versioned};

const COUNTERS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();
const RESERVATIONS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// Records that were written.
pub(super) struct Cache {
    counters: LruCache<Arc<CounterId>, CachedCounter>,
    /// Of a settled reservation only the key is kept: that is enough to know
    /// that a Reserve with its id is a replay.
    reservations: LruCache<ReservationKey, Option<CachedReservation>>,
}

struct CachedCounter {
    row: Versioned<Counter>,
    /// Every version from this one on was written by this process.
    ours_since: i64,
}

struct CachedReservation {
    row: Versioned<Arc<Reservation>>,
    /// The versions that its counters got when it was written, charge by
    /// charge.
    counters: Vec<i64>,
}

impl Cache {
    pub fn new() -> Self {
        Self { counters: LruCache::new(COUNTERS), reservations: LruCache::new(RESERVATIONS) }
    }

    // Looking does not count as use, since whatever is used is written again.

    pub fn counter(&self, id: &Arc<CounterId>) -> Option<&Versioned<Counter>> {
        Some(&self.counters.peek(id)?.row)
    }

    pub fn reservation(&self, key: &ReservationKey) -> Option<&Versioned<Arc<Reservation>>> {
        Some(&self.reservations.peek(key)?.as_ref()?.row)
    }

    /// Whether this process has made a reservation of that id.
    pub fn knows(&self, key: &ReservationKey) -> bool {
        self.reservations.contains(key)
    }

    /// Whether the guards of its counters, as cached, also prove that nobody
    /// has changed this reservation since it was cached: whoever changes a
    /// reservation writes all its counters in the same step, and nobody but
    /// this process has written these.
    pub fn proven_by_its_counters(&self, key: &ReservationKey) -> bool {
        let Some(Some(cached)) = self.reservations.peek(key) else { return false };
        let charges = &cached.row.value.charges;
        !charges.is_empty()
            && charges.iter().zip(&cached.counters).all(|(charge, written)| {
                let counter = self.counters.peek(&charge.counter);
                counter.is_some_and(|counter| counter.ours_since <= *written)
            })
    }

    /// The changes were written.
    pub fn wrote(&mut self, changes: ChangeSet) {
        let mut versions = HashMap::with_capacity(changes.counters.len());
        for change in changes.counters {
            let id = Arc::clone(&change.value.id);
            let ours_since = match self.counters.peek(&id) {
                Some(last) if Some(last.row.version) == change.expected => last.ours_since,
                _ => change.version,
            };
            versions.insert(Arc::clone(&id), change.version);
            let row = Versioned { version: change.version, value: change.value };
            self.counters.put(id, CachedCounter { row, ours_since });
        }
        for change in changes.reservations {
            let key = change.value.key.clone();
            let written = change.value.charges.iter().map(|charge| versions.get(&charge.counter));
            let kept = match written.map(Option::<&i64>::copied).collect() {
                Some(counters) if change.value.settled == Settled::Open => {
                    let row = Versioned { version: change.version, value: change.value };
                    Some(CachedReservation { row, counters })
                }
                _ => None,
            };
            self.reservations.put(key, kept);
        }
        for removal in changes.removed_reservations {
            self.reservations.pop(&removal.key);
        }
    }

    /// The changes were not written, or perhaps: what is cached of them may be
    /// out of date.
    pub fn doubt(&mut self, changes: &ChangeSet) {
        for change in &changes.counters {
            self.counters.pop(&change.value.id);
        }
        for change in &changes.reservations {
            self.reservations.pop(&change.value.key);
        }
        for removal in &changes.removed_reservations {
            self.reservations.pop(&removal.key);
        }
    }
}
