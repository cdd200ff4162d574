//! Changes of policies and subjects. Rare, so each is a write of its own,
//! guarded like all others and tried again when another was first.

use tokio::time::Instant;

use super::{Engine, Error};
use crate::domain::event::{Event, EventKind};
use crate::domain::name::{Dimensions, Violation, quoted};
use crate::domain::policy::{Applied, LimitSpec, Policy, PolicyRevision, PolicySpec, check};
use crate::domain::refusal::Refusal;
use crate::domain::state::Keys;
use crate::domain::subject::{Override, OverrideChange, Subject};
use crate::domain::window::{Anchor, Billing, BillingPeriod, Interval, OnLapse};
use crate::store::{Change, ChangeSet, WriteError};

/// How often a change is tried while others are first.
const ATTEMPTS: u32 = 16;

/// What applying a policy did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyApplied {
    /// The revision in force.
    pub revision: i64,
    /// False when the same content was in force already.
    pub changed: bool,
    /// Limits that start fresh counters.
    pub restarted: Vec<String>,
}

/// A subject as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPut {
    /// The subject.
    pub subject: Subject,
    /// Changes with every change of it.
    pub etag: String,
    /// False when the same content was stored already.
    pub changed: bool,
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
        let faults = check::faults(&spec);
        if !faults.is_empty() {
            let below =
                |fault: Violation| Violation::new(format!("policy.{}", fault.field), fault.message);
            return Err(Refusal::InvalidFields(faults.into_iter().map(below).collect()).into());
        }
        for _ in 0..ATTEMPTS {
            let current = self.current_policy(&spec.namespace).await?;
            let at = current.as_ref().map_or(0, |current| current.revision);
            // Whoever sends again what made the present revision of the one
            // that he expected is not told that he expected wrong.
            let again = expected > 0 && expected + 1 == at;
            if again && current.as_ref().is_some_and(|current| current.spec == spec) {
                return Ok(PolicyApplied { revision: at, changed: false, restarted: vec![] });
            }
            let wanted = if expected == -1 { 0 } else { expected };
            if expected != 0 && wanted != at {
                let (expected, actual) = (wanted.to_string(), at.to_string());
                return Err(Refusal::RevisionMismatch { expected, actual }.into());
            }
            let applied =
                PolicyRevision::after(current.as_ref(), spec.clone(), self.now(), principal);
            let (revision, restarted) = match applied {
                Applied::Unchanged => {
                    return Ok(PolicyApplied { revision: at, changed: false, restarted: vec![] });
                }
                Applied::Changed { revision, restarted } => (*revision, restarted),
            };
            let answer = PolicyApplied { revision: revision.revision, changed: true, restarted };
            if validate_only {
                return Ok(answer);
            }
            let changes = ChangeSet {
                events: vec![applied_event(&revision)],
                policies: vec![revision.clone()],
                ..ChangeSet::default()
            };
            let asked = Instant::now();
            if self.write_once(&changes).await? {
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

    async fn current_policy(&self, namespace: &str) -> Result<Option<PolicyRevision>, Error> {
        match self.store.policy_head(namespace).await? {
            None => Ok(None),
            Some(head) => Ok(self.store.policy(namespace, head).await?),
        }
    }

    /// Creates or replaces a subject; its `update_time` is set here. With an
    /// `etag`, only if that is the subject's now.
    ///
    /// # Errors
    ///
    /// [`Error`]: the subject has faults by itself or against the policy, the
    /// namespace has no policy, the etag is not the one that is there.
    pub async fn put_subject(
        &self,
        subject: Subject,
        etag: &str,
        principal: &str,
    ) -> Result<SubjectPut, Error> {
        let key = subject.key();
        let policy = self.catalog.policy(&subject.namespace).await?;
        for _ in 0..ATTEMPTS {
            let begun = Instant::now();
            let keys = Keys { subjects: vec![key.clone()], ..Keys::default() };
            let present = self.store.load(&keys).await?.subjects.remove(&key).flatten();
            let actual = present.as_ref().map_or_else(String::new, |p| p.version.to_string());
            let before = present.as_ref().map(|present| &present.value);
            let again = present.as_ref().is_some_and(|p| etag == (p.version - 1).to_string());
            let free = etag.is_empty() || etag == actual || again;
            if let Some(value) = before
                && free
                && (Subject { update_time: value.update_time, ..subject.clone() }) == *value
            {
                return Ok(SubjectPut { subject: value.clone(), etag: actual, changed: false });
            }
            let mut faults = subject.faults();
            match &policy {
                Some(policy) => faults.extend(against_policy(&subject, before, policy)),
                None if faults.is_empty() => {
                    let namespace = subject.namespace.clone();
                    return Err(Refusal::NamespaceNotFound { namespace }.into());
                }
                None => {}
            }
            if !faults.is_empty() {
                return Err(Refusal::InvalidFields(faults).into());
            }
            if !etag.is_empty() && etag != actual {
                return Err(Refusal::RevisionMismatch { expected: etag.to_owned(), actual }.into());
            }
            let now = self.now();
            let subject = Subject { update_time: now, ..subject.clone() };
            let expected = present.as_ref().map(|present| present.version);
            let first = now.as_millis().saturating_mul(1000);
            let version = expected.map_or(first, |version| version + 1);
            let event = put_event(present.map(|p| p.value).as_ref(), &subject, principal);
            let value = subject.clone();
            let changes = ChangeSet {
                subjects: vec![Change { expected, version, value, purge_at: None, proven: false }],
                events: vec![event],
                ..ChangeSet::default()
            };
            if self.write_once(&changes).await? {
                self.catalog.wrote(subject.clone(), version, begun);
                return Ok(SubjectPut { subject, etag: version.to_string(), changed: true });
            }
        }
        Err(Error::Overloaded)
    }

    /// A subject and its etag.
    ///
    /// # Errors
    ///
    /// [`Error`]: there is none.
    pub async fn subject(
        &self,
        namespace: &str,
        kind: &str,
        id: &str,
    ) -> Result<(Subject, String), Error> {
        let key = crate::domain::name::SubjectKey::new(namespace, kind, id);
        let keys = Keys { subjects: vec![key.clone()], ..Keys::default() };
        let found = self.store.load(&keys).await?.subjects.remove(&key).flatten();
        let (kind, id) = (kind.to_owned(), id.to_owned());
        let found = found.ok_or(Refusal::SubjectNotFound { kind, id })?;
        Ok((found.value, found.version.to_string()))
    }

    /// Writes changes; false when another was first, or perhaps this very
    /// write: reading again tells.
    async fn write_once(&self, changes: &ChangeSet) -> Result<bool, Error> {
        match self.store.write(changes).await {
            Ok(()) => Ok(true),
            Err(WriteError::Conflict | WriteError::Exists) => {
                let pause = std::time::Duration::from_millis(1 + fastrand::u64(0..10));
                tokio::time::sleep(pause).await;
                Ok(false)
            }
            Err(WriteError::Failed(message)) => Err(Error::Unavailable(message)),
            Err(WriteError::Unknown(_)) => Err(Error::OutcomeUnknown),
        }
    }
}

/// What the policy has against a subject. Overrides that it has already may
/// stay, so that a plan can be changed after a limit has gone.
fn against_policy(subject: &Subject, before: Option<&Subject>, policy: &Policy) -> Vec<Violation> {
    let spec = &policy.source.spec;
    let mut faults = Vec::new();
    if !subject.plan.is_empty() && !spec.plans.contains(&subject.plan) {
        let message = format!(
            "{} is not a plan of the policy, whose plans are: {}",
            quoted(&subject.plan),
            spec.plans.join(", ")
        );
        faults.push(Violation::new("subject.plan", message));
    }
    for (n, over) in subject.overrides.iter().enumerate() {
        if before.is_some_and(|before| before.overrides.contains(over)) {
            continue;
        }
        let limit = spec.limits.iter().find(|limit| limit.name == over.limit);
        let name = quoted(&over.limit);
        let message = match limit.map(LimitSpec::subject_dimension) {
            Some(Some(kind)) if kind == subject.kind => continue,
            Some(Some(kind)) => format!("limit {name} goes by the plan of a {kind}"),
            Some(None) => format!(
                "limit {name} has no subject: it does not count per one dimension and names no plan_of"
            ),
            None => format!("{name} is not a limit of the policy"),
        };
        faults.push(Violation::new(format!("subject.overrides[{n}].limit"), message));
    }
    faults
}

fn applied_event(revision: &PolicyRevision) -> Event {
    Event {
        namespace: revision.spec.namespace.clone(),
        time: revision.create_time,
        kind: EventKind::PolicyApplied,
        principal: revision.principal.clone(),
        subject: String::new(),
        details: [("revision".to_owned(), revision.revision.to_string())].into(),
    }
}

fn put_event(before: Option<&Subject>, after: &Subject, principal: &str) -> Event {
    let mut details = Dimensions::new();
    let mut changed = |name: &str, before: Option<String>, after: String| {
        if before.as_ref() != Some(&after) {
            details.insert(format!("{name} before"), before.unwrap_or_default());
            details.insert(format!("{name} after"), after);
        }
    };
    changed("plan", before.map(|b| b.plan.clone()), after.plan.clone());
    changed("billing", before.map(billing), billing(after));
    changed("frozen", before.map(|b| b.frozen.to_string()), after.frozen.to_string());
    changed("overrides", before.map(overrides), overrides(after));
    let labels = |s: &Subject| {
        s.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    };
    changed("labels", before.map(labels), labels(after));
    Event {
        namespace: after.namespace.clone(),
        time: after.update_time,
        kind: EventKind::SubjectPut,
        principal: principal.to_owned(),
        subject: format!("{}/{}", after.kind, after.id),
        details,
    }
}

fn overrides(subject: &Subject) -> String {
    let one = |over: &Override| {
        let change = match over.change {
            OverrideChange::Set(max) => format!("{}={max}", over.limit),
            OverrideChange::Add(more) => format!("{}{more:+}", over.limit),
        };
        over.expire_time.map_or(change.clone(), |end| format!("{change} until {end}"))
    };
    subject.overrides.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Billing in words: `2024-08-15T00:00:00Z to 2024-09-15T00:00:00Z (in_1)`.
fn billing(subject: &Subject) -> String {
    let one = |period: &BillingPeriod| {
        let named = if period.id.is_empty() { String::new() } else { format!(" ({})", period.id) };
        format!("{} to {}{named}", period.start, period.end)
    };
    match &subject.billing {
        None => String::new(),
        Some(Billing::Periods { periods, on_lapse }) => {
            let periods = periods.iter().map(one).collect::<Vec<_>>().join(", ");
            match on_lapse {
                OnLapse::Deny => periods,
                OnLapse::Roll => format!("{periods}, and so on"),
            }
        }
        Some(Billing::Anchor(Anchor { start, interval, time_zone })) => match interval {
            Interval::Months(months) => {
                format!("from {start} every {months} months in {time_zone}")
            }
            Interval::Every(span) => format!("from {start} every {span}"),
        },
    }
}
