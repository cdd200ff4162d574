//! Why a call is refused: the part of the catalogue that rules decide.

use super::name::Violation;
use super::reservation::ReservationState;
use super::status::LimitStatus;
use super::time::{Span, Time};

/// Why a call was refused. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Enforced limits have no room: all of them, most binding first.
    QuotaExceeded {
        /// The failing limits.
        limits: Vec<LimitStatus>,
        /// The earliest instant at which the same request could pass all its
        /// limits; `None` when waiting alone never helps.
        retry_time: Option<Time>,
        /// The instant of the decision.
        now: Time,
    },
    /// The same, after waiting for room in vain.
    WaitTimedOut {
        /// The failing limits.
        limits: Vec<LimitStatus>,
        /// The earliest instant at which the same request could pass all its
        /// limits; `None` when waiting alone never helps.
        retry_time: Option<Time>,
        /// The instant of the decision.
        now: Time,
        /// How long it waited.
        waited: Span,
    },
    /// Fields are malformed or out of bounds: all of them.
    InvalidFields(Vec<Violation>),
    /// No such reservation here.
    ReservationNotFound {
        /// The reservation id, or the resource it was looked up by.
        id: String,
    },
    /// The namespace has no policy.
    NamespaceNotFound {
        /// The namespace.
        namespace: String,
    },
    /// The namespace has a policy, but not in that revision.
    RevisionNotFound {
        /// The namespace.
        namespace: String,
        /// The revision asked for.
        revision: i64,
    },
    /// The policy names no such limit.
    LimitNotFound {
        /// The limit.
        limit: String,
    },
    /// The policy names no such metric.
    MetricNotFound {
        /// The metric.
        metric: String,
    },
    /// No such subject here.
    SubjectNotFound {
        /// The subject's kind.
        kind: String,
        /// The subject's id.
        id: String,
    },
    /// The hold ran out before.
    ReservationExpired {
        /// The reservation id.
        id: String,
        /// When it ran out.
        expire_time: Time,
    },
    /// The reservation is committed, otherwise than asked.
    AlreadyCommitted {
        /// The reservation id.
        id: String,
    },
    /// The reservation was released.
    AlreadyReleased {
        /// The reservation id.
        id: String,
    },
    /// More was to be committed than is held.
    AmountExceedsHold {
        /// The reservation id.
        id: String,
        /// Which item.
        item: usize,
        /// Units asked for.
        amount: i64,
        /// Units held.
        held: i64,
    },
    /// A refund needs a committed reservation.
    NotCommitted {
        /// The reservation id.
        id: String,
        /// Where it stands.
        state: ReservationState,
    },
    /// Refunds together would exceed what was committed.
    RefundExceedsCommit {
        /// The reservation id.
        id: String,
        /// Which item.
        item: usize,
        /// Units to be refunded.
        amount: i64,
        /// Units committed and not refunded yet.
        left: i64,
    },
    /// The refund id was used with other amounts.
    RefundIdReused {
        /// The reservation id.
        id: String,
        /// The refund id.
        refund_id: String,
    },
    /// No limit governs an item.
    NoLimitApplies {
        /// Which item.
        item: usize,
        /// Its metric.
        metric: String,
    },
    /// A limit has no max for the subject's plan.
    UnknownPlan {
        /// The limit.
        limit: String,
        /// The subject as `kind/id`.
        subject: String,
        /// Its plan; empty when it has none.
        plan: String,
    },
    /// The limit has no window at this instant.
    PeriodUnavailable {
        /// The limit.
        limit: String,
        /// Whose billing period it would be, as `kind/id`; `None` where the
        /// windows are not billing periods.
        subject: Option<String>,
        /// The instant.
        now: Time,
        /// When the next window begins, if one does.
        next: Option<Time>,
    },
    /// The subject is frozen.
    SubjectFrozen {
        /// The subject as `kind/id`.
        subject: String,
    },
    /// Policy or subject is not at the revision or etag that was expected.
    RevisionMismatch {
        /// What was expected.
        expected: String,
        /// What is there.
        actual: String,
    },
    /// The reservation id was used with other content.
    ReservationIdReused {
        /// The reservation id.
        id: String,
        /// Which part of the content differs.
        differs: &'static str,
    },
    /// The resource belongs to another reservation.
    ResourceAlreadyBound {
        /// The resource.
        resource: String,
    },
}

impl Refusal {
    /// The limits that have no room, where that is the reason.
    pub fn limits_mut(&mut self) -> &mut [LimitStatus] {
        match self {
            Self::QuotaExceeded { limits, .. } | Self::WaitTimedOut { limits, .. } => limits,
            _ => &mut [],
        }
    }

    /// One invalid field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidFields(vec![Violation::new(field, message)])
    }
}
