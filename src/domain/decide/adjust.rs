//! `AdjustUsage`: a counter is corrected by hand.
//!
//! What an operator books is a reservation of its own, committed at once, so
//! that a counter remains the sum of what is charged to it. It may go beyond the
//! limit; nothing else may, but an overdrawn commit.

use std::sync::Arc;

use super::assess::{Purpose, assess_matches, prepare, refuse_foreign, standing};
use super::settle::{finish, kept_until};
use super::{Adjust, Answer, Rules, Stop};
use crate::domain::name::ResourceKey;
use crate::domain::policy::{Limit, Match, Policy};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{
    Charge, HistoryEntry, HistoryEvent, ItemRequest, Request, Reservation, Settled,
};
use crate::domain::state::State;
use crate::domain::time::{Span, Time};

pub(super) fn adjust(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Adjust,
) -> Result<Answer, Stop> {
    let existing = state.reservation_to_make(&command.key)?.cloned();
    if let Some(existing) = existing {
        return replay(state, rules, command, existing);
    }
    let policy = rules.policy.ok_or_else(|| Refusal::NamespaceNotFound {
        namespace: command.key.namespace().into_owned(),
    })?;
    let limit = policy
        .present_limit(&command.limit)
        .ok_or_else(|| Refusal::LimitNotFound { limit: command.limit.clone() })?;
    limit.check_key(&command.counter)?;
    let request = Arc::new(request(limit, command));
    let matches = vec![matching(policy, limit, command)];
    let named: Vec<_> = matches[0].subjects.clone();
    let assessed = assess_matches(state, policy, matches, &named, rules.clock, Purpose::See)?;
    let now = assessed.now;
    let Some(claim) = assessed.claims.into_iter().next() else {
        // An observed limit that has no window now.
        let (limit, next) = (command.limit.clone(), None);
        return Err(Refusal::PeriodUnavailable { limit, subject: None, now, next }.into());
    };
    refuse_amount(state, &claim.counter, command.delta, now)?;
    let namespace = command.key.namespace();
    let resources: Vec<_> =
        command.resources.iter().map(|name| ResourceKey::new(&namespace, name)).collect();
    refuse_foreign(state, &resources, None)?;

    // ---- The line: everything is checked, nothing can fail any more. ----

    let counter = state.counter_mut(&claim.counter);
    let taken = counter.adjust(command.delta, now);
    let token = counter.token;
    for resource in resources {
        state.bind(resource, command.key.clone());
    }
    let charge = Charge {
        counter: claim.counter,
        items: vec![0],
        token,
        bound: claim.bound,
        enforced: claim.enforced,
        taken,
    };
    let amounts = vec![command.delta];
    let entry = HistoryEntry {
        reason: command.reason.clone(),
        ..HistoryEntry::new(HistoryEvent::Adjusted, now, amounts.clone(), &command.principal)
    };
    let resources = command.resources.clone();
    let mut reservation = Reservation {
        key: command.key.clone(),
        request: Some(request),
        charges: Arc::from([charge]),
        create_time: now,
        expire_time: now,
        settled: Settled::Committed { at: now, amounts, resources },
        history: vec![entry],
        policy_revision: policy.source.revision,
        principal: command.principal.clone(),
        purge_at: None,
    };
    reservation.purge_at = kept_until(&reservation, now, rules.retention);
    Ok(finish(state, rules, reservation, now))
}

/// The same adjustment again is answered as before, whatever its reason; any
/// other use of its id is refused.
fn replay(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    command: &Adjust,
    existing: Arc<Reservation>,
) -> Result<Answer, Stop> {
    let id = command.key.id().into_owned();
    let differs = match (existing.request.as_deref(), existing.charges.first()) {
        (Some(request), Some(charge)) if request.adjustment => {
            let item = request.items.first();
            [
                ("limit", charge.counter.limit != command.limit),
                ("key", charge.counter.key != command.counter),
                ("delta", item.is_none_or(|item| item.amount != command.delta)),
            ]
            .into_iter()
            .find_map(|(part, differs)| differs.then_some(part))
        }
        _ => Some("purpose"),
    };
    if let Some(differs) = differs {
        return Err(Refusal::ReservationIdReused { id, differs }.into());
    }
    let now = prepare(state, rules, &existing)?;
    let limits = standing(state, rules, &existing, now);
    Ok(Answer { reservation: existing, limits, replayed: true, now })
}

fn request(limit: &Limit, command: &Adjust) -> Request {
    let item = ItemRequest {
        metric: limit.spec.metric.clone(),
        amount: command.delta,
        dimensions: command.counter.clone(),
    };
    Request {
        items: vec![item],
        ttl: Span::ZERO,
        commit: true,
        resources: command.resources.clone(),
        labels: crate::domain::name::Dimensions::new(),
        adjustment: true,
    }
}

fn matching<'p>(policy: &Policy, limit: &'p Limit, command: &Adjust) -> Match<'p> {
    Match {
        limit,
        key: command.counter.clone(),
        items: vec![0],
        amount: command.delta,
        subjects: policy.subject(limit, &command.counter).into_iter().collect(),
    }
}

fn refuse_amount(
    state: &State<'_>,
    counter: &Arc<crate::domain::counter::CounterId>,
    delta: i64,
    now: Time,
) -> Result<(), Refusal> {
    let counter = state.counter(counter);
    let used = counter.used(now);
    if delta > 0 && counter.overflows(delta, now) {
        let message = format!("is {delta}; with the {used} used it is more than 2^63-1");
        return Err(Refusal::invalid("delta", message));
    }
    if delta < 0 && used.checked_add(delta).is_none_or(|left| left < 0) {
        let message = format!("is {delta}, but only {used} are used; at most that many can go");
        return Err(Refusal::invalid("delta", message));
    }
    Ok(())
}
