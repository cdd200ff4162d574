//! Extend: a lease is renewed while it is one.

use super::assess::standing;
use super::settle::{find, finish, kept_until};
use super::{Answer, Extend, Rules, Stop};
use crate::domain::counter::expire_time;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{HistoryEntry, HistoryEvent, Reservation, ReservationState};
use crate::domain::state::State;

pub(super) fn extend(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Extend,
) -> Result<Answer, Stop> {
    let (reservation, now) = find(state, rules, &command.key)?;
    let id = command.key.id().into_owned();
    match reservation.state(now) {
        ReservationState::Held => {}
        ReservationState::Committed => return Err(Refusal::AlreadyCommitted { id }.into()),
        ReservationState::Released => return Err(Refusal::AlreadyReleased { id }.into()),
        ReservationState::Expired => {
            let expire_time = reservation.expire_time;
            return Err(Refusal::ReservationExpired { id, expire_time }.into());
        }
    }
    let (from, to) = (reservation.expire_time, expire_time(now, command.ttl));
    if to <= from {
        let limits = standing(state, rules, &reservation, now);
        return Ok(Answer { reservation, limits, replayed: true, now });
    }

    // ---- The line: everything is checked, nothing can fail any more. ----

    let mut reservation = Reservation::clone(&reservation);
    reservation.expire_time = to;
    let event = HistoryEvent::Extended;
    let entry = HistoryEntry::new(event, now, reservation.reserved(), &command.principal);
    match reservation.history.last_mut() {
        Some(last) if last.event == event && last.principal == entry.principal => {
            *last = HistoryEntry { times: last.times.saturating_add(1), ..entry };
        }
        _ => reservation.history.push(entry),
    }
    for charge in reservation.charges.iter() {
        let held = reservation.held_by(charge);
        state.counter_mut(&charge.counter).extend(held, from, to, now);
    }
    reservation.purge_at = kept_until(&reservation, now, rules.retention);
    Ok(finish(state, rules, reservation, now))
}
