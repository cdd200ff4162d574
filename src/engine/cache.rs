//! What this process wrote last, so that a warm call reads nothing.
//!
//! A cached record may be out of date: another server may have written since.
//! A change made from it is guarded by its version, and an answer that changes
//! nothing is never given from it (see [`super::plan`]).

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
    counters: LruCache<Arc<CounterId>, Versioned<Counter>>,
    /// Of a settled reservation only the key is kept: that is enough to know
    /// that a Reserve with its id is a replay.
    reservations: LruCache<ReservationKey, Option<Versioned<Arc<Reservation>>>>,
}

impl Cache {
    pub fn new() -> Self {
        Self { counters: LruCache::new(COUNTERS), reservations: LruCache::new(RESERVATIONS) }
    }

    // Looking does not count as use, since whatever is used is written again.

    pub fn counter(&self, id: &Arc<CounterId>) -> Option<&Versioned<Counter>> {
        self.counters.peek(id)
    }

    pub fn reservation(&self, key: &ReservationKey) -> Option<&Versioned<Arc<Reservation>>> {
        self.reservations.peek(key)?.as_ref()
    }

    /// Whether this process has made a reservation of that id.
    pub fn knows(&self, key: &ReservationKey) -> bool {
        self.reservations.contains(key)
    }

    /// The changes were written.
    pub fn wrote(&mut self, changes: ChangeSet) {
        for change in changes.counters {
            let id = Arc::clone(&change.value.id);
            self.counters.put(id, Versioned { version: change.version, value: change.value });
        }
        for change in changes.reservations {
            let key = change.value.key.clone();
            let open = change.value.settled == Settled::Open;
            let kept = open.then_some(Versioned { version: change.version, value: change.value });
            self.reservations.put(key, kept);
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
    }
}
