//! What a request would take from which counter, and whether it fits.

use std::sync::Arc;

use super::claim::{Claim, Subjects, billing_of, counter_of};
use super::{Rules, Stop};
use crate::domain::counter::CounterId;
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::{Bound, Limit, Match, Policy, subject_name};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Charge, ItemRequest, MAX_CHARGES, Reservation};
use crate::domain::state::{Missing, State};
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;

/// What a request would take.
pub(super) struct Assessment<'p> {
    /// From which counters.
    pub claims: Vec<Claim<'p>>,
    /// The instant of the decision.
    pub now: Time,
}

/// What limits are looked at for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To take units, in the windows open now: refused for a frozen subject,
    /// whatever else there is to say.
    Take,
    /// To see where they stand, in the windows open now.
    See,
    /// To see where they stand, in the windows that contain this instant.
    SeeAt(Time),
}

/// Finds the limits that apply to `items`, their counters and bounds.
pub(super) fn assess<'p>(
    state: &mut State<'_>,
    policy: &'p Policy,
    items: &[ItemRequest],
    clock: Time,
    purpose: Purpose,
) -> Result<Assessment<'p>, Stop> {
    let matches = policy.matches(items)?;
    if matches.len() > MAX_CHARGES {
        let message = format!("meet {} counters; at most {MAX_CHARGES} are allowed", matches.len());
        return Err(Refusal::invalid("items", message).into());
    }
    let named = policy.named_subjects(items, &matches);
    assess_matches(state, policy, matches, &named, clock, purpose)
}

/// The same for matches that are found already, and for the subjects that they
/// name.
pub(super) fn assess_matches<'p>(
    state: &mut State<'_>,
    policy: &'p Policy,
    matches: Vec<Match<'p>>,
    named: &[SubjectKey],
    clock: Time,
    purpose: Purpose,
) -> Result<Assessment<'p>, Stop> {
    let (subjects, complete) = Subjects::load(state, named);
    if matches.iter().any(|found| found.limit.spec.billing_dimension().is_some()) {
        // Which counter it is depends on the subject.
        complete?;
    }
    if purpose == Purpose::Take {
        // Those that are not known yet are looked at when they are: nothing is
        // decided before. A frozen one is not to wait for its next period.
        subjects.refuse_frozen()?;
    }
    let (counters, now) = match purpose {
        Purpose::Take | Purpose::See => locate(state, policy, &matches, &subjects, clock)?,
        Purpose::SeeAt(at) => {
            let counters = counters_at(policy, &matches, &subjects, at)?;
            state.counters(counters.iter().flatten())?;
            let now = latest(state, counters.iter().flatten(), clock);
            (counters, now)
        }
    };
    complete?;
    let mut claims = Vec::with_capacity(matches.len());
    for (found, counter) in matches.into_iter().zip(counters) {
        let Some(counter) = counter else { continue };
        let billing = policy.billing_subject(found.limit, &found.key);
        let own = subjects.some(&found.subjects);
        let enforced = found.limit.enforced();
        let bound = match own.bound(policy, found.limit, now) {
            // It would refuse everything, and shows that it would.
            Err(_) if !enforced => Bound::AtMost(0),
            bound => bound?,
        };
        claims.push(Claim {
            counter,
            items: found.items,
            amount: found.amount,
            bound,
            enforced,
            policy,
            limit: found.limit,
            subjects: own,
            billing: billing.and_then(|key| subjects.get(&key).cloned()),
        });
    }
    Ok(Assessment { claims, now })
}

/// Where the limits stand that a reservation was charged to, by the rules of
/// now; by the pinned bound where the limit is gone or the plan unknown.
/// [`prepare`] has loaded what it needs.
pub(super) fn standing(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    reservation: &Reservation,
    now: Time,
) -> Vec<LimitStatus> {
    let mut limits = Vec::with_capacity(reservation.charges.len());
    for charge in reservation.charges.iter() {
        let mut rule = (charge.bound, charge.enforced);
        if let Some((policy, limit, subjects)) = present_rule(rules, reservation, charge) {
            let (subjects, _) = Subjects::load(state, &subjects);
            let present = subjects.bound(policy, limit, now);
            rule = (present.unwrap_or(charge.bound), limit.enforced());
        }
        let counter = state.counter(&charge.counter);
        limits.push(LimitStatus::at_rest(&counter, rule.0, rule.1, now));
    }
    limits
}

/// Loads what a decision about a reservation and its answer need, and finds
/// the instant of the decision.
pub(super) fn prepare(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    reservation: &Reservation,
) -> Result<Time, Missing> {
    let subjects: Vec<SubjectKey> = reservation
        .charges
        .iter()
        .filter_map(|charge| present_rule(rules, reservation, charge))
        .flat_map(|(_, _, subjects)| subjects)
        .collect();
    let (_, complete) = Subjects::load(state, &subjects);
    let now = now_of(state, reservation, rules.clock);
    complete.and(now)
}

/// The instant of a decision about a reservation: never before what its
/// counters have seen.
pub(super) fn now_of(
    state: &mut State<'_>,
    reservation: &Reservation,
    clock: Time,
) -> Result<Time, Missing> {
    let counters = || reservation.charges.iter().map(|charge| &charge.counter);
    state.counters(counters())?;
    Ok(latest(state, counters(), clock))
}

/// The limit that a charge was made under, where it still counts as it did,
/// and the subjects that rule it.
fn present_rule<'a>(
    rules: &Rules<'a>,
    reservation: &Reservation,
    charge: &Charge,
) -> Option<(&'a Policy, &'a Limit, Vec<SubjectKey>)> {
    let policy = rules.policy?;
    let limit = policy.limit(&charge.counter.limit, charge.counter.generation)?;
    let items = charge.items.iter().filter_map(|&n| reservation.items().get(n));
    let mut subjects: Vec<_> =
        items.filter_map(|item| policy.subject(limit, &item.dimensions)).collect();
    subjects.dedup();
    Some((policy, limit, subjects))
}

/// The counters of matching limits; `None` for an observed limit that has no
/// window then.
type Counters = Vec<Option<Arc<CounterId>>>;

/// The counters of the windows that are open at the instant of the decision.
/// That instant is not before the `as_of` of any of them; where that moves it
/// into another window, the search starts again from there.
fn locate(
    state: &mut State<'_>,
    policy: &Policy,
    matches: &[Match<'_>],
    subjects: &Subjects,
    clock: Time,
) -> Result<(Counters, Time), Stop> {
    let mut now = clock;
    loop {
        let counters = counters_at(policy, matches, subjects, now)?;
        state.counters(counters.iter().flatten())?;
        let later = latest(state, counters.iter().flatten(), now);
        if later == now {
            return Ok((counters, now));
        }
        now = later;
    }
}

fn counters_at(
    policy: &Policy,
    matches: &[Match<'_>],
    subjects: &Subjects,
    now: Time,
) -> Result<Counters, Refusal> {
    let counter = |found: &Match<'_>| {
        let owner = policy.billing_subject(found.limit, &found.key);
        let subject = owner.as_ref().and_then(|key| subjects.get(key));
        let billing = billing_of(subject.map(Arc::as_ref));
        let rule = &found.limit.window;
        match rule.containing(now, billing) {
            Some(window) => Ok(Some(counter_of(policy, found.limit, &found.key, window))),
            // It never refuses, and there is nothing to count in.
            None if !found.limit.enforced() => Ok(None),
            None => Err(Refusal::PeriodUnavailable {
                limit: found.limit.spec.name.clone(),
                subject: owner.as_ref().map(subject_name),
                now,
                next: rule.next(now, billing),
            }),
        }
    };
    matches.iter().map(counter).collect()
}

fn latest<'c>(
    state: &State<'_>,
    counters: impl Iterator<Item = &'c Arc<CounterId>>,
    clock: Time,
) -> Time {
    counters.map(|id| state.counter(id).as_of).fold(clock, Time::max)
}

/// Refuses where one of the resources belongs to a reservation other than
/// `own`.
pub(super) fn refuse_foreign(
    state: &mut State<'_>,
    resources: &[ResourceKey],
    own: Option<&ReservationKey>,
) -> Result<(), Stop> {
    let mut complete = Ok(());
    for key in resources {
        match state.resource_to_bind(key) {
            Err(Missing) => complete = Err(Missing),
            Ok(Some(owner)) if Some(owner) != own => {
                return Err(Refusal::ResourceAlreadyBound {
                    resource: key.resource().into_owned(),
                }
                .into());
            }
            Ok(_) => {}
        }
    }
    Ok(complete?)
}
