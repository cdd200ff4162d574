//! Commit and Release: a hold is settled at most once.

use std::sync::Arc;

use super::assess::{prepare, refuse_foreign, standing};
use super::{Answer, Commit, Release, Rules, Stop};
use crate::domain::name::{ReservationKey, ResourceKey};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    HistoryEntry, HistoryEvent, MAX_RESOURCES, Reservation, ReservationState, Settled,
};
use crate::domain::state::State;
use crate::domain::time::Time;
use crate::domain::window::Window;

pub(super) fn commit(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Commit,
) -> Result<Answer, Stop> {
    let (reservation, now) = find(state, rules, &command.key)?;
    let id = command.key.id().into_owned();
    match reservation.state(now) {
        ReservationState::Held => {}
        ReservationState::Committed => return replay(state, rules, command, reservation, now),
        ReservationState::Released => return Err(Refusal::AlreadyReleased { id }.into()),
        ReservationState::Expired => {
            let expire_time = reservation.expire_time;
            return Err(Refusal::ReservationExpired { id, expire_time }.into());
        }
    }
    let amounts = amounts_of(&reservation, command)?;
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
    reservation.history.push(HistoryEntry {
        time: now,
        event: HistoryEvent::Committed,
        amounts: amounts.clone(),
        principal: command.principal.clone(),
        reason: String::new(),
    });
    reservation.settled = Settled::Committed { at: now, amounts, resources };
    give_back(state, &reservation, now);
    let holds_lifetime = reservation
        .charges
        .iter()
        .any(|charge| charge.counter.window == Window::Lifetime && reservation.used_by(charge) > 0);
    if holds_lifetime {
        reservation.purge_at = None;
    }
    Ok(finish(state, rules, reservation, now))
}

pub(super) fn release(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Release,
) -> Result<Answer, Stop> {
    let entry = |now, amounts| HistoryEntry {
        time: now,
        event: HistoryEvent::Released,
        amounts,
        principal: command.principal.clone(),
        reason: command.reason.clone(),
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

fn find(
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
fn give_back(state: &mut State<'_>, reservation: &Reservation, now: Time) {
    for charge in reservation.charges.iter() {
        let (held, used) = (reservation.held_by(charge), reservation.used_by(charge));
        let counter = state.counter_mut(&charge.counter);
        counter.settle(held, reservation.expire_time, used, now);
    }
}

fn finish(state: &mut State<'_>, rules: &Rules<'_>, reservation: Reservation, now: Time) -> Answer {
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
