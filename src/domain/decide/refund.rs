//! Refund: what was used is given back to the window it was booked in.

use std::sync::Arc;

use super::assess::{prepare, standing};
use super::settle::{finish, kept_until, may_set_free, set_free};
use super::{Answer, FindBy, Refund, Rules, Stop};
use crate::domain::name::{ReservationKey, ResourceKey};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    HistoryEntry, HistoryEvent, MAX_REFUNDS, Reservation, Settled, sum,
};
use crate::domain::state::State;

pub(super) fn refund(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Refund,
) -> Result<Answer, Stop> {
    let (key, trace) = locate(state, command)?;
    let id = key.id().into_owned();
    let Some(reservation) = state.reservation(&key)?.cloned() else {
        return Err(Refusal::ReservationNotFound { id }.into());
    };
    let now = prepare(state, rules, &reservation)?;
    let Settled::Committed { at, resources, .. } = &reservation.settled else {
        return Err(Refusal::NotCommitted { id, state: reservation.state(now) }.into());
    };
    if let Some(same) = made_before(&reservation, command) {
        if !same {
            let refund_id = command.refund_id.clone();
            return Err(Refusal::RefundIdReused { id, refund_id }.into());
        }
        let limits = standing(state, rules, &reservation, now);
        return Ok(Answer { reservation, limits, replayed: true, now });
    }
    let amounts = amounts_of(&reservation, command, &id)?;
    if reservation.refunds().count() >= MAX_REFUNDS {
        let message = format!("the reservation has {MAX_REFUNDS} refunds, and no more are allowed");
        return Err(Refusal::invalid("refund_id", message).into());
    }

    let frees = reservation.left().iter().zip(&amounts).all(|(left, amount)| left == amount);
    if frees {
        may_set_free(state, &reservation, resources)?;
    }

    // ---- The line: everything is checked, nothing can fail any more. ----

    let mut unfreed = Vec::new();
    for (n, charge) in reservation.charges.iter().enumerate() {
        let units = sum(charge, &amounts);
        let units = state.counter_mut(&charge.counter).refund(units, *at, now);
        unfreed.extend((units > 0).then_some((n, units)));
    }
    let mut changed = Reservation::clone(&reservation);
    changed.history.push(HistoryEntry {
        reason: command.reason.clone(),
        refund_id: command.refund_id.clone(),
        unfreed,
        ..HistoryEntry::new(HistoryEvent::Refunded, now, amounts, &command.principal)
    });
    if frees {
        set_free(state, &changed, resources);
        // Until then it is kept as long as its resources are.
        changed.purge_at = kept_until(&changed, now, rules.retention);
    }
    if let Some(trace) = trace {
        state.bind(trace, key);
    }
    Ok(finish(state, rules, changed, now))
}

/// The reservation that is meant and, where it was asked for by resource, under
/// which name the refund leaves whose it was.
fn locate(
    state: &mut State<'_>,
    command: &Refund,
) -> Result<(ReservationKey, Option<ResourceKey>), Stop> {
    let resource = match &command.find_by {
        FindBy::Id(key) => return Ok((key.clone(), None)),
        FindBy::Resource(resource) => resource,
    };
    let name = resource.resource();
    let trace = ResourceKey::of_refund(&resource.namespace(), &name, &command.refund_id);
    // Both are asked for before one of them is found to be missing.
    let before = state.resource(&trace).map(Option::<&_>::cloned);
    let owner = state.resource(resource).map(Option::<&_>::cloned);
    match (before?, owner?) {
        // What this very refund was made of, whoever has the resource now.
        (Some(of), _) => Ok((of, None)),
        (None, Some(owner)) => Ok((owner, Some(trace))),
        (None, None) => Err(Refusal::ReservationNotFound { id: name.into_owned() }.into()),
    }
}

/// Whether the refund of that id is there and, if so, the same. One that asked
/// for all that was left is the same as one that left nothing.
fn made_before(reservation: &Reservation, command: &Refund) -> Option<bool> {
    let mut left = reservation.committed().unwrap_or_default().to_vec();
    for step in reservation.refunds() {
        for (left, amount) in left.iter_mut().zip(&step.amounts) {
            *left = left.saturating_sub(*amount);
        }
        if step.refund_id == command.refund_id {
            let all = command.amounts.is_empty() && left.iter().all(|left| *left <= 0);
            return Some(all || step.amounts == command.amounts);
        }
    }
    None
}

/// The units to give back, item by item.
fn amounts_of(
    reservation: &Arc<Reservation>,
    command: &Refund,
    id: &str,
) -> Result<Vec<i64>, Refusal> {
    let left: Vec<i64> = reservation.left().into_iter().map(|left| left.max(0)).collect();
    let asked = if command.amounts.is_empty() { &left } else { &command.amounts };
    if asked.len() != left.len() {
        let message = format!(
            "has {} entries, but the reservation has {} items; leave it empty to refund all",
            asked.len(),
            left.len()
        );
        return Err(Refusal::invalid("amounts", message));
    }
    let nothing = asked.iter().all(|amount| *amount == 0);
    let beyond = |(amount, left): (&i64, &i64)| nothing || amount > left;
    match asked.iter().zip(&left).position(beyond) {
        None => Ok(asked.clone()),
        Some(item) => {
            let (amount, left) = (asked[item], left[item]);
            Err(Refusal::RefundExceedsCommit { id: id.to_owned(), item, amount, left })
        }
    }
}
