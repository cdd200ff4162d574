//! Audit: every counter recounted from its reservations (I2); and repair.
//!
//! Each counter is read as of the same moment as all that is charged to it, so
//! that work under way never looks like a difference. A few counters at a time
//! are in memory, whatever there is: first those that exist, then those that
//! reservations are charged to and that do not.

mod repair;

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Engine, Error};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::name::{ReservationKey, join_key, split_key};
use crate::domain::policy::{Bound, MaxSpec, Policy};
use crate::domain::recount::{Difference, Kind, Recount, passed_over};
use crate::domain::refusal::Refusal;
use crate::domain::state::Keys;
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;
use crate::domain::window::Window;
use crate::store::{Charged, ReservationFilter, StoreError, Versioned};

/// How many counters are recounted at one moment.
const TOGETHER: usize = 64;
/// How many reservations are looked through in one go.
const PAGE: usize = 500;
/// How often it is told how far the recount has come.
const TELL: Duration = Duration::from_secs(1);

/// What to recount, and what to do about it.
#[derive(Clone, Debug)]
pub struct AuditQuery {
    /// The namespace.
    pub namespace: String,
    /// Only this limit.
    pub limit: Option<String>,
    /// Mend what differs: who, and why.
    pub repair: Option<(String, String)>,
    /// Tell how far it has come, too.
    pub progress: bool,
}

/// A step of an audit.
#[derive(Clone, Debug)]
pub struct AuditStep {
    /// What was found, if anything.
    pub finding: Option<Finding>,
    /// Counters recounted so far.
    pub counters: i64,
    /// Reservations counted so far.
    pub reservations: i64,
}

/// A counter that does not equal the sum of its reservations.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The counter as stored; once it is repaired, as it was.
    pub counter: LimitStatus,
    /// How it differs.
    pub difference: Difference,
}

/// Why an audit ends before its time.
enum Stop {
    /// Nobody listens any more.
    Gone,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Engine {
    /// Recounts the counters of a namespace and tells what differs, as it is
    /// found; the last thing told is an error where it could not be finished.
    /// Ends early where nobody listens any more.
    pub async fn audit(
        self: Arc<Self>,
        query: AuditQuery,
        steps: mpsc::Sender<Result<AuditStep, Error>>,
    ) {
        let told = steps.clone();
        let Ok(_turn) = Arc::clone(&self.thorough).try_acquire_owned() else {
            let _ = told.send(Err(Error::Overloaded)).await;
            return;
        };
        let mut auditor = Auditor {
            engine: self,
            query,
            steps,
            policy: None,
            counters: 0,
            reservations: 0,
            told: Instant::now(),
        };
        if let Err(Stop::Failed(error)) = auditor.run().await {
            let _ = told.send(Err(error)).await;
        }
    }
}

struct Auditor {
    engine: Arc<Engine>,
    query: AuditQuery,
    steps: mpsc::Sender<Result<AuditStep, Error>>,
    policy: Option<Arc<Policy>>,
    counters: i64,
    reservations: i64,
    /// When it was last told how far this has come.
    told: Instant,
}

/// A counter and what its reservations add up to, as of one moment.
struct Recounted {
    id: Arc<CounterId>,
    stored: Option<Versioned<Counter>>,
    recount: Recount,
    now: Time,
}

impl Recounted {
    fn differences(&self) -> Vec<Difference> {
        let stored = self.stored.as_ref().map(|row| &row.value);
        self.recount.differences(stored, &self.id, self.now)
    }
}

impl Auditor {
    async fn run(&mut self) -> Result<(), Stop> {
        self.engine.store.tick().await?;
        let namespace = self.query.namespace.clone();
        self.policy = self.engine.catalog.policy(&namespace).await?;
        if self.policy.is_none() {
            return Err(Refusal::NamespaceNotFound { namespace }.into());
        }
        if let Some(limit) = &self.query.limit
            && self.policy.as_ref().is_none_or(|policy| policy.present_limit(limit).is_none())
        {
            // One that is gone has counters still, or there never was one.
            let prefix = self.prefix();
            let some = self.engine.counters_within(&prefix, &prefix, 1).await;
            if some.is_ok_and(|some| some.is_empty()) {
                return Err(Refusal::LimitNotFound { limit: limit.clone() }.into());
            }
        }
        self.stored_counters().await?;
        self.missing_counters().await
    }

    /// What the texts of the counters that are meant begin with.
    fn prefix(&self) -> String {
        let parts = std::iter::once(&self.query.namespace).chain(&self.query.limit);
        format!("{}/", join_key(parts.map(String::as_str)))
    }

    /// Every counter that there is.
    async fn stored_counters(&mut self) -> Result<(), Stop> {
        let prefix = self.prefix();
        let mut after = prefix.clone();
        let mut size = TOGETHER;
        loop {
            let page = match self.engine.counters_within(&prefix, &after, size).await {
                // It is told, and those around it are read one by one.
                Err(StoreError::Damaged { .. }) if size > 1 => {
                    size = 1;
                    continue;
                }
                Err(StoreError::Damaged { key, message }) => {
                    self.damaged(&key, &message).await?;
                    (after, size) = (key, TOGETHER);
                    continue;
                }
                page => page?,
            };
            let Some(last) = page.last() else { return Ok(()) };
            after.clone_from(&last.id.text);
            let (now, retention) = (self.engine.now(), self.engine.settings.retention);
            let told = |counter: &Counter| {
                !passed_over(&counter.id.window, counter.first_end, retention, now)
            };
            let ids: Vec<_> = page.into_iter().filter(told).map(|counter| counter.id).collect();
            self.check(&ids).await?;
            self.tell_progress().await?;
        }
    }

    /// Every counter that there is not, and should be.
    async fn missing_counters(&mut self) -> Result<(), Stop> {
        let namespace = self.query.namespace.clone();
        let filter = ReservationFilter { namespace, ..ReservationFilter::default() };
        let mut place: Option<(Time, ReservationKey)> = None;
        // Told once, however many reservations are charged to it.
        let mut told = lru::LruCache::new(MISSING);
        loop {
            let before = place.as_ref().map(|(time, key)| (*time, key));
            let page = match self.engine.store.reservations_before(&filter, before, PAGE).await {
                // What lies behind it nobody can page on to.
                Err(StoreError::Damaged { key, message }) => {
                    return self.damaged(&key, &message).await;
                }
                page => page?,
            };
            let Some(last) = page.last() else { return Ok(()) };
            place = Some((last.create_time, last.key.clone()));
            let now = self.engine.now();
            let retention = self.engine.settings.retention;
            let mut ids = BTreeSet::new();
            for charge in page.iter().flat_map(|reservation| reservation.charges.iter()) {
                let id = &charge.counter;
                let meant = self.query.limit.as_ref().is_none_or(|limit| *limit == id.limit);
                if meant && !passed_over(&id.window, None, retention, now) {
                    ids.insert((id.text.clone(), ByText(Arc::clone(id))));
                }
            }
            let ids = ids.into_iter().map(|(_, id)| id.0).collect();
            let mut missing = self.absent(ids).await?;
            missing.retain(|id| told.put(id.text.clone(), ()).is_none());
            for ids in missing.chunks(TOGETHER) {
                self.check(ids).await?;
            }
            self.tell_progress().await?;
        }
    }

    /// Those of these counters that do not exist.
    async fn absent(
        &self,
        mut ids: Vec<Arc<CounterId>>,
    ) -> Result<Vec<Arc<CounterId>>, StoreError> {
        loop {
            let keys = Keys { counters: ids.clone(), ..Keys::default() };
            match self.engine.store.load(&keys).await {
                // It exists, and was told.
                Err(StoreError::Damaged { key, .. }) if ids.iter().any(|id| id.text == key) => {
                    ids.retain(|id| id.text != key);
                }
                loaded => {
                    let absent = loaded?.counters.into_iter().filter(|(_, row)| row.is_none());
                    return Ok(absent.map(|(id, _)| id).collect());
                }
            }
        }
    }

    /// Recounts these, and tells or mends what differs.
    async fn check(&mut self, ids: &[Arc<CounterId>]) -> Result<(), Stop> {
        let recounted = match self.engine.recount(ids).await {
            // A reservation that cannot be read: those that it is charged to
            // cannot be recounted, the others can.
            Err(StoreError::Damaged { .. }) if ids.len() > 1 => {
                for id in ids {
                    Box::pin(self.check(std::slice::from_ref(id))).await?;
                }
                return Ok(());
            }
            Err(StoreError::Damaged { message, .. }) => {
                let message = format!("what is charged to it: {message}");
                return self.damaged(&ids[0].text, &message).await;
            }
            recounted => recounted?,
        };
        for recounted in recounted {
            self.counters += 1;
            self.reservations += recounted.recount.reservations();
            let mut differences = recounted.differences();
            if differences.is_empty() {
                continue;
            }
            if let Some((principal, reason)) = self.query.repair.clone() {
                differences = self.engine.mend(&recounted.id, &principal, &reason).await?;
            }
            let counter = self.standing(&recounted);
            for difference in differences {
                let finding = Finding { counter: counter.clone(), difference };
                self.tell(Some(finding)).await?;
            }
        }
        Ok(())
    }

    /// A stored record that cannot be read. Nothing mends it by itself, and a
    /// repair says so too: what it was is for a person to find out.
    async fn damaged(&mut self, key: &str, message: &str) -> Result<(), Stop> {
        tracing::error!(%key, %message, "a record is damaged");
        // Of a counter: namespace, limit, generation, the values of the key, window.
        let parts = split_key(key);
        let limit = parts.get(1).cloned().unwrap_or_default();
        let policy = self.policy.as_deref();
        let known = policy.and_then(|policy| policy.present_limit(&limit));
        let mut names: Vec<String> = known.map_or_else(Vec::new, |known| known.spec.per.clone());
        names.sort();
        let values = parts.iter().skip(3).cloned();
        let whole = parts.len() == names.len() + 4;
        let key_of = names.into_iter().zip(values).filter(|_| whole).collect();
        let namespace = &self.query.namespace;
        let window = Window::Lifetime;
        let mut id = CounterId::new(namespace, &limit, "", 0, key_of, window);
        key.clone_into(&mut id.text);
        let counter = Counter::new(Arc::new(id));
        let difference = Difference { kind: Kind::Damaged, stored: 0, expected: 0 };
        let counter = LimitStatus::at_rest(&counter, Bound::Unlimited, true, self.engine.now());
        self.tell(Some(Finding { counter, difference })).await
    }

    /// The counter as it is stored. What it allows is told by its limit where
    /// that is one number, and otherwise by the largest that was in force when
    /// something was admitted to it.
    fn standing(&self, recounted: &Recounted) -> LimitStatus {
        let Recounted { id, stored, recount, now } = recounted;
        let policy = self.policy.as_deref();
        let limit = policy.and_then(|policy| policy.limit(&id.limit, id.generation));
        let bound = match limit.map(|limit| &limit.spec.max) {
            Some(MaxSpec::Same(bound)) => *bound,
            _ => match recount.ceiling() {
                Some(most) if most < i64::MAX => Bound::AtMost(most),
                _ => Bound::Unlimited,
            },
        };
        let enforced = limit.is_none_or(crate::domain::policy::Limit::enforced);
        let fresh = Counter::new(Arc::clone(id));
        let counter = stored.as_ref().map_or(&fresh, |row| &row.value);
        LimitStatus::at_rest(counter, bound, enforced, *now)
    }

    async fn tell_progress(&mut self) -> Result<(), Stop> {
        if self.steps.is_closed() {
            return Err(Stop::Gone);
        }
        if self.engine.pulse.closing() {
            return Err(Error::Unavailable("the server is shutting down".to_owned()).into());
        }
        if self.query.progress && self.told.elapsed() >= TELL {
            return self.tell(None).await;
        }
        Ok(())
    }

    async fn tell(&mut self, finding: Option<Finding>) -> Result<(), Stop> {
        self.told = Instant::now();
        let (counters, reservations) = (self.counters, self.reservations);
        let step = AuditStep { finding, counters, reservations };
        self.steps.send(Ok(step)).await.map_err(|_| Stop::Gone)
    }
}

/// How many missing counters are remembered.
const MISSING: std::num::NonZeroUsize = std::num::NonZeroUsize::new(10_000).unwrap();

/// Counters in the order of their texts.
#[derive(PartialEq, Eq)]
struct ByText(Arc<CounterId>);

impl PartialOrd for ByText {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByText {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.text.cmp(&other.0.text)
    }
}

impl Engine {
    /// The next counters whose texts begin so, after that one; none at the end.
    /// What cannot be read of others is no concern of theirs.
    pub(super) async fn counters_within(
        &self,
        prefix: &str,
        after: &str,
        most: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        let mut size = most;
        loop {
            match self.store.counters_after(Some(after), size).await {
                Err(StoreError::Damaged { key, .. }) if !key.starts_with(prefix) => {
                    if size == 1 {
                        return Ok(Vec::new());
                    }
                    size /= 2;
                }
                page => {
                    let mut page = page?;
                    page.retain(|counter| counter.id.text.starts_with(prefix));
                    return Ok(page);
                }
            }
        }
    }

    /// These counters and what is charged to them, as of one moment.
    async fn recount(&self, ids: &[Arc<CounterId>]) -> Result<Vec<Recounted>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut found: HashMap<Arc<CounterId>, Recounted> = HashMap::new();
        let mut now = self.now();
        let mut visit = |charged| {
            match charged {
                Charged::Counters(counters) => {
                    let seen = counters.values().flatten().map(|row| row.value.as_of);
                    now = seen.fold(self.now(), Time::max);
                    let recounted = |(id, stored): (Arc<CounterId>, _)| {
                        let recount = Recount::default();
                        (Arc::clone(&id), Recounted { id, stored, recount, now })
                    };
                    found = counters.into_iter().map(recounted).collect();
                }
                Charged::Reservation(reservation) => {
                    for charge in reservation.charges.iter() {
                        if let Some(counted) = found.get_mut(&charge.counter) {
                            counted.recount.add(charge, &reservation, now);
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        };
        self.store.charged(ids, None, &mut visit).await?;
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_by(|a, b| a.id.text.cmp(&b.id.text));
        Ok(found)
    }
}
