//! What operators ask for, and what they are told.

use super::answer::limit;
use super::request::Faults;
use super::times;
use crate::domain::decide::Adjust;
use crate::domain::name::{Dimensions, MAX_NAME_BYTES, ReservationKey, check_map};
use crate::domain::refusal::Refusal;
use crate::engine::{AuditQuery, AuditStep, Discrepancy, Finding, ReconcileQuery};
use crate::proto::v1;

/// The most resources that one message of a `Reconcile` may name.
pub const MAX_PIECE: usize = 10_000;

/// An `AdjustUsage`.
///
/// # Errors
///
/// Every fault of the request.
pub fn adjust(request: v1::AdjustUsageRequest, principal: &str) -> Result<Adjust, Refusal> {
    let v1::AdjustUsageRequest { namespace, limit, key, delta, adjustment_id, reason } = request;
    let mut faults = Faults::default();
    faults.name("namespace", &namespace);
    faults.name("limit", &limit);
    let counter: Dimensions = key.into_iter().collect();
    check_map("key", &counter, &mut faults.0);
    if delta == 0 {
        faults.add("delta", "must not be 0");
    }
    faults.name("adjustment_id", &adjustment_id);
    faults.name("reason", &reason);
    faults.or(Adjust {
        key: ReservationKey::new(&namespace, &adjustment_id),
        limit,
        counter,
        delta,
        resources: Vec::new(),
        reason,
        principal: principal.to_owned(),
    })
}

/// An `Audit`.
///
/// # Errors
///
/// Every fault of the request.
pub fn audit(request: v1::AuditRequest) -> Result<AuditQuery, Refusal> {
    let v1::AuditRequest { namespace, limit, progress } = request;
    recount(namespace, limit, progress, None)
}

/// A `Repair`.
///
/// # Errors
///
/// Every fault of the request.
pub fn repair(request: v1::RepairRequest, principal: &str) -> Result<AuditQuery, Refusal> {
    let v1::RepairRequest { namespace, limit, reason, progress } = request;
    recount(namespace, limit, progress, Some((principal.to_owned(), reason)))
}

fn recount(
    namespace: String,
    limit: String,
    progress: bool,
    repair: Option<(String, String)>,
) -> Result<AuditQuery, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &namespace);
    if !limit.is_empty() {
        faults.name("limit", &limit);
    }
    if let Some((_, reason)) = &repair {
        faults.reason(reason);
    }
    let limit = (!limit.is_empty()).then_some(limit);
    faults.or(AuditQuery { namespace, limit, repair, progress })
}

/// A step of an audit: what was found, and how far it has come.
pub fn step(step: AuditStep) -> (Option<v1::Finding>, i64, i64) {
    (step.finding.as_ref().map(finding), step.counters, step.reservations)
}

fn finding(finding: &Finding) -> v1::Finding {
    v1::Finding {
        counter: Some(limit(&finding.counter)),
        kind: finding.difference.kind.to_string(),
        stored: finding.difference.stored,
        expected: finding.difference.expected,
    }
}

/// The first message of a `Reconcile`; its resources are left in it.
///
/// # Errors
///
/// Every fault of the request.
pub fn reconcile(
    request: &mut v1::ReconcileRequest,
    principal: &str,
) -> Result<ReconcileQuery, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("limit", &request.limit);
    faults.reason(&request.reason);
    let key: Dimensions = std::mem::take(&mut request.key).into_iter().collect();
    check_map("key", &key, &mut faults.0);
    let as_of = request.as_of.and_then(|at| faults.keep(times::time("as_of", at)));
    faults.or(ReconcileQuery {
        namespace: request.namespace.clone(),
        limit: request.limit.clone(),
        key: (!key.is_empty()).then_some(key),
        refund_leaked: request.refund_leaked,
        book_missing: request.book_missing,
        reason: request.reason.clone(),
        principal: principal.to_owned(),
        as_of,
    })
}

/// The resources of one message of a `Reconcile`.
///
/// # Errors
///
/// There are too many, or one is no proper name.
pub fn piece(resources: Vec<String>) -> Result<Vec<String>, Refusal> {
    let mut faults = Faults::default();
    if resources.len() > MAX_PIECE {
        let message = format!(
            "has {} entries; at most {MAX_PIECE} are allowed in one message",
            resources.len()
        );
        faults.add("resources", message);
    }
    for (n, name) in resources.iter().enumerate().take(MAX_PIECE) {
        if faults.0.len() < MAX_NAME_BYTES {
            faults.name(&format!("resources[{n}]"), name);
        }
    }
    faults.or(resources)
}

/// A resource that is on one side only.
pub fn discrepancy(found: Discrepancy) -> v1::ReconcileResponse {
    let side = if found.leaked { v1::Difference::Leaked } else { v1::Difference::Missing };
    v1::ReconcileResponse {
        resource: found.resource,
        difference: side.into(),
        reservation_id: found.reservation_id,
        mended: found.mended,
    }
}
