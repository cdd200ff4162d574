//! Repair: a counter is set to what its reservations add up to.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::Event;
use crate::domain::policy::Bound;
use crate::domain::recount::Difference;
use crate::domain::state::Keys;
use crate::domain::status::LimitStatus;
use crate::domain::time::Span;
use crate::engine::{Engine, Error};
use crate::store::{Change, ChangeSet, Extent, StoreError, Versioned, WriteError};

use super::Recounted;

/// How often a counter is recounted to be mended.
const ATTEMPTS: u32 = 100;
/// How often of these it is hoped to be at rest.
const AT_REST: u32 = 6;
/// The longest pause between two attempts, in milliseconds.
const PAUSE: u64 = 20;
/// The value that is the lease of those who mend counters at work, and how long
/// it lasts should they die.
const LEASE: &str = "repair";
const HELD: Span = Span::from_secs(10);

impl Engine {
    /// Sets a counter right, with an event for each difference in the same
    /// write.
    ///
    /// It is written as it was recounted, if nobody has written it since. On a
    /// counter that never rests that does not come to pass: then what it was off
    /// by is added to it as it stands, which honest work does not change but
    /// where it meets nothing left to give back. Two repairs must not both do
    /// so: a lease lets one of them at a time.
    pub(super) async fn mend(
        &self,
        id: &Arc<CounterId>,
        principal: &str,
        reason: &str,
    ) -> Result<Vec<Difference>, Error> {
        for attempt in 0..ATTEMPTS {
            let Some(recounted) = self.recount(std::slice::from_ref(id)).await?.pop() else {
                break;
            };
            let differences = recounted.differences();
            if differences.is_empty() {
                return Ok(differences);
            }
            let pause = Duration::from_millis(fastrand::u64(0..PAUSE));
            if attempt < AT_REST {
                let stored = recounted.stored.clone();
                if self.correct(&recounted, stored, &differences, principal, reason).await? {
                    return Ok(differences);
                }
                tokio::time::sleep(pause).await;
                continue;
            }
            let Some(lease) = self.lease().await? else {
                tokio::time::sleep(pause + Duration::from_millis(100)).await;
                continue;
            };
            let mended = self.mend_at_work(id, principal, reason, lease).await;
            let _ = self.store.swap(LEASE, Some(lease), 0).await;
            if let Some(differences) = mended? {
                return Ok(differences);
            }
        }
        Err(Error::Unavailable(format!("the counter {} was too busy to be mended", id.text)))
    }

    /// Adds to a counter as it stands what it is off by, while the lease lasts.
    async fn mend_at_work(
        &self,
        id: &Arc<CounterId>,
        principal: &str,
        reason: &str,
        until: i64,
    ) -> Result<Option<Vec<Difference>>, Error> {
        let Some(recounted) = self.recount(std::slice::from_ref(id)).await?.pop() else {
            return Ok(None);
        };
        let differences = recounted.differences();
        if differences.is_empty() {
            return Ok(Some(differences));
        }
        while self.now().as_millis() < until - HELD.as_millis() / 2 {
            let counters = vec![Arc::clone(id)];
            let loaded = self.store.load(&Keys { counters, ..Keys::default() }).await?;
            let row = loaded.counters.into_values().flatten().next();
            if row.is_some() != recounted.stored.is_some() {
                // It has come or gone meanwhile: what it was off by is another.
                return Ok(None);
            }
            if self.correct(&recounted, row, &differences, principal, reason).await? {
                return Ok(Some(differences));
            }
            tokio::time::sleep(Duration::from_millis(1 + fastrand::u64(0..PAUSE))).await;
        }
        Ok(None)
    }

    /// Writes a counter with what it was off by added; false where another was
    /// first.
    async fn correct(
        &self,
        recounted: &Recounted,
        row: Option<Versioned<Counter>>,
        differences: &[Difference],
        principal: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        let stored = recounted.stored.as_ref().map(|row| &row.value);
        let id = &recounted.id;
        let correction = recounted.recount.correction(stored, &id.window, recounted.now);
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
            Ok(()) => {
                // Room may be there that somebody waits for.
                self.pulse.counter_changed(&id.text);
                Ok(true)
            }
            Err(WriteError::Conflict | WriteError::Exists) => Ok(false),
            Err(WriteError::Failed(message)) => Err(Error::Unavailable(message)),
            Err(WriteError::Unknown(_)) => Err(Error::OutcomeUnknown),
        }
    }

    /// Takes the lease of those who mend counters at work: until when it lasts;
    /// `None` where another has it.
    async fn lease(&self) -> Result<Option<i64>, StoreError> {
        let now = self.now().as_millis();
        let held = self.store.value(LEASE).await?;
        if held.is_some_and(|until| until > now) {
            return Ok(None);
        }
        let until = now + HELD.as_millis();
        Ok(self.store.swap(LEASE, held, until).await?.then_some(until))
    }
}
