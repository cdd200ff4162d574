//! Repair: a counter is set to what its reservations add up to.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::Event;
use crate::domain::policy::Bound;
use crate::domain::recount::Difference;
use crate::domain::state::Keys;
use crate::domain::status::LimitStatus;
use crate::engine::{Engine, Error};
use crate::store::{Change, ChangeSet, Extent, WriteError};

/// How often a counter is mended while others write it.
const ATTEMPTS: u32 = 200;
/// The longest pause between two attempts.
const PAUSE: u64 = 20;

impl Engine {
    /// Sets a counter right, with an event for each difference in the same
    /// write. What it was off by is found at one moment and added to the counter
    /// as it stands when it is written: on a busy one the two differ, and what
    /// it is off by does not change by honest work.
    pub(super) async fn mend(
        &self,
        id: &Arc<CounterId>,
        principal: &str,
        reason: &str,
    ) -> Result<Vec<Difference>, Error> {
        let Some(recounted) = self.recount(std::slice::from_ref(id)).await?.pop() else {
            return Ok(Vec::new());
        };
        let differences = recounted.differences();
        if differences.is_empty() {
            return Ok(differences);
        }
        let stored = recounted.stored.as_ref().map(|row| &row.value);
        let correction = recounted.recount.correction(stored, &id.window, recounted.now);
        for _ in 0..ATTEMPTS {
            let counters = vec![Arc::clone(id)];
            let loaded = self.store.load(&Keys { counters, ..Keys::default() }).await?;
            let row = loaded.counters.into_values().flatten().next();
            if row.is_some() != recounted.stored.is_some() {
                // It has come or gone meanwhile: what it was off by is another.
                return Box::pin(self.mend(id, principal, reason)).await;
            }
            let (expected, mut value) = match row {
                Some(row) => (Some(row.version), row.value),
                None => (None, Counter::new(Arc::clone(id))),
            };
            let now = self.now().max(value.as_of);
            value.correct(&correction, now);
            let version = expected.map_or(now.as_millis().saturating_mul(1000), |v| v + 1);
            let event = |difference: &Difference| {
                let status = LimitStatus::at_rest(&value, Bound::Unlimited, true, now);
                let what = difference.kind.to_string();
                let units = (difference.stored, difference.expected);
                let event = Event::repaired(principal, reason, status, &what, units, now);
                Event { purge_at: Some(now.plus(self.settings.retention)), ..event }
            };
            let events = differences.iter().map(event).collect();
            let purge_at = value.purge_at(self.settings.retention);
            let (proven, extent) = (false, Extent::Usual);
            let change = Change { expected, version, value, purge_at, proven, extent };
            let changes = ChangeSet { counters: vec![change], events, ..ChangeSet::default() };
            match self.store.write(&changes).await {
                Ok(()) => return Ok(differences),
                Err(WriteError::Conflict | WriteError::Exists) => {
                    tokio::time::sleep(Duration::from_millis(1 + fastrand::u64(0..PAUSE))).await;
                }
                Err(WriteError::Failed(message)) => return Err(Error::Unavailable(message)),
                Err(WriteError::Unknown(_)) => return Err(Error::OutcomeUnknown),
            }
        }
        Err(Error::Unavailable(format!("the counter {} was too busy to be mended", id.text)))
    }
}
