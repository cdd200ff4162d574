//! Commit and Release: a hold is settled at most once.

use std::sync::Arc;

use super::assess::{prepare, refuse_foreign, standing};
use super::{Answer, Commit, IfExpired, Release, Rules, Stop};
use crate::domain::name::{ReservationKey, ResourceKey};
use crate::domain::policy::Bound;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    HistoryEntry, HistoryEvent, MAX_RESOURCES, OVERDRAWN, RECLAIMED, Reservation, ReservationState,
    Settled, sum,
};
use crate::domain::state::{Missing, State};
use crate::domain::status::{LimitStatus, most_binding_first};
use crate::domain::time::{Span, Time};
use crate::domain::window::Window;

pub(super) fn commit(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Commit,
) -> Result<Answer, Stop> {
    let (reservation, now) = find(state, rules, &command.key)?;
    let id = command.key.id().into_owned();
    let late = match reservation.state(now) {
        ReservationState::Held => None,
        ReservationState::Committed => return replay(state, rules, command, reservation, now),
        ReservationState::Released => return Err(Refusal::AlreadyReleased { id }.into()),
        ReservationState::Expired if command.if_expired == IfExpired::Reject => {
            let expire_time = reservation.expire_time;
            return Err(Refusal::ReservationExpired { id, expire_time }.into());
        }
        ReservationState::Expired => Some(command.if_expired),
    };
    let amounts = amounts_of(&reservation, command)?;
    if let Some(if_expired) = late {
        refuse_late(state, rules, &reservation, &amounts, if_expired, now)?;
    }
    let resources = resources_of(&reservation, command);
    if resources.len() > MAX_RESOURCES {
        let message = format!(
            "with those named when reserving there are {}; at most {MAX_RESOURCES} are allowed",
            resources.len()
        );
        return Err(Refusal::invalid("resources", message).into());
    }
    let binding = |name: &String| ResourceKey::new(&command.key.namespace(), name);
    let bindings: Vec<_> = resources.iter().map(binding).collect();
    refuse_foreign(state, &bindings, Some(&command.key))?;

    // ---- The line: everything is checked, nothing can fail any more. ----

    let mut reservation = Reservation::clone(&reservation);
    for binding in bindings {
        state.bind(binding, command.key.clone());
    }
    let entry =
        HistoryEntry::new(HistoryEvent::Committed, now, amounts.clone(), &command.principal);
    let reason = match late {
        None | Some(IfExpired::Reject) => "",
        Some(IfExpired::Reclaim) => RECLAIMED,
        Some(IfExpired::Overdraw) => OVERDRAWN,
    };
    reservation.history.push(HistoryEntry { reason: reason.to_owned(), ..entry });
    reservation.settled = Settled::Committed { at: now, amounts, resources };
    give_back(state, &reservation, now);
    reservation.purge_at = kept_until(&reservation, now, rules.retention);
    Ok(finish(state, rules, reservation, now))
}

/// Refuses a commit that comes after its hold has run out, where what it would
/// take again is not there: by what the limits allow now, on the counters that
/// it was charged to then.
fn refuse_late(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    reservation: &Reservation,
    amounts: &[i64],
    if_expired: IfExpired,
    now: Time,
) -> Result<(), Stop> {
    let at_rest = standing(state, rules, reservation, now);
    let mut failing = Vec::new();
    for (charge, status) in reservation.charges.iter().zip(at_rest) {
        let counter = state.counter(&charge.counter);
        let requested = sum(charge, amounts);
        let enforced = status.enforced && if_expired == IfExpired::Reclaim;
        let bound = if enforced { status.bound } else { Bound::Unlimited };
        if requested > 0 && !counter.fits(bound, requested, now) {
            let retry_time = counter.first_fit(bound, requested, now);
            failing.push(LimitStatus { requested, exceeded: true, retry_time, ..status });
        }
    }
    if failing.is_empty() {
        return Ok(());
    }
    most_binding_first(&mut failing);
    // Absent where one of them never has room by itself.
    let all: Option<Vec<Time>> = failing.iter().map(|limit| limit.retry_time).collect();
    let retry_time = all.and_then(|times| times.into_iter().max());
    Err(Refusal::QuotaExceeded { limits: failing, retry_time, now }.into())
}

pub(super) fn release(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Release,
) -> Result<Answer, Stop> {
    let entry = |now, amounts| HistoryEntry {
        reason: command.reason.clone(),
        ..HistoryEntry::new(HistoryEvent::Released, now, amounts, &command.principal)
    };
    if command.allow_missing && state.reservation(&command.key)?.is_none() {
        if rules.policy.is_none() {
            let namespace = command.key.namespace().into_owned();
            return Err(Refusal::NamespaceNotFound { namespace }.into());
        }
        let now = rules.clock;
        let reservation = never_reserved(rules, command, entry(now, Vec::new()));
        return Ok(finish(state, rules, reservation, now));
    }
    let (reservation, now) = find(state, rules, &command.key)?;
    let id = command.key.id().into_owned();
    match reservation.state(now) {
        ReservationState::Held => {}
        ReservationState::Released => {
            let limits = standing(state, rules, &reservation, now);
            return Ok(Answer { reservation, limits, replayed: true, now });
        }
        ReservationState::Committed => return Err(Refusal::AlreadyCommitted { id }.into()),
        ReservationState::Expired => {
            let expire_time = reservation.expire_time;
            return Err(Refusal::ReservationExpired { id, expire_time }.into());
        }
    }

    // ---- The line: everything is checked, nothing can fail any more. ----

    let mut reservation = Reservation::clone(&reservation);
    reservation.history.push(entry(now, reservation.reserved()));
    reservation.settled = Settled::Released { at: now };
    give_back(state, &reservation, now);
    Ok(finish(state, rules, reservation, now))
}

pub(super) fn find(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    key: &ReservationKey,
) -> Result<(Arc<Reservation>, Time), Stop> {
    let Some(reservation) = state.reservation(key)?.cloned() else {
        return Err(Refusal::ReservationNotFound { id: key.id().into_owned() }.into());
    };
    let now = prepare(state, rules, &reservation)?;
    Ok((reservation, now))
}

/// Settles the hold on every counter: what `reservation` now says is committed
/// becomes use, the rest is free.
pub(super) fn give_back(state: &mut State<'_>, reservation: &Reservation, now: Time) {
    for charge in reservation.charges.iter() {
        let (held, used) = (reservation.held_by(charge), reservation.used_by(charge));
        let counter = state.counter_mut(&charge.counter);
        counter.settle(held, reservation.expire_time, used, now);
    }
}

/// Finds out whether the resources of a reservation may be set free.
pub(super) fn may_set_free(
    state: &mut State<'_>,
    reservation: &Reservation,
    resources: &[String],
) -> Result<(), Missing> {
    resources.iter().try_for_each(|name| {
        let resource = ResourceKey::new(&reservation.key.namespace(), name);
        state.resource_to_free(&resource, &reservation.key)
    })
}

/// Sets the resources of a reservation free, which nothing is used of any more.
pub(super) fn set_free(state: &mut State<'_>, reservation: &Reservation, resources: &[String]) {
    for name in resources {
        let resource = ResourceKey::new(&reservation.key.namespace(), name);
        state.unbind(resource, &reservation.key);
    }
}

/// When retention may remove a reservation that has changed at `now`: never
/// sooner than was said before; not at all while it is used of a counter for
/// ever, since it is the holder there. Raised to the end of a day, since the
/// instant is indexed and a lock that is renewed would move it each time.
pub(super) fn kept_until(reservation: &Reservation, now: Time, retention: Span) -> Option<Time> {
    let mut charges = reservation.charges.iter();
    if charges.any(|c| c.counter.window == Window::Lifetime && reservation.used_by(c) != 0) {
        return None;
    }
    let held = reservation.state(now) == ReservationState::Held;
    let from = if held { reservation.expire_time } else { now };
    let counts = reservation.charges.iter().filter_map(|c| c.counter.window.counts_until(from));
    let last = counts.fold(from, Time::max);
    match reservation.purge_at {
        Some(known) if last.plus(retention) <= known => Some(known),
        _ => Some(last.round_up(Span::from_days(1)).plus(retention)),
    }
}

pub(super) fn finish(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    reservation: Reservation,
    now: Time,
) -> Answer {
    let reservation = Arc::new(reservation);
    let limits = standing(state, rules, &reservation, now);
    state.put_reservation(Arc::clone(&reservation));
    Answer { reservation, limits, replayed: false, now }
}

/// The units to commit, item by item.
fn amounts_of(reservation: &Reservation, command: &Commit) -> Result<Vec<i64>, Refusal> {
    let reserved = reservation.reserved();
    if command.amounts.is_empty() {
        return Ok(reserved);
    }
    if command.amounts.len() != reserved.len() {
        let message = format!(
            "has {} entries, but the reservation has {} items; leave it empty to commit all",
            command.amounts.len(),
            reserved.len()
        );
        return Err(Refusal::invalid("amounts", message));
    }
    for (item, (&amount, &held)) in command.amounts.iter().zip(&reserved).enumerate() {
        if amount > held {
            return Err(Refusal::AmountExceedsHold {
                id: command.key.id().into_owned(),
                item,
                amount,
                held,
            });
        }
    }
    Ok(command.amounts.clone())
}

/// The resources to bind: those named when reserving, then those named now.
fn resources_of(reservation: &Reservation, command: &Commit) -> Vec<String> {
    let planned = reservation.request.as_ref().map_or(&[][..], |request| &request.resources);
    let mut resources = planned.to_vec();
    resources.extend(command.resources.iter().filter(|name| !planned.contains(name)).cloned());
    resources
}

/// The same commit again is answered as before, any other is refused.
fn replay(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Commit,
    reservation: Arc<Reservation>,
    now: Time,
) -> Result<Answer, Stop> {
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let amounts = match command.amounts.as_slice() {
        [] => reservation.reserved(),
        amounts => amounts.to_vec(),
    };
    let asked = sorted(resources_of(&reservation, command));
    let same = matches!(&reservation.settled, Settled::Committed { amounts: done, resources, .. }
        if *done == amounts && sorted(resources.clone()) == asked);
    if !same {
        return Err(Refusal::AlreadyCommitted { id: command.key.id().into_owned() }.into());
    }
    let limits = standing(state, rules, &reservation, now);
    Ok(Answer { reservation, limits, replayed: true, now })
}

/// The record that a Release leaves where no Reserve came yet.
fn never_reserved(rules: &Rules<'_>, command: &Release, entry: HistoryEntry) -> Reservation {
    let now = rules.clock;
    Reservation {
        key: command.key.clone(),
        request: None,
        charges: Arc::default(),
        create_time: now,
        expire_time: now,
        settled: Settled::Released { at: now },
        history: vec![entry],
        policy_revision: 0,
        principal: command.principal.clone(),
        purge_at: Some(now.plus(rules.retention)),
    }
}
