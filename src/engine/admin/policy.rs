//! Policies: applied, read.

use super::ATTEMPTS;
use crate::domain::event::{Event, EventKind};
use crate::domain::name::Violation;
use crate::domain::policy::{Applied, PolicyRevision, PolicySpec, RevisionHead, check};
use crate::domain::refusal::Refusal;
use crate::domain::time::Span;
use crate::engine::{Engine, Error};
use crate::store::ChangeSet;

/// What applying a policy did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyApplied {
    /// The revision in force.
    pub revision: i64,
    /// False when the same content was in force already.
    pub changed: bool,
    /// Limits that start fresh counters.
    pub restarted: Vec<String>,
    /// What it replaced, or would replace, by what; `None` where nothing was
    /// there or nothing changed.
    pub change: Option<Box<PolicyChange>>,
}

/// A change of a namespace's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// What was in force.
    pub before: PolicyRevision,
    /// What replaces it.
    pub after: PolicyRevision,
}

impl PolicyApplied {
    fn unchanged(revision: i64) -> Self {
        Self { revision, changed: false, restarted: vec![], change: None }
    }
}

impl Engine {
    /// Replaces a namespace's policy. `expected`: apply only if the policy is
    /// at this revision, -1 only if there is none, 0 in any case.
    ///
    /// # Errors
    ///
    /// [`Error`]: the policy has faults, or is not at the expected revision.
    pub async fn apply_policy(
        &self,
        spec: PolicySpec,
        expected: i64,
        validate_only: bool,
        principal: &str,
    ) -> Result<PolicyApplied, Error> {
        self.apply(spec, expected, validate_only, principal, false).await
    }

    /// The same for what a policy file of this server says.
    ///
    /// # Errors
    ///
    /// [`Error`], as for [`Engine::apply_policy`].
    pub async fn apply_policy_of_file(
        &self,
        spec: PolicySpec,
        expected: i64,
        principal: &str,
    ) -> Result<PolicyApplied, Error> {
        self.apply(spec, expected, false, principal, true).await
    }

    async fn apply(
        &self,
        spec: PolicySpec,
        expected: i64,
        validate_only: bool,
        principal: &str,
        from_file: bool,
    ) -> Result<PolicyApplied, Error> {
        let faults = check::faults(&spec);
        if !faults.is_empty() {
            let below =
                |fault: Violation| Violation::new(format!("policy.{}", fault.field), fault.message);
            return Err(Refusal::InvalidFields(faults.into_iter().map(below).collect()).into());
        }
        let _alone = self.doors.pass(&spec.namespace).await;
        self.store.tick().await?;
        for attempt in 0..ATTEMPTS {
            let current = self.current_policy(&spec.namespace).await?;
            let at = current.as_ref().map_or(0, |current| current.revision);
            // Whoever sends again what made the present revision of the one
            // that he expected is not told that he expected wrong.
            let wanted = if expected == -1 { 0 } else { expected };
            let again = expected != 0 && wanted + 1 == at;
            if again && current.as_ref().is_some_and(|current| current.spec == spec) {
                return Ok(PolicyApplied::unchanged(at));
            }
            if expected != 0 && wanted != at {
                let expected = if wanted == 0 { "none".to_owned() } else { wanted.to_string() };
                let actual = if at == 0 { String::new() } else { at.to_string() };
                return Err(Refusal::RevisionMismatch { expected, actual }.into());
            }
            let applied =
                PolicyRevision::after(current.as_ref(), spec.clone(), self.now(), principal);
            let (revision, restarted) = match applied {
                Applied::Unchanged => {
                    return Ok(PolicyApplied::unchanged(at));
                }
                Applied::Changed { revision, restarted } => {
                    (PolicyRevision { from_file, ..*revision }, restarted)
                }
            };
            let change = current.map(|before| PolicyChange { before, after: revision.clone() });
            let answer = PolicyApplied {
                revision: revision.revision,
                changed: true,
                restarted,
                change: change.map(Box::new),
            };
            if validate_only {
                return Ok(answer);
            }
            let changes = ChangeSet {
                events: vec![applied_event(&revision, self.settings.retention)],
                policies: vec![revision.clone()],
                ..ChangeSet::default()
            };
            let asked = self.catalog.moment();
            if self.write_once(&changes, attempt).await? {
                self.catalog.take_up(revision, asked)?;
                return Ok(answer);
            }
        }
        Err(Error::Overloaded)
    }

    /// A policy of a namespace; `revision` 0 means the current one.
    ///
    /// # Errors
    ///
    /// [`Error`]: the namespace has no policy, or not in that revision.
    pub async fn policy(&self, namespace: &str, revision: i64) -> Result<PolicyRevision, Error> {
        let current = self.current_policy(namespace).await?;
        let current = current
            .ok_or_else(|| Refusal::NamespaceNotFound { namespace: namespace.to_owned() })?;
        if revision == 0 || revision == current.revision {
            return Ok(current);
        }
        let namespace = namespace.to_owned();
        let found = self.store.policy(&namespace, revision).await?;
        Ok(found.ok_or(Refusal::RevisionNotFound { namespace, revision })?)
    }

    /// The revisions of a namespace's policy, newest first, older than `before`
    /// where that is given.
    ///
    /// # Errors
    ///
    /// [`Error`]: the namespace has no policy.
    pub async fn policy_revisions(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, Error> {
        let found = self.store.revisions_before(namespace, before, limit).await?;
        if found.is_empty() && before.is_none() {
            return Err(Refusal::NamespaceNotFound { namespace: namespace.to_owned() }.into());
        }
        Ok(found)
    }

    async fn current_policy(&self, namespace: &str) -> Result<Option<PolicyRevision>, Error> {
        match self.store.policy_head(namespace).await? {
            None => Ok(None),
            Some(head) => Ok(self.store.policy(namespace, head).await?),
        }
    }
}

fn applied_event(revision: &PolicyRevision, retention: Span) -> Event {
    let PolicyRevision { create_time, principal, spec, .. } = revision;
    Event {
        details: [("revision".to_owned(), revision.revision.to_string())].into(),
        purge_at: Some(create_time.plus(retention)),
        ..Event::new(&spec.namespace, EventKind::PolicyApplied, principal, *create_time)
    }
}
