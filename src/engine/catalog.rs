//! Policies and subjects as they are in force.
//!
//! A copy that was not confirmed for a second is read again before it is used,
//! so a change made on any server is in force on all within that time. It is a
//! second of this process or of the store's clock, whichever is over sooner: on
//! a test clock a second has passed when the test says so. Copies in use are
//! confirmed in the background, to keep the reading off the path of a call, and
//! at once where the store tells that somebody has changed them.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lru::LruCache;
use tokio::time::Instant;
use tracing::{debug, error};

use super::pulse::Pulse;
use crate::domain::name::SubjectKey;
use crate::domain::policy::{Policy, PolicyRevision};
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::{Span, Time};
use crate::store::{Changed, SharedStore, StoreError, Versioned};

/// How long a copy may be used without being confirmed.
const FRESH: Duration = Duration::from_secs(1);
const FRESH_BY_STORE: Span = Span::from_secs(1);
/// How often copies in use are confirmed.
const REFRESH: Duration = Duration::from_millis(400);
/// A copy that was not used for this long is no longer confirmed.
const IN_USE: Duration = Duration::from_secs(5);
/// The most subjects that are confirmed in one go.
const REFRESHED_SUBJECTS: usize = 1000;
const POLICIES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
const SUBJECTS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Copies of policies and subjects.
pub(super) struct Catalog {
    store: SharedStore,
    pulse: Arc<Pulse>,
    policies: Mutex<LruCache<String, Copy<Option<Arc<Policy>>>>>,
    subjects: Mutex<LruCache<SubjectKey, Copy<SubjectRow>>>,
}

/// A subject and its version; `None` where it was never put.
type SubjectRow = Option<Versioned<Arc<Subject>>>;

/// When something was, by both clocks; the process's decides what was later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    process: Instant,
    store: Time,
}

/// Something that was read, and when.
struct Copy<T> {
    value: T,
    confirmed: Moment,
    /// When the answer was here: whatever is asked for later is newer.
    obtained: Instant,
    used: Instant,
}

impl<T> Copy<T> {
    fn new(value: T, confirmed: Moment) -> Self {
        Self { value, confirmed, obtained: Instant::now(), used: confirmed.process }
    }

    fn fresh(&mut self, now: Moment) -> bool {
        self.used = now.process;
        now.process.duration_since(self.confirmed.process) < FRESH
            && now.store.since(self.confirmed.store) < FRESH_BY_STORE
    }
}

impl Catalog {
    /// Tells `pulse` of what has changed.
    pub fn new(store: SharedStore, pulse: Arc<Pulse>) -> Self {
        let (policies, subjects) = (LruCache::new(POLICIES), LruCache::new(SUBJECTS));
        Self { store, pulse, policies: Mutex::new(policies), subjects: Mutex::new(subjects) }
    }

    /// Now.
    pub fn moment(&self) -> Moment {
        Moment { process: Instant::now(), store: self.store.now() }
    }

    /// The policy in force; `None` when the namespace has none.
    pub async fn policy(&self, namespace: &str) -> Result<Option<Arc<Policy>>, StoreError> {
        if let Some(copy) = lock(&self.policies).get_mut(namespace)
            && copy.fresh(self.moment())
        {
            return Ok(copy.value.clone());
        }
        self.confirm(namespace).await
    }

    /// Reads whether the policy has a newer revision, and takes it up.
    async fn confirm(&self, namespace: &str) -> Result<Option<Arc<Policy>>, StoreError> {
        let asked = self.moment();
        let head = self.store.policy_head(namespace).await?;
        {
            let mut policies = lock(&self.policies);
            let copy = policies.peek_mut(namespace);
            if let Some(copy) = copy
                && copy.value.as_ref().map(|policy| policy.source.revision) >= head
            {
                copy.confirmed = copy.confirmed.max(asked);
                return Ok(copy.value.clone());
            }
            if head.is_none() {
                policies.put(namespace.to_owned(), Copy::new(None, asked));
            }
        }
        let Some(head) = head else { return Ok(None) };
        let Some(revision) = self.store.policy(namespace, head).await? else {
            let key = format!("{namespace}/{head}");
            return Err(StoreError::Damaged { key, message: "it has vanished".to_owned() });
        };
        self.take_up(revision, asked).map(Some)
    }

    /// Puts a revision in force here.
    pub fn take_up(
        &self,
        revision: PolicyRevision,
        asked: Moment,
    ) -> Result<Arc<Policy>, StoreError> {
        let namespace = revision.spec.namespace.clone();
        let key = format!("{namespace}/{}", revision.revision);
        let policy = Policy::new(revision).map_err(|faults| {
            let message: Vec<String> = faults.iter().map(ToString::to_string).collect();
            StoreError::Damaged { key, message: message.join("; ") }
        })?;
        let policy = Arc::new(policy);
        let mut policies = lock(&self.policies);
        let present = policies.peek(&namespace).and_then(|copy| copy.value.as_ref());
        if let Some(newer) = present.filter(|p| p.source.revision > policy.source.revision) {
            return Ok(Arc::clone(newer));
        }
        policies.put(namespace.clone(), Copy::new(Some(Arc::clone(&policy)), asked));
        drop(policies);
        self.pulse.rules_changed(&namespace);
        Ok(policy)
    }

    /// The subject, where a fresh copy of it is here.
    pub fn subject(&self, key: &SubjectKey) -> Option<Option<Arc<Subject>>> {
        let mut subjects = lock(&self.subjects);
        let copy = subjects.get_mut(key)?;
        copy.fresh(self.moment()).then(|| in_force(copy))
    }

    /// Subjects were read, asked for at that instant. Gives those in force.
    ///
    /// What was asked for after the known copy was here is newer, whatever its
    /// version: a subject that was deleted and put again may have a lower one.
    /// Of two that overlap the higher version is newer; where one of them is
    /// none, nobody can tell, and what is known stays until the next reading.
    pub fn read(
        &self,
        subjects: HashMap<SubjectKey, Option<Versioned<Subject>>>,
        asked: Moment,
    ) -> HashMap<SubjectKey, Option<Arc<Subject>>> {
        let mut copies = lock(&self.subjects);
        let mut changed = HashSet::new();
        let mut take = |(key, row): (SubjectKey, Option<Versioned<Subject>>)| {
            let row = row.map(|row| Versioned { version: row.version, value: Arc::new(row.value) });
            let Some(copy) = copies.peek_mut(&key) else {
                let copy = Copy::new(row, asked);
                let value = in_force(&copy);
                copies.put(key.clone(), copy);
                return (key, value);
            };
            let older = match (&row, &copy.value) {
                _ if asked.process > copy.obtained => false,
                (Some(read), Some(known)) => read.version < known.version,
                (None, None) => false,
                _ => true,
            };
            if !older {
                if row.as_ref().map(|row| row.version) != copy.value.as_ref().map(|c| c.version) {
                    changed.insert(key.namespace().into_owned());
                }
                copy.value = row;
                copy.confirmed = copy.confirmed.max(asked);
                copy.obtained = Instant::now();
            }
            (key, in_force(copy))
        };
        let in_force = subjects.into_iter().map(&mut take).collect();
        drop(copies);
        for namespace in changed {
            self.pulse.rules_changed(&namespace);
        }
        in_force
    }

    /// A subject was written, in this version, no earlier than `begun`; `None`
    /// where it was deleted, which had this version. In force at once, unless
    /// what others wrote afterwards was read meanwhile.
    pub fn wrote(&self, key: SubjectKey, version: i64, subject: Option<Subject>, begun: Moment) {
        let mut copies = lock(&self.subjects);
        if let Some(copy) = copies.peek(&key)
            && begun.process <= copy.obtained
            && copy.value.as_ref().is_some_and(|known| known.version > version)
        {
            return;
        }
        let row = subject.map(|subject| Versioned { version, value: Arc::new(subject) });
        let namespace = key.namespace().into_owned();
        copies.put(key, Copy::new(row, begun));
        drop(copies);
        self.pulse.rules_changed(&namespace);
    }

    /// Confirms copies in use, for ever.
    pub async fn refresh_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(REFRESH).await;
            log(self.refresh().await);
        }
    }

    /// Confirms copies of what was changed, for ever. What is told and not seen
    /// here would be found a little later by [`refresh`](Self::refresh).
    pub async fn follow_changes(self: Arc<Self>) {
        let mut changes = self.store.changes().ready_chunks(REFRESHED_SUBJECTS);
        while let Some(changed) = changes.next().await {
            log(self.look_again(changed).await);
        }
    }

    async fn look_again(&self, changed: Vec<Changed>) -> Result<(), StoreError> {
        let changed: HashSet<Changed> = changed.into_iter().collect();
        let (mut namespaces, mut subjects) = (Vec::new(), Vec::new());
        for changed in changed {
            match changed {
                Changed::Policy(namespace) => namespaces.push(namespace),
                Changed::Subject(key) => subjects.push(key),
            }
        }
        // Nobody here has asked for the others yet.
        namespaces.retain(|namespace| lock(&self.policies).contains(namespace));
        subjects.retain(|key| lock(&self.subjects).contains(key));
        self.look_up(&namespaces, subjects).await
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let in_use = |used: Instant| used.elapsed() < IN_USE;
        let namespaces: Vec<String> = {
            let policies = lock(&self.policies);
            let used = policies.iter().take_while(|(_, copy)| in_use(copy.used));
            used.map(|(namespace, _)| namespace.clone()).collect()
        };
        let subjects: Vec<SubjectKey> = {
            let subjects = lock(&self.subjects);
            let used = subjects.iter().take_while(|(_, copy)| in_use(copy.used));
            used.take(REFRESHED_SUBJECTS).map(|(key, _)| key.clone()).collect()
        };
        self.look_up(&namespaces, subjects).await
    }

    /// Confirms these copies by what the store says now.
    async fn look_up(
        &self,
        namespaces: &[String],
        subjects: Vec<SubjectKey>,
    ) -> Result<(), StoreError> {
        // One that fails must not keep the others from being confirmed.
        let confirmed = namespaces.iter().map(|namespace| self.confirm(namespace));
        let confirmed = join_all(confirmed).await;
        if !subjects.is_empty() {
            let asked = self.moment();
            let loaded = self.store.load(&Keys { subjects, ..Keys::default() }).await?;
            self.read(loaded.subjects, asked);
        }
        confirmed.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}

fn log(confirmed: Result<(), StoreError>) {
    match confirmed {
        Ok(()) => {}
        Err(error @ StoreError::Unavailable(_)) => debug!(%error, "copies could not be confirmed"),
        Err(error @ StoreError::Damaged { .. }) => error!(%error, "a policy or subject is damaged"),
    }
}

fn in_force(copy: &Copy<SubjectRow>) -> Option<Arc<Subject>> {
    copy.value.as_ref().map(|row| Arc::clone(&row.value))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
