//! Undo: what nobody has heard of is as if it had never been.

use super::assess::standing;
use super::settle::{find, give_back, may_set_free, set_free};
use super::{Answer, Rules, Stop, Undo};
use crate::domain::event::Event;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Charge, Reservation, ReservationState, Settled};
use crate::domain::state::State;

pub(super) fn undo(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Undo,
) -> Result<Answer, Stop> {
    let (reservation, now) = find(state, rules, &command.key)?;
    let tokens = reservation.charges.iter().map(|charge| charge.token);
    let at_once = reservation.request.as_ref().is_some_and(|request| request.commit);
    let untouched = match reservation.state(now) {
        // Whoever renewed it knows of it.
        ReservationState::Held => reservation.history.len() == 1,
        ReservationState::Committed => at_once && reservation.refunds().next().is_none(),
        ReservationState::Released | ReservationState::Expired => false,
    };
    let taken_away =
        |charge: &Charge| state.counter(&charge.counter).used(now) < reservation.used_by(charge);
    let untouched = untouched && !(at_once && reservation.charges.iter().any(taken_away));
    if !untouched || !tokens.eq(command.tokens.iter().copied()) {
        let id = command.key.id().into_owned();
        return Err(Refusal::ReservationNotFound { id }.into());
    }

    if let Settled::Committed { resources, .. } = &reservation.settled {
        may_set_free(state, &reservation, resources)?;
    }

    // ---- The line: everything is checked, nothing can fail any more. ----

    if let Settled::Committed { at, resources, .. } = &reservation.settled {
        for charge in reservation.charges.iter() {
            let used = reservation.used_by(charge);
            state.counter_mut(&charge.counter).refund(used, *at, now);
        }
        set_free(state, &reservation, resources);
    } else {
        let released = Settled::Released { at: now };
        let released = Reservation { settled: released, ..Reservation::clone(&reservation) };
        give_back(state, &released, now);
    }
    state.remove_reservation(&command.key);
    let limits = standing(state, rules, &reservation, now);
    let (namespace, id) = (command.key.namespace(), command.key.id());
    let (who, why) = (&reservation.principal, "the caller had gone");
    let event = Event::grant_undone(&namespace, &id, who, why, limits.clone(), now);
    state.tell(Event { purge_at: Some(now.plus(rules.retention)), ..event });
    Ok(Answer { reservation, limits, replayed: false, now })
}
