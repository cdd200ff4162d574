//! Reserve: all limits are charged, or none.

use std::sync::Arc;

use super::assess::{Purpose, assess, prepare, refuse_foreign, standing};
use super::outlook::all_pass;
use super::{Answer, Reserve, Rules, Stop};
use crate::domain::counter::expire_time;
use crate::domain::name::ResourceKey;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    Charge, HistoryEntry, HistoryEvent, Reservation, ReservationState, Settled,
};
use crate::domain::state::State;
use crate::domain::status::{LimitStatus, most_binding_first};
use crate::domain::time::Time;
use crate::domain::window::Window;

pub(super) fn reserve(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Reserve,
) -> Result<Answer, Stop> {
    // The id decides before any limit or policy does.
    if let Some(existing) = state.reservation_to_make(&command.key)?.cloned() {
        return replay(state, rules, command, existing);
    }
    let request = &command.request;
    let policy = rules.policy.ok_or_else(|| Refusal::NamespaceNotFound {
        namespace: command.key.namespace().into_owned(),
    })?;
    let assessed = assess(state, policy, &request.items, rules.clock, Purpose::Take)?;
    let (claims, now) = (assessed.claims, assessed.now);
    let mut failing = Vec::new();
    for claim in &claims {
        let (status, refuses) = claim.verdict(state, rules, now)?;
        if refuses {
            failing.push(status);
        }
    }
    if !failing.is_empty() {
        most_binding_first(&mut failing);
        // Of an enforced limit alone: one that is observed refuses what could
        // not be counted, which is none of its bound's business.
        let known = failing.iter().all(|limit| limit.retry_time.is_some() || !limit.enforced);
        let retry_time = if known { all_pass(&claims, state, now)? } else { None };
        return Err(Refusal::QuotaExceeded { limits: failing, retry_time, now }.into());
    }
    let bound_now = if request.commit { request.resources.as_slice() } else { &[] };
    refuse_bound(state, command, bound_now)?;

    // ---- The line: everything is checked, nothing can fail any more. ----

    let until = (!request.commit).then(|| expire_time(now, request.ttl));
    let mut charges = Vec::with_capacity(claims.len());
    for claim in claims {
        let (counter, items) = (claim.counter, claim.items);
        let token = state.counter_mut(&counter).charge(&counter, claim.amount, until, now);
        charges.push(Charge {
            counter,
            items,
            token,
            bound: claim.bound,
            enforced: claim.enforced,
            taken: Vec::new(),
        });
    }
    let reservation = Arc::new(make(rules, command, charges, until, now));
    for resource in bound_now {
        let key = ResourceKey::new(policy.namespace(), resource);
        state.bind(key, command.key.clone());
    }
    state.put_reservation(Arc::clone(&reservation));
    let limits = asked(state, rules, &reservation, now);
    Ok(Answer { reservation, limits, replayed: false, now })
}

/// The same id again: the first answer while that still stands, and otherwise
/// the reason why it does not, so that nobody works on a hold he has lost.
fn replay(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Reserve,
    existing: Arc<Reservation>,
) -> Result<Answer, Stop> {
    let id = command.key.id().into_owned();
    if let Some(request) = &existing.request
        && let Some(differs) = request.difference(&command.request)
    {
        return Err(Refusal::ReservationIdReused { id, differs }.into());
    }
    let now = prepare(state, rules, &existing)?;
    match existing.state(now) {
        ReservationState::Held | ReservationState::Committed => {
            let limits = asked(state, rules, &existing, now);
            Ok(Answer { reservation: existing, limits, replayed: true, now })
        }
        ReservationState::Expired => {
            let expire_time = existing.expire_time;
            Err(Refusal::ReservationExpired { id, expire_time }.into())
        }
        ReservationState::Released => Err(Refusal::AlreadyReleased { id }.into()),
    }
}

/// Where the limits stand, and what the Reserve asked of each.
fn asked(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    reservation: &Reservation,
    now: Time,
) -> Vec<LimitStatus> {
    let mut limits = standing(state, rules, reservation, now);
    for (limit, charge) in limits.iter_mut().zip(reservation.charges.iter()) {
        limit.requested = reservation.held_by(charge);
        // That it was admitted all the same is what an observed limit reports.
        limit.exceeded = !limit.enforced && limit.is_over();
    }
    limits
}

fn refuse_bound(
    state: &mut State<'_>,
    command: &Reserve,
    resources: &[String],
) -> Result<(), Stop> {
    if resources.is_empty() {
        return Ok(());
    }
    let namespace = command.key.namespace();
    let keys: Vec<_> = resources.iter().map(|name| ResourceKey::new(&namespace, name)).collect();
    refuse_foreign(state, &keys, None)
}

fn make(
    rules: &Rules<'_>,
    command: &Reserve,
    charges: Vec<Charge>,
    until: Option<Time>,
    now: Time,
) -> Reservation {
    let amounts: Vec<i64> = command.request.items.iter().map(|item| item.amount).collect();
    let entry = |event| HistoryEntry::new(event, now, amounts.clone(), &command.principal);
    let mut history = vec![entry(HistoryEvent::Reserved)];
    let mut settled = Settled::Open;
    if command.request.commit {
        history.push(entry(HistoryEvent::Committed));
        let resources = command.request.resources.clone();
        settled = Settled::Committed { at: now, amounts, resources };
    }
    // Kept until it counts in no window any more; one that is used of a
    // lifetime counter holds its place there for ever.
    let settled_by = until.unwrap_or(now);
    let counts = charges.iter().filter_map(|c| c.counter.window.counts_until(settled_by));
    let last = counts.fold(settled_by, Time::max);
    let holder = command.request.commit
        && charges.iter().any(|charge| charge.counter.window == Window::Lifetime);
    Reservation {
        key: command.key.clone(),
        request: Some(Arc::clone(&command.request)),
        charges: charges.into(),
        create_time: now,
        expire_time: until.unwrap_or(now),
        settled,
        history,
        policy_revision: rules.policy.map_or(0, |policy| policy.source.revision),
        principal: command.principal.clone(),
        purge_at: (!holder).then(|| last.plus(rules.retention)),
    }
}
