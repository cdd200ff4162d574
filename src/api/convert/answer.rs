//! Answers into messages.

use super::times::timestamp;
use crate::domain::name::Dimensions;
use crate::domain::policy::Bound;
use crate::domain::reservation::{
    Charge, HistoryEntry, HistoryEvent, Reservation, ReservationState, Settled, sum,
};
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;
use crate::engine::OverLimit;
use crate::proto::v1;

/// A reservation as it stands at `now`.
pub fn reservation(reservation: &Reservation, now: Time) -> v1::Reservation {
    let state = reservation.state(now);
    let (settle_time, resources) = match &reservation.settled {
        Settled::Open => (None, Vec::new()),
        Settled::Released { at } => (Some(*at), Vec::new()),
        Settled::Committed { at, resources, .. } => (Some(*at), resources.clone()),
    };
    let planned = || reservation.request.as_ref().map(|request| request.resources.clone());
    let held = state == ReservationState::Held;
    let committed_at_once = reservation.request.as_ref().is_none_or(|request| request.commit);
    v1::Reservation {
        namespace: reservation.key.namespace().into_owned(),
        reservation_id: reservation.key.id().into_owned(),
        state: state_word(state).into(),
        items: items(reservation),
        charges: reservation.charges.iter().map(|c| charge(reservation, c, state)).collect(),
        create_time: Some(timestamp(reservation.create_time)),
        expire_time: (!committed_at_once).then(|| timestamp(reservation.expire_time)),
        settle_time: settle_time.map(timestamp),
        resources: if held { planned().unwrap_or_default() } else { resources },
        history: reservation.history_at(now).iter().map(entry).collect(),
        labels: reservation.request.iter().flat_map(|r| r.labels.clone()).collect(),
        policy_revision: reservation.policy_revision,
        principal: reservation.principal.clone(),
        adjustment: reservation.request.as_ref().is_some_and(|request| request.adjustment),
    }
}

/// Where limits stand.
pub fn limits(limits: &[LimitStatus]) -> Vec<v1::LimitStatus> {
    limits.iter().map(limit).collect()
}

/// Where one limit stands.
pub fn limit(status: &LimitStatus) -> v1::LimitStatus {
    let counter = &status.counter;
    v1::LimitStatus {
        limit: counter.limit.clone(),
        metric: counter.metric.clone(),
        key: map(&counter.key),
        window: status.window.map(window),
        bound: Some(match status.bound {
            Bound::AtMost(max) => v1::limit_status::Bound::Max(max),
            Bound::Unlimited => v1::limit_status::Bound::Unlimited(true),
        }),
        used: status.used,
        held: status.held,
        available: status.available(),
        requested: status.requested,
        exceeded: status.exceeded,
        enforced: status.enforced,
        retry_time: status.retry_time.map(timestamp),
        waiting: i32::try_from(status.waiting).unwrap_or(i32::MAX),
    }
}

/// What a policy leaves above its limits.
pub fn over_limit(over: &OverLimit) -> v1::OverLimit {
    let OverLimit { count, limits: listed, incomplete } = over;
    v1::OverLimit { count: *count, limits: limits(listed), incomplete: *incomplete }
}

fn items(reservation: &Reservation) -> Vec<v1::ReservationItem> {
    let committed = reservation.committed().unwrap_or_default();
    let refunded = reservation.refunded();
    let item = |(n, item): (usize, &crate::domain::reservation::ItemRequest)| v1::ReservationItem {
        metric: item.metric.clone(),
        dimensions: map(&item.dimensions),
        reserved_amount: item.amount,
        committed_amount: committed.get(n).copied().unwrap_or(0),
        refunded_amount: refunded.get(n).copied().unwrap_or(0),
    };
    reservation.items().iter().enumerate().map(item).collect()
}

fn charge(reservation: &Reservation, charge: &Charge, state: ReservationState) -> v1::Charge {
    v1::Charge {
        limit: charge.counter.limit.clone(),
        key: map(&charge.counter.key),
        // A rolling window moves on: what was taken from it has none of its own.
        window: charge.counter.window.start().zip(charge.counter.window.end()).map(window),
        amount: match state {
            ReservationState::Held => sum(charge, &reservation.reserved()),
            ReservationState::Committed => reservation.used_by(charge),
            ReservationState::Released | ReservationState::Expired => 0,
        },
        fencing_token: charge.token,
    }
}

fn entry(entry: &HistoryEntry) -> v1::HistoryEntry {
    v1::HistoryEntry {
        time: Some(timestamp(entry.time)),
        event: step_name(entry.event).to_owned(),
        amounts: entry.amounts.clone(),
        principal: entry.principal.clone(),
        reason: entry.reason.clone(),
        refund_id: entry.refund_id.clone(),
        times: entry.times,
    }
}

/// What a step of a reservation is called.
pub fn step_name(event: HistoryEvent) -> &'static str {
    match event {
        HistoryEvent::Reserved => "reserved",
        HistoryEvent::Committed => "committed",
        HistoryEvent::Released => "released",
        HistoryEvent::Extended => "extended",
        HistoryEvent::Refunded => "refunded",
        HistoryEvent::Adjusted => "adjusted",
        HistoryEvent::Expired => "expired",
    }
}

/// What a reservation that stands there is called.
pub fn state_name(state: ReservationState) -> &'static str {
    match state {
        ReservationState::Held => "held",
        ReservationState::Committed => "committed",
        ReservationState::Released => "released",
        ReservationState::Expired => "expired",
    }
}

fn state_word(state: ReservationState) -> v1::ReservationState {
    match state {
        ReservationState::Held => v1::ReservationState::Held,
        ReservationState::Committed => v1::ReservationState::Committed,
        ReservationState::Released => v1::ReservationState::Released,
        ReservationState::Expired => v1::ReservationState::Expired,
    }
}

/// The message of a window.
pub fn window((start, end): (Time, Time)) -> v1::Window {
    v1::Window { start_time: Some(timestamp(start)), end_time: Some(timestamp(end)) }
}

/// The message of a map.
pub fn map(map: &Dimensions) -> std::collections::HashMap<String, String> {
    map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}
