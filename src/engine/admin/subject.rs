//! Subjects: put, read, deleted.

use super::ATTEMPTS;
use crate::domain::event::{Event, EventKind};
use crate::domain::name::{Dimensions, SubjectKey, Violation, quoted};
use crate::domain::policy::{LimitSpec, Policy};
use crate::domain::refusal::Refusal;
use crate::domain::state::Keys;
use crate::domain::subject::{Override, OverrideChange, Subject};
use crate::domain::time::{Span, Time};
use crate::engine::{Engine, Error};
use crate::store::{Change, ChangeSet, Extent, Removal, SubjectFilter, Versioned};

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
        let _alone = self.doors.pass(key.as_str()).await;
        self.store.tick().await?;
        let policy = self.catalog.policy(&subject.namespace).await?;
        for attempt in 0..ATTEMPTS {
            let begun = self.catalog.moment();
            let present = self.stored_subject(&key).await?;
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
            let version = expected.map_or_else(|| first_version(now), |version| version + 1);
            let before = present.map(|present| present.value);
            let (kind, after) = (EventKind::SubjectPut, Some(&subject));
            let kept = self.settings.retention;
            let event = event(kind, before.as_ref(), after, principal, now, kept);
            let value = subject.clone();
            let changes = ChangeSet {
                subjects: vec![Change {
                    expected,
                    version,
                    value,
                    purge_at: None,
                    proven: false,
                    extent: Extent::Whole,
                }],
                events: vec![event],
                ..ChangeSet::default()
            };
            if self.write_once(&changes, attempt).await? {
                self.catalog.wrote(key, version, Some(subject.clone()), begun);
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
        let found = self.stored_subject(&SubjectKey::new(namespace, kind, id)).await?;
        let (kind, id) = (kind.to_owned(), id.to_owned());
        let found = found.ok_or(Refusal::SubjectNotFound { kind, id })?;
        Ok((found.value, found.version.to_string()))
    }

    /// The subjects of a namespace by key, after the one with that key: those of
    /// that kind and on that plan, where they are given. Subjects that name no
    /// plan are on the policy's default plan. Each comes with its etag.
    ///
    /// # Errors
    ///
    /// [`Error`]: the namespace has no policy.
    pub async fn subjects(
        &self,
        namespace: &str,
        kind: Option<&str>,
        plan: Option<&str>,
        after: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<(Subject, String)>, Error> {
        let policy = self.catalog.policy(namespace).await?;
        let policy =
            policy.ok_or_else(|| Refusal::NamespaceNotFound { namespace: namespace.to_owned() })?;
        let plans = plan.map(|plan| {
            let default = policy.source.spec.default_plan.as_deref() == Some(plan);
            let none = default.then(String::new);
            std::iter::once(plan.to_owned()).chain(none).collect()
        });
        let (namespace, kind) = (namespace.to_owned(), kind.map(str::to_owned));
        let filter = SubjectFilter { namespace, kind, plans };
        let found = self.store.subjects_after(&filter, after, limit).await?;
        Ok(found.into_iter().map(|row| (row.value, row.version.to_string())).collect())
    }

    /// Deletes a subject: from then on it is one that was never seen. With an
    /// `etag`, only if that is the subject's now.
    ///
    /// # Errors
    ///
    /// [`Error`]: there is none, or the etag is not the one that is there.
    pub async fn delete_subject(
        &self,
        namespace: &str,
        kind: &str,
        id: &str,
        etag: &str,
        principal: &str,
    ) -> Result<(), Error> {
        let key = SubjectKey::new(namespace, kind, id);
        let _alone = self.doors.pass(key.as_str()).await;
        self.store.tick().await?;
        for attempt in 0..ATTEMPTS {
            let begun = self.catalog.moment();
            let Some(Versioned { version, value }) = self.stored_subject(&key).await? else {
                let (kind, id) = (kind.to_owned(), id.to_owned());
                return Err(Refusal::SubjectNotFound { kind, id }.into());
            };
            let actual = version.to_string();
            if !etag.is_empty() && etag != actual {
                return Err(Refusal::RevisionMismatch { expected: etag.to_owned(), actual }.into());
            }
            let deleted = EventKind::SubjectDeleted;
            let kept = self.settings.retention;
            let event = event(deleted, Some(&value), None, principal, self.now(), kept);
            let changes = ChangeSet {
                removed_subjects: vec![Removal { key: key.clone(), expected: version }],
                events: vec![event],
                ..ChangeSet::default()
            };
            if self.write_once(&changes, attempt).await? {
                self.catalog.wrote(key, version, None, begun);
                return Ok(());
            }
        }
        Err(Error::Overloaded)
    }

    async fn stored_subject(&self, key: &SubjectKey) -> Result<Option<Versioned<Subject>>, Error> {
        let keys = Keys { subjects: vec![key.clone()], ..Keys::default() };
        Ok(self.store.load(&keys).await?.subjects.remove(key).flatten())
    }
}

/// What the policy has against a subject. The plan and the overrides that it has
/// already may stay, so that it can be frozen after its plan has gone, and its
/// plan be changed after a limit has.
fn against_policy(subject: &Subject, before: Option<&Subject>, policy: &Policy) -> Vec<Violation> {
    let spec = &policy.source.spec;
    let mut faults = Vec::new();
    let stays = before.is_some_and(|before| before.plan == subject.plan);
    if !subject.plan.is_empty() && !stays && !spec.plans.contains(&subject.plan) {
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

/// The version of a subject that is made. One that was deleted may be made again
/// within the same millisecond, or under a clock that stands still: chance keeps
/// its etags from being those that it had before, which somebody may still hold.
fn first_version(now: Time) -> i64 {
    now.as_millis().saturating_mul(1 << 15).saturating_add(fastrand::i64(0..1 << 15))
}

fn event(
    kind: EventKind,
    before: Option<&Subject>,
    after: Option<&Subject>,
    principal: &str,
    now: Time,
    retention: Span,
) -> Event {
    let mut details = Dimensions::new();
    let mut changed = |name: &str, of: fn(&Subject) -> String| {
        let (before, after) = (before.map(of), after.map(of));
        if before != after {
            details.insert(format!("{name} before"), before.unwrap_or_default());
            details.insert(format!("{name} after"), after.unwrap_or_default());
        }
    };
    changed("plan", |subject| subject.plan.clone());
    changed("billing", |s| s.billing.as_ref().map_or_else(String::new, ToString::to_string));
    changed("frozen", |subject| subject.frozen.to_string());
    changed("overrides", overrides);
    changed("labels", |subject| {
        subject.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    });
    let concerned = after.or(before);
    let namespace = concerned.map_or("", |subject| &subject.namespace);
    Event {
        subject: concerned.map_or_else(String::new, |s| format!("{}/{}", s.kind, s.id)),
        details,
        purge_at: Some(now.plus(retention)),
        ..Event::new(namespace, kind, principal, now)
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
