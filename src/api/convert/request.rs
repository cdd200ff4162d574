//! Requests into commands. Every fault of a request is found, not only the
//! first; bounds and rules are those that the contract states.

use std::collections::HashMap;
use std::sync::Arc;

use super::times;
use crate::domain::decide::{Commit, Extend, FindBy, IfExpired, Refund, Release, Reserve, merge};
use crate::domain::name::{
    Dimensions, MAX_MAP_ENTRIES, ReservationKey, ResourceKey, Violation, check_map, check_name,
    quoted,
};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    DEFAULT_TTL, ItemRequest, MAX_ITEMS, MAX_RESOURCES, MAX_TTL, MIN_TTL, Request,
};
use crate::domain::time::{Span, Time};
use crate::proto::v1;

/// The longest wait for room.
const MAX_WAIT: Span = Span::from_secs(86_400);

/// Faults found so far.
#[derive(Default)]
pub struct Faults(pub Vec<Violation>);

impl Faults {
    pub fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Violation::new(field, message));
    }

    pub fn keep<T>(&mut self, checked: Result<T, Violation>) -> Option<T> {
        checked.map_err(|fault| self.0.push(fault)).ok()
    }

    pub fn name(&mut self, field: &str, name: &str) {
        check_name(field, name, &mut self.0);
    }

    /// A reason, where one is given.
    pub fn reason(&mut self, reason: &str) {
        if !reason.is_empty() {
            self.name("reason", reason);
        }
    }

    /// The value, if nothing was wrong.
    pub fn or<T>(self, value: T) -> Result<T, Refusal> {
        if self.0.is_empty() { Ok(value) } else { Err(Refusal::InvalidFields(self.0)) }
    }
}

/// A Reserve, and how long it may wait for room.
///
/// # Errors
///
/// Every fault of the request.
pub fn reserve(request: v1::ReserveRequest, principal: &str) -> Result<(Reserve, Span), Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("reservation_id", &request.reservation_id);
    let items = items(request.items, request.dimensions, &mut faults);
    let ttl = ttl(request.ttl, &mut faults);
    let wait = request.wait.map_or(Span::ZERO, |wait| {
        let span = faults.keep(times::span("wait", wait, Span::ZERO, MAX_WAIT));
        // Less than a millisecond is still to wait.
        let least = if wait.nanos > 0 { Span::from_millis(1) } else { Span::ZERO };
        span.unwrap_or(Span::ZERO).max(least)
    });
    resources(&request.resources, &mut faults);
    let labels = request.labels.into_iter().collect();
    check_map("labels", &labels, &mut faults.0);
    let reserve = Reserve {
        key: ReservationKey::new(&request.namespace, &request.reservation_id),
        request: Arc::new(Request {
            items,
            ttl,
            commit: request.commit,
            resources: request.resources,
            labels,
            adjustment: false,
        }),
        principal: principal.to_owned(),
    };
    faults.or((reserve, wait))
}

/// A Commit.
///
/// # Errors
///
/// Every fault of the request.
pub fn commit(request: v1::CommitRequest, principal: &str) -> Result<Commit, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("reservation_id", &request.reservation_id);
    amounts(&request.amounts, "Release gives all back", &mut faults);
    resources(&request.resources, &mut faults);
    let if_expired = match v1::IfExpired::try_from(request.if_expired) {
        Ok(v1::IfExpired::Unspecified | v1::IfExpired::Reject) => IfExpired::Reject,
        Ok(v1::IfExpired::Reclaim) => IfExpired::Reclaim,
        Ok(v1::IfExpired::Overdraw) => IfExpired::Overdraw,
        Err(_) => {
            faults.add("if_expired", "must be REJECT, RECLAIM or OVERDRAW");
            IfExpired::Reject
        }
    };
    faults.or(Commit {
        key: ReservationKey::new(&request.namespace, &request.reservation_id),
        amounts: request.amounts,
        resources: request.resources,
        if_expired,
        principal: principal.to_owned(),
    })
}

/// An Extend.
///
/// # Errors
///
/// Every fault of the request.
pub fn extend(request: v1::ExtendRequest, principal: &str) -> Result<Extend, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("reservation_id", &request.reservation_id);
    let ttl = ttl(request.ttl, &mut faults);
    let key = ReservationKey::new(&request.namespace, &request.reservation_id);
    faults.or(Extend { key, ttl, principal: principal.to_owned() })
}

/// A Refund.
///
/// # Errors
///
/// Every fault of the request.
pub fn refund(request: v1::RefundRequest, principal: &str) -> Result<Refund, Refusal> {
    let v1::RefundRequest { namespace, reservation_id, resource, refund_id, amounts, reason } =
        request;
    let mut faults = Faults::default();
    let find_by = find_by(&namespace, &reservation_id, &resource, &mut faults);
    faults.name("refund_id", &refund_id);
    self::amounts(&amounts, "leave it empty to refund all that is left", &mut faults);
    faults.reason(&reason);
    faults.or(Refund { find_by, refund_id, amounts, reason, principal: principal.to_owned() })
}

/// A Release.
///
/// # Errors
///
/// Every fault of the request.
pub fn release(request: v1::ReleaseRequest, principal: &str) -> Result<Release, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("reservation_id", &request.reservation_id);
    faults.reason(&request.reason);
    faults.or(Release {
        key: ReservationKey::new(&request.namespace, &request.reservation_id),
        reason: request.reason,
        allow_missing: request.allow_missing,
        principal: principal.to_owned(),
    })
}

/// A Check: namespace and items.
///
/// # Errors
///
/// Every fault of the request.
pub fn check(request: v1::CheckRequest) -> Result<(String, Vec<ItemRequest>), Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    let items = items(request.items, request.dimensions, &mut faults);
    faults.or((request.namespace, items))
}

/// A `GetReservation`: namespace and how to look it up.
///
/// # Errors
///
/// Every fault of the request.
pub fn find(request: &v1::GetReservationRequest) -> Result<(String, FindBy), Refusal> {
    let v1::GetReservationRequest { namespace, reservation_id, resource } = request;
    let mut faults = Faults::default();
    let find_by = find_by(namespace, reservation_id, resource, &mut faults);
    faults.or((namespace.clone(), find_by))
}

fn find_by(namespace: &str, reservation_id: &str, resource: &str, faults: &mut Faults) -> FindBy {
    faults.name("namespace", namespace);
    match (reservation_id.is_empty(), resource.is_empty()) {
        (true, false) => {
            faults.name("resource", resource);
            FindBy::Resource(ResourceKey::new(namespace, resource))
        }
        (id_missing, true) => {
            if id_missing {
                faults.add("reservation_id", "must be given, or resource instead");
            } else {
                faults.name("reservation_id", reservation_id);
            }
            FindBy::Id(ReservationKey::new(namespace, reservation_id))
        }
        (false, false) => {
            faults.add("resource", "must be empty where reservation_id is given");
            FindBy::Id(ReservationKey::new(namespace, reservation_id))
        }
    }
}

/// What a `GetUsage` asks for.
pub struct UsageQuery {
    pub namespace: String,
    pub metric: String,
    pub dimensions: Dimensions,
    pub at: Option<Time>,
    pub include_holds: bool,
}

/// A `GetUsage`.
///
/// # Errors
///
/// Every fault of the request.
pub fn usage(request: v1::GetUsageRequest) -> Result<UsageQuery, Refusal> {
    let mut faults = Faults::default();
    faults.name("namespace", &request.namespace);
    faults.name("metric", &request.metric);
    let dimensions = request.dimensions.into_iter().collect();
    check_map("dimensions", &dimensions, &mut faults.0);
    let at = request.at.and_then(|at| faults.keep(times::time("at", at)));
    let include_holds = request.include_holds;
    let (namespace, metric) = (request.namespace, request.metric);
    faults.or(UsageQuery { namespace, metric, dimensions, at, include_holds })
}

/// A `WatchUsage`.
///
/// # Errors
///
/// Every fault of the request.
pub fn watch(request: v1::WatchUsageRequest) -> Result<UsageQuery, Refusal> {
    let v1::WatchUsageRequest { namespace, metric, dimensions } = request;
    usage(v1::GetUsageRequest { namespace, metric, dimensions, ..v1::GetUsageRequest::default() })
}

fn items(
    items: Vec<v1::Item>,
    shared: HashMap<String, String>,
    faults: &mut Faults,
) -> Vec<ItemRequest> {
    let shared: Dimensions = shared.into_iter().collect();
    check_map("dimensions", &shared, &mut faults.0);
    if items.is_empty() || items.len() > MAX_ITEMS {
        faults.add("items", format!("has {} entries; 1 to {MAX_ITEMS} are allowed", items.len()));
    }
    let mut checked = Vec::with_capacity(items.len().min(MAX_ITEMS));
    for (n, item) in items.into_iter().take(MAX_ITEMS).enumerate() {
        faults.name(&format!("items[{n}].metric"), &item.metric);
        let amount = item.amount.unwrap_or(1);
        if amount < 1 {
            faults.add(&format!("items[{n}].amount"), format!("is {amount}; must be 1 to 2^63-1"));
        }
        let field = format!("items[{n}].dimensions");
        let own: Dimensions = item.dimensions.into_iter().collect();
        check_map(&field, &own, &mut faults.0);
        let merged = merge(&shared, &own).unwrap_or_else(|name| {
            let message = format!("{} has another value in the call's dimensions", quoted(&name));
            faults.add(&field, message);
            Dimensions::new()
        });
        if merged.len() > MAX_MAP_ENTRIES && own.len() <= MAX_MAP_ENTRIES {
            let message = format!(
                "has {} entries with those of the call; at most {MAX_MAP_ENTRIES} are allowed",
                merged.len()
            );
            faults.add(&field, message);
        }
        checked.push(ItemRequest { metric: item.metric, amount, dimensions: merged });
    }
    checked
}

/// How long a hold is to last; some span in place of one that is out of bounds.
fn ttl(ttl: Option<prost_types::Duration>, faults: &mut Faults) -> Span {
    let checked = ttl.and_then(|ttl| faults.keep(times::span("ttl", ttl, MIN_TTL, MAX_TTL)));
    checked.unwrap_or(DEFAULT_TTL)
}

fn amounts(amounts: &[i64], instead: &str, faults: &mut Faults) {
    if amounts.len() > MAX_ITEMS {
        faults.add(
            "amounts",
            format!("has {} entries; at most {MAX_ITEMS} are allowed", amounts.len()),
        );
    }
    for (n, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount < 0) {
        faults.add(&format!("amounts[{n}]"), format!("is {amount}; must not be negative"));
    }
    // A zero leaves one item of several out, which a partly created order
    // needs; nothing but zeros would be a Release by another name.
    if !amounts.is_empty() && amounts.iter().all(|amount| *amount == 0) {
        faults.add("amounts", format!("are all 0; at least one must be above 0 ({instead})"));
    }
}

fn resources(resources: &[String], faults: &mut Faults) {
    if resources.len() > MAX_RESOURCES {
        let message =
            format!("has {} entries; at most {MAX_RESOURCES} are allowed", resources.len());
        faults.add("resources", message);
    }
    for (n, resource) in resources.iter().take(MAX_RESOURCES).enumerate() {
        let field = format!("resources[{n}]");
        faults.name(&field, resource);
        if resources[..n].contains(resource) {
            faults.add(&field, format!("{} stands here twice", quoted(resource)));
        }
    }
}
