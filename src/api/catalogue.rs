//! The catalogue: what each refusal is called, and what it tells a person.

use std::collections::HashMap;
use std::fmt::Write as _;

use tonic::Code::{
    AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable,
};
use tonic::Status;

use super::convert::answer;
use super::status::{Draft, Reason, shorten};
use crate::domain::name::{Violation, quoted};
use crate::domain::policy::Bound;
use crate::domain::refusal::Refusal;
use crate::domain::status::LimitStatus;
use crate::domain::time::{Span, Time};
use crate::engine::Error;

/// When to try again where the store is the trouble.
const STORE_RETRY: Span = Span::from_millis(500);
/// When to try again where there is too much to do.
const OVERLOAD_RETRY: Span = Span::from_millis(200);

/// The status of a call that the engine did not answer.
pub(super) fn failed(error: Error) -> Status {
    let draft = match error {
        Error::Refused(refusal) => return refused(refusal),
        // A fault of ours or of a stored record has no reason in the
        // catalogue: no caller can do anything about it.
        Error::Internal(message) => return Status::internal(shorten(&message)),
        Error::Overloaded => {
            let message = "too many calls are waiting; send the same id again a little later";
            Draft::new(Unavailable, Reason::Overloaded, message).retry(OVERLOAD_RETRY)
        }
        Error::Unavailable(cause) => {
            let message = format!("nothing was changed: {cause}; send the same id again");
            Draft::new(Unavailable, Reason::StoreUnavailable, message).retry(STORE_RETRY)
        }
        Error::OutcomeUnknown => {
            let message = "it is unknown whether the change was made; send the same id again to \
                           learn it, that is always safe";
            Draft::new(Unavailable, Reason::OutcomeUnknown, message).retry(STORE_RETRY)
        }
    };
    draft.build()
}

/// The same for somebody who watches, and has nothing to send again.
pub(super) fn watch_failed(error: Error) -> Status {
    match error {
        Error::Unavailable(cause) => {
            let message = format!("{cause}; call again");
            Draft::new(Unavailable, Reason::StoreUnavailable, message).retry(STORE_RETRY).build()
        }
        Error::Overloaded => {
            let message = "too many are watching; call again a little later";
            Draft::new(Unavailable, Reason::Overloaded, message).retry(OVERLOAD_RETRY).build()
        }
        other => failed(other),
    }
}

/// The same for a move of the test clock, which has no id to send again.
pub(super) fn clock_failed(error: Error) -> Status {
    if error != Error::OutcomeUnknown {
        return failed(error);
    }
    let message = "it is unknown whether the clock was moved; Get tells where it stands";
    Draft::new(Unavailable, Reason::OutcomeUnknown, message).retry(STORE_RETRY).build()
}

/// The status of a refusal.
pub(super) fn refused(refusal: Refusal) -> Status {
    draft(refusal).build()
}

/// What a refusal is called and says, and the values in it.
pub(super) fn told(refusal: Refusal) -> (String, String, HashMap<String, String>) {
    draft(refusal).told()
}

/// The status of a refusal, in words and values.
fn draft(refusal: Refusal) -> Draft {
    match refusal {
        Refusal::QuotaExceeded { limits, retry_time, now } => {
            let what = "quota exceeded";
            quota_exceeded(Reason::QuotaExceeded, what, &limits, retry_time, now)
        }
        Refusal::WaitTimedOut { limits, retry_time, now, waited } => {
            let what = format!("waited {waited} for room in vain");
            quota_exceeded(Reason::WaitTimedOut, &what, &limits, retry_time, now)
                .with("waited", waited)
        }
        Refusal::InvalidFields(violations) => invalid(&violations),
        Refusal::ReservationNotFound { id } => {
            let message = format!("there is no reservation {}", quoted(&id));
            Draft::new(NotFound, Reason::ReservationNotFound, message).with("reservation_id", id)
        }
        Refusal::NamespaceNotFound { namespace } => {
            let message = format!("namespace {} has no policy; apply one", quoted(&namespace));
            Draft::new(NotFound, Reason::NamespaceNotFound, message).with("namespace", namespace)
        }
        Refusal::RevisionNotFound { namespace, revision } => {
            let message =
                format!("the policy of {} has no revision {revision}", quoted(&namespace));
            Draft::new(NotFound, Reason::NamespaceNotFound, message)
                .with("namespace", namespace)
                .with("revision", revision)
        }
        Refusal::LimitNotFound { limit } => {
            let message = format!("the policy has no limit {}", quoted(&limit));
            Draft::new(NotFound, Reason::LimitNotFound, message).with("limit", limit)
        }
        Refusal::MetricNotFound { metric } => {
            let message = format!("the policy has no metric {}", quoted(&metric));
            Draft::new(NotFound, Reason::MetricNotFound, message).with("metric", metric)
        }
        Refusal::SubjectNotFound { kind, id } => {
            let message = format!("there is no subject {}", quoted(&format!("{kind}/{id}")));
            Draft::new(NotFound, Reason::SubjectNotFound, message).with("kind", kind).with("id", id)
        }
        Refusal::ReservationExpired { id, expire_time } => {
            let what = format!("expired at {expire_time}; its units went back then");
            of_reservation(Reason::ReservationExpired, id, &what).with("expire_time", expire_time)
        }
        Refusal::AlreadyCommitted { id } => {
            of_reservation(Reason::AlreadyCommitted, id, "is committed already")
        }
        Refusal::AlreadyReleased { id } => {
            of_reservation(Reason::AlreadyReleased, id, "was released")
        }
        Refusal::AmountExceedsHold { id, item, amount, held } => {
            let what = format!("holds {held} of item {item}; {amount} cannot be committed");
            of_reservation(Reason::AmountExceedsHold, id, &what)
                .with("item", item)
                .with("amount", amount)
                .with("held", held)
        }
        Refusal::NotCommitted { id, state } => {
            let state = answer::state_name(state);
            let what = format!("is {state}; only what was committed can be refunded");
            of_reservation(Reason::NotCommitted, id, &what).with("state", state)
        }
        Refusal::RefundExceedsCommit { id, item, amount, left } => {
            refund_exceeds_commit(id, item, amount, left)
        }
        Refusal::RefundIdReused { id, refund_id } => refund_id_reused(id, refund_id),
        Refusal::NoLimitApplies { item, metric } => {
            let message = format!("no limit of metric {} applies to item {item}", quoted(&metric));
            Draft::new(FailedPrecondition, Reason::NoLimitApplies, message)
                .with("item", item)
                .with("metric", metric)
        }
        Refusal::UnknownPlan { limit, subject, plan } => unknown_plan(limit, subject, plan),
        Refusal::PeriodUnavailable { limit, subject, now, next } => {
            period_unavailable(limit, subject, now, next)
        }
        Refusal::SubjectFrozen { subject } => {
            let message = format!("subject {} is frozen", quoted(&subject));
            Draft::new(FailedPrecondition, Reason::SubjectFrozen, message).with("subject", subject)
        }
        Refusal::RevisionMismatch { expected, actual } => {
            let found = if actual.is_empty() { "none" } else { &actual };
            let message = format!("expected revision or etag {expected}, found {found}");
            Draft::new(FailedPrecondition, Reason::PolicyRevisionMismatch, message)
                .with("expected", expected)
                .with("actual", actual)
        }
        Refusal::ReservationIdReused { id, differs } => reservation_id_reused(id, differs),
        Refusal::ResourceAlreadyBound { resource } => {
            let message = format!("resource {} belongs to another reservation", quoted(&resource));
            Draft::new(AlreadyExists, Reason::ResourceAlreadyBound, message)
                .with("resource", resource)
        }
    }
}

fn of_reservation(reason: Reason, id: String, what: &str) -> Draft {
    let message = format!("reservation {} {what}", quoted(&id));
    Draft::new(FailedPrecondition, reason, message).with("reservation_id", id)
}

fn refund_exceeds_commit(id: String, item: usize, amount: i64, left: i64) -> Draft {
    let what = match amount {
        0 => "has nothing left to refund".to_owned(),
        _ => format!("has {left} of item {item} left to refund; {amount} is more"),
    };
    of_reservation(Reason::RefundExceedsCommit, id, &what)
        .with("item", item)
        .with("amount", amount)
        .with("left", left)
}

fn refund_id_reused(id: String, refund_id: String) -> Draft {
    let message = format!(
        "refund {} of reservation {} was made with other amounts; a new refund needs a new \
         refund_id",
        quoted(&refund_id),
        quoted(&id)
    );
    Draft::new(AlreadyExists, Reason::ReservationIdReused, message)
        .with("reservation_id", id)
        .with("refund_id", refund_id)
        .with("differs", "amounts")
}

fn reservation_id_reused(id: String, differs: &str) -> Draft {
    let message = format!(
        "reservation {} was made with other {differs}; a new request needs a new id",
        quoted(&id)
    );
    Draft::new(AlreadyExists, Reason::ReservationIdReused, message)
        .with("reservation_id", id)
        .with("differs", differs)
}

fn unknown_plan(limit: String, subject: String, plan: String) -> Draft {
    let has =
        if plan.is_empty() { "no plan".to_owned() } else { format!("plan {}", quoted(&plan)) };
    let message = format!(
        "subject {} has {has}, for which limit {} names no max",
        quoted(&subject),
        quoted(&limit)
    );
    Draft::new(FailedPrecondition, Reason::UnknownPlan, message)
        .with("limit", limit)
        .with("subject", subject)
        .with("plan", plan)
}

fn period_unavailable(
    limit: String,
    subject: Option<String>,
    now: Time,
    next: Option<Time>,
) -> Draft {
    let mut message = match &subject {
        Some(subject) => format!(
            "subject {} has no billing period at {now}, which limit {} counts by",
            quoted(subject),
            quoted(&limit)
        ),
        None => format!("limit {} has no window at {now}", quoted(&limit)),
    };
    if let Some(next) = next {
        let _ = write!(message, "; the next one begins at {next}");
    }
    let mut draft = Draft::new(FailedPrecondition, Reason::PeriodUnavailable, message)
        .with("limit", limit)
        .with("time", now);
    if let Some(subject) = subject {
        draft = draft.with("subject", subject);
    }
    if let Some(next) = next {
        draft = draft.with("next_period", next);
    }
    draft
}

fn invalid(violations: &[Violation]) -> Draft {
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let fields: Vec<&str> = violations.iter().map(|v| v.field.as_str()).collect();
    Draft::new(InvalidArgument, Reason::InvalidField, texts.join("; "))
        .with("fields", fields.join(", "))
        .bad_request(violations)
}

fn quota_exceeded(
    reason: Reason,
    what: &str,
    limits: &[LimitStatus],
    retry_time: Option<Time>,
    now: Time,
) -> Draft {
    let describe = |limit: &LimitStatus| describe(limit, now);
    let texts: Vec<String> = limits.iter().map(describe).collect();
    let message = format!("{what}: {}", texts.join("; "));
    let mut draft = Draft::new(ResourceExhausted, reason, message);
    if let Some(first) = limits.first() {
        draft = draft
            .with("limit", &first.counter.limit)
            .with("metric", &first.counter.metric)
            .with("key", key_of(first))
            .with("max", max_of(first))
            .with("used", first.used)
            .with("held", first.held)
            .with("requested", first.requested)
            .with("limits_exceeded", limits.len());
        if first.waiting > 0 {
            draft = draft.with("waiting", first.waiting);
        }
        if let Some(available) = first.available() {
            draft = draft.with("available", available);
        }
        if let Some((start, end)) = first.window {
            draft = draft.with("window_start", start).with("window_end", end);
        }
    }
    if let Some(at) = retry_time {
        draft = draft.with("retry_time", at).retry(at.since(now));
    }
    draft.refusal(limits, describe)
}

/// One failing limit in words.
fn describe(limit: &LimitStatus, now: Time) -> String {
    let mut text = format!("limit {}", quoted(&limit.counter.limit));
    if !limit.counter.key.is_empty() {
        let _ = write!(text, " for {}", quoted(&key_of(limit)));
    }
    let (max, used, held) = (max_of(limit), limit.used, limit.held);
    let _ = write!(text, " has max {max}, used {used}, held {held}; requested {}", limit.requested);
    let _ = match (limit.retry_time, limit.bound) {
        (Some(at), _) => write!(text, ", could pass at {at}"),
        (None, Bound::AtMost(max)) if limit.requested > max => write!(text, ", can never fit"),
        (None, Bound::Unlimited) => write!(text, ", more than can be counted"),
        (None, Bound::AtMost(_)) => match limit.window {
            Some((_, end)) if end > now => {
                write!(text, "; its window ends at {end}, and none that has room is known after it")
            }
            _ => Ok(()),
        },
    };
    match limit.waiting {
        0 => {}
        1 => text.push_str("; 1 other waits for it"),
        waiting => {
            let _ = write!(text, "; {waiting} others wait for it");
        }
    }
    text
}

/// The key as `user=42 item=sword`.
fn key_of(limit: &LimitStatus) -> String {
    let pair = |(name, value): (&String, &String)| format!("{name}={value}");
    limit.counter.key.iter().map(pair).collect::<Vec<_>>().join(" ")
}

fn max_of(limit: &LimitStatus) -> String {
    match limit.bound {
        Bound::AtMost(max) => max.to_string(),
        Bound::Unlimited => "unlimited".to_owned(),
    }
}
