//! Policies and subjects as they are in force.
//!
//! A copy that was not confirmed for a second is read again before it is used,
//! so a change made on any server is in force on all within that time. Copies
//! in use are confirmed in the background, to keep the reading off the path of
//! a call.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use lru::LruCache;
use tracing::{debug, error};

use crate::domain::name::SubjectKey;
use crate::domain::policy::{Policy, PolicyRevision};
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::store::{SharedStore, StoreError};

/// How long a copy may be used without being confirmed.
const FRESH: Duration = Duration::from_secs(1);
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
    policies: Mutex<LruCache<String, Copy<Arc<Policy>>>>,
    subjects: Mutex<LruCache<SubjectKey, Copy<Option<Arc<Subject>>>>>,
}

/// Something that was read, and when.
struct Copy<T> {
    value: T,
    confirmed: Instant,
    used: Instant,
}

impl<T> Copy<T> {
    fn new(value: T, confirmed: Instant) -> Self {
        Self { value, confirmed, used: confirmed }
    }

    fn fresh(&mut self) -> bool {
        self.used = Instant::now();
        self.used.duration_since(self.confirmed) < FRESH
    }
}

impl Catalog {
    pub fn new(store: SharedStore) -> Self {
        let (policies, subjects) = (LruCache::new(POLICIES), LruCache::new(SUBJECTS));
        Self { store, policies: Mutex::new(policies), subjects: Mutex::new(subjects) }
    }

    /// The policy in force; `None` when the namespace has none.
    pub async fn policy(&self, namespace: &str) -> Result<Option<Arc<Policy>>, StoreError> {
        if let Some(copy) = lock(&self.policies).get_mut(namespace)
            && copy.fresh()
        {
            return Ok(Some(Arc::clone(&copy.value)));
        }
        self.confirm(namespace).await
    }

    /// Reads whether the policy has a newer revision, and takes it up.
    async fn confirm(&self, namespace: &str) -> Result<Option<Arc<Policy>>, StoreError> {
        let asked = Instant::now();
        let Some(head) = self.store.policy_head(namespace).await? else { return Ok(None) };
        if let Some(copy) = lock(&self.policies).peek_mut(namespace)
            && copy.value.source.revision >= head
        {
            copy.confirmed = copy.confirmed.max(asked);
            return Ok(Some(Arc::clone(&copy.value)));
        }
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
        asked: Instant,
    ) -> Result<Arc<Policy>, StoreError> {
        let namespace = revision.spec.namespace.clone();
        let key = format!("{namespace}/{}", revision.revision);
        let policy = Policy::new(revision).map_err(|faults| {
            let message: Vec<String> = faults.iter().map(ToString::to_string).collect();
            StoreError::Damaged { key, message: message.join("; ") }
        })?;
        let policy = Arc::new(policy);
        let mut policies = lock(&self.policies);
        match policies.peek(&namespace) {
            // Somebody has taken up a newer one meanwhile.
            Some(copy) if copy.value.source.revision > policy.source.revision => {
                Ok(Arc::clone(&copy.value))
            }
            _ => {
                policies.put(namespace, Copy::new(Arc::clone(&policy), asked));
                Ok(policy)
            }
        }
    }

    /// The subject, where a fresh copy of it is here.
    pub fn subject(&self, key: &SubjectKey) -> Option<Option<Arc<Subject>>> {
        let mut subjects = lock(&self.subjects);
        let copy = subjects.get_mut(key)?;
        copy.fresh().then(|| copy.value.clone())
    }

    /// Subjects were read: asked for then, and this is what they are.
    pub fn read(&self, subjects: &HashMap<SubjectKey, Option<Arc<Subject>>>, asked: Instant) {
        let mut copies = lock(&self.subjects);
        for (key, subject) in subjects {
            // A write of this process may have been faster than this read.
            if copies.peek(key).is_none_or(|copy| copy.confirmed <= asked) {
                copies.put(key.clone(), Copy::new(subject.clone(), asked));
            }
        }
    }

    /// A subject was written just now.
    pub fn wrote(&self, subject: Subject) {
        let key = subject.key();
        let copy = Copy::new(Some(Arc::new(subject)), Instant::now());
        lock(&self.subjects).put(key, copy);
    }

    /// Confirms copies in use, for ever.
    pub async fn refresh_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(REFRESH).await;
            if let Err(error) = self.refresh().await {
                match error {
                    StoreError::Unavailable(_) => debug!(%error, "copies could not be confirmed"),
                    StoreError::Damaged { .. } => error!(%error, "a policy or subject is damaged"),
                }
            }
        }
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let in_use = |used: Instant| used.elapsed() < IN_USE;
        let namespaces: Vec<String> = {
            let policies = lock(&self.policies);
            let used = policies.iter().take_while(|(_, copy)| in_use(copy.used));
            used.map(|(namespace, _)| namespace.clone()).collect()
        };
        for namespace in namespaces {
            self.confirm(&namespace).await?;
        }
        let subjects: Vec<SubjectKey> = {
            let subjects = lock(&self.subjects);
            let used = subjects.iter().take_while(|(_, copy)| in_use(copy.used));
            used.take(REFRESHED_SUBJECTS).map(|(key, _)| key.clone()).collect()
        };
        if subjects.is_empty() {
            return Ok(());
        }
        let asked = Instant::now();
        let loaded = self.store.load(&Keys { subjects, ..Keys::default() }).await?;
        let mut copies = lock(&self.subjects);
        for (key, subject) in loaded.subjects {
            if let Some(copy) = copies.peek_mut(&key)
                && copy.confirmed <= asked
            {
                copy.value = subject.map(|subject| Arc::new(subject.value));
                copy.confirmed = asked;
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
