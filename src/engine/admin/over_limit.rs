//! What a policy leaves above a limit that it lowers.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::policy::PolicyChange;
use crate::domain::counter::Counter;
use crate::domain::name::SubjectKey;
use crate::domain::policy::{Lowered, Policy, lowered, may_be_open};
use crate::domain::state::Keys;
use crate::domain::status::LimitStatus;
use crate::domain::subject::Subject;
use crate::engine::Engine;
use crate::store::{StoreError, Versioned};

/// The most counters that are listed.
const LISTED: usize = 100;
/// How many counters are read in one go.
const PAGE: usize = 500;
/// How long counters are looked through.
const PATIENCE: Duration = Duration::from_secs(3);

/// Counters that hold more than a lowered limit allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverLimit {
    /// How many were found.
    pub count: i64,
    /// The first of them.
    pub limits: Vec<LimitStatus>,
    /// Whether not all counters could be looked at: there may be more.
    pub incomplete: bool,
}

impl Engine {
    /// The counters that hold more than a limit allows that this change lowers,
    /// as they stand now; `None` where it lowers none.
    ///
    /// This never fails and ends by `until`: the change it is asked about may
    /// have been made already, and whoever made it must hear of that. Where the
    /// time is up or the store does not answer, what was found is a lower bound
    /// and says so.
    pub async fn over_limit(&self, change: &PolicyChange, until: Instant) -> Option<OverLimit> {
        let until = until.min(Instant::now() + PATIENCE);
        let mut found = OverLimit::default();
        let ready = |revision| Policy::new(Clone::clone(revision));
        let (Ok(before), Ok(after)) = (ready(&change.before), ready(&change.after)) else {
            // One of an earlier version, which this one could not have applied.
            return Some(OverLimit { incomplete: true, ..found });
        };
        let limits = lowered(&before, &after);
        if limits.is_empty() {
            return None;
        }
        let look = async {
            for limit in &limits {
                self.look_through(limit, until, &mut found).await?;
            }
            Ok::<(), StoreError>(())
        };
        let looked = timeout_at(until, look).await;
        if let Ok(Err(error)) = &looked {
            warn!(%error, "could not look for what a policy leaves above its limits");
        }
        found.incomplete |= !matches!(looked, Ok(Ok(())));
        Some(found)
    }

    /// Looks through the counters of a limit, a page at a time: there may be
    /// millions of them.
    async fn look_through(
        &self,
        limit: &Lowered<'_>,
        until: Instant,
        found: &mut OverLimit,
    ) -> Result<(), StoreError> {
        let prefix = limit.prefix();
        let mut after = prefix.clone();
        loop {
            // A store that never has to wait lets no timer have its turn.
            tokio::task::yield_now().await;
            if Instant::now() >= until {
                found.incomplete = true;
                return Ok(());
            }
            let page = self.store.counters_after(Some(&after), PAGE).await?;
            let now = self.now();
            let ours = page.iter().take_while(|counter| counter.id.text.starts_with(&prefix));
            let open: Vec<&Counter> = ours.filter(|counter| may_be_open(counter, now)).collect();
            let subjects = self.subjects_of(limit, &open).await?;
            let subject = |key: &SubjectKey| Some(&subjects.get(key)?.as_ref()?.value);
            for status in open.iter().filter_map(|counter| limit.over(counter, subject, now)) {
                found.count += 1;
                if found.limits.len() < LISTED {
                    found.limits.push(status);
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE && last.id.text.starts_with(&prefix) => {
                    after.clone_from(&last.id.text);
                }
                _ => return Ok(()),
            }
        }
    }

    /// The subjects that rule these counters, read at once.
    async fn subjects_of(
        &self,
        limit: &Lowered<'_>,
        counters: &[&Counter],
    ) -> Result<HashMap<SubjectKey, Option<Versioned<Subject>>>, StoreError> {
        let mut subjects: Vec<SubjectKey> =
            counters.iter().flat_map(|counter| limit.subjects(&counter.id)).collect();
        subjects.sort();
        subjects.dedup();
        if subjects.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(self.store.load(&Keys { subjects, ..Keys::default() }).await?.subjects)
    }
}
