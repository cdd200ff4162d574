//! What a request would take from which counter, and whether it fits.

use std::sync::Arc;

use super::{Rules, Stop};
use crate::domain::counter::CounterId;
use crate::domain::name::{ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::{Bound, Limit, Match, MaxSpec, Policy, subject_name};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Charge, ItemRequest, MAX_CHARGES, Reservation};
use crate::domain::state::{Missing, State};
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;

/// What a request would take.
pub(super) struct Assessment {
    /// From which counters.
    pub charges: Vec<Claim>,
    /// The instant of the decision.
    pub now: Time,
    /// A subject that the request names and that is frozen.
    frozen: Option<SubjectKey>,
}

impl Assessment {
    pub fn refuse_frozen(&self) -> Result<(), Refusal> {
        match &self.frozen {
            None => Ok(()),
            Some(key) => Err(Refusal::SubjectFrozen { subject: subject_name(key) }),
        }
    }
}

/// What a request would take from one counter.
pub(super) struct Claim {
    pub counter: Arc<CounterId>,
    pub items: Vec<usize>,
    pub amount: i64,
    pub bound: Bound,
    pub enforced: bool,
}

impl Claim {
    pub fn status(&self, state: &State<'_>, now: Time) -> LimitStatus {
        let counter = state.counter(&self.counter);
        LimitStatus::asked(&counter, self.bound, self.enforced, self.amount, now)
    }

    /// Whether this claim refuses the request: an observed limit never does,
    /// unless the sum could not be counted at all.
    pub fn refuses(&self, state: &State<'_>, status: &LimitStatus, now: Time) -> bool {
        status.exceeded
            && (self.enforced || state.counter(&self.counter).overflows(self.amount, now))
    }
}

/// Finds the limits that apply to `items`, their counters and bounds: in the
/// windows open now, or in those that contain `at`.
pub(super) fn assess(
    state: &mut State<'_>,
    policy: &Policy,
    items: &[ItemRequest],
    clock: Time,
    at: Option<Time>,
) -> Result<Assessment, Stop> {
    let matches = policy.matches(items)?;
    if matches.len() > MAX_CHARGES {
        let message = format!("meet {} counters; at most {MAX_CHARGES} are allowed", matches.len());
        return Err(Refusal::invalid("items", message).into());
    }
    let named = policy.named_subjects(items, &matches);
    let subjects = load_subjects(state, &named);
    let (counters, now) = match at {
        None => locate(state, policy, &matches, clock)?,
        Some(at) => {
            let counters = counters_at(policy, &matches, at)?;
            state.counters(&counters)?;
            let now = latest(state, &counters, clock);
            (counters, now)
        }
    };
    subjects?;
    let mut frozen = None;
    for key in &named {
        if state.subject(key)?.is_some_and(|subject| subject.frozen) {
            frozen = Some(key.clone());
        }
    }
    let mut charges = Vec::with_capacity(matches.len());
    for (found, counter) in matches.into_iter().zip(counters) {
        let bound = bound(state, policy, found.limit, &found.subjects, now)?;
        let enforced = found.limit.enforced();
        charges.push(Claim { counter, items: found.items, amount: found.amount, bound, enforced });
    }
    Ok(Assessment { charges, now, frozen })
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
            let present = bound(state, policy, limit, &subjects, now);
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
    let subjects = load_subjects(state, &subjects);
    let now = now_of(state, reservation, rules.clock);
    subjects.and(now)
}

/// The instant of a decision about a reservation: never before what its
/// counters have seen.
pub(super) fn now_of(
    state: &mut State<'_>,
    reservation: &Reservation,
    clock: Time,
) -> Result<Time, Missing> {
    let counters: Vec<_> =
        reservation.charges.iter().map(|charge| Arc::clone(&charge.counter)).collect();
    state.counters(&counters)?;
    Ok(latest(state, &counters, clock))
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

/// The counters of the windows that are open at the instant of the decision.
/// That instant is not before the `as_of` of any of them; where that moves it
/// into another window, the search starts again from there.
fn locate(
    state: &mut State<'_>,
    policy: &Policy,
    matches: &[Match<'_>],
    clock: Time,
) -> Result<(Vec<Arc<CounterId>>, Time), Stop> {
    let mut now = clock;
    loop {
        let counters = counters_at(policy, matches, now)?;
        state.counters(&counters)?;
        let later = latest(state, &counters, now);
        if later == now {
            return Ok((counters, now));
        }
        now = later;
    }
}

fn counters_at(
    policy: &Policy,
    matches: &[Match<'_>],
    now: Time,
) -> Result<Vec<Arc<CounterId>>, Refusal> {
    let counter = |found: &Match<'_>| {
        let Limit { spec, generation, window } = found.limit;
        let window = window
            .containing(now)
            .ok_or_else(|| Refusal::PeriodUnavailable { limit: spec.name.clone(), now })?;
        let key = found.key.clone();
        let namespace = policy.namespace();
        Ok(Arc::new(CounterId::new(namespace, &spec.name, &spec.metric, *generation, key, window)))
    };
    matches.iter().map(counter).collect()
}

fn latest(state: &State<'_>, counters: &[Arc<CounterId>], clock: Time) -> Time {
    counters.iter().map(|id| state.counter(id).as_of).fold(clock, Time::max)
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

/// Asks for all subjects, so that all that are missing are loaded at once.
fn load_subjects<'k>(
    state: &mut State<'_>,
    keys: impl IntoIterator<Item = &'k SubjectKey>,
) -> Result<(), Missing> {
    let mut complete = Ok(());
    for key in keys {
        if state.subject(key).is_err() {
            complete = Err(Missing);
        }
    }
    complete
}

/// What the limit allows; the least of it where several subjects meet on one
/// counter.
fn bound(
    state: &mut State<'_>,
    policy: &Policy,
    limit: &Limit,
    subjects: &[SubjectKey],
    now: Time,
) -> Result<Bound, Stop> {
    let mut least = match &limit.spec.max {
        MaxSpec::Same(bound) => *bound,
        MaxSpec::ByPlan(_) => Bound::Unlimited,
    };
    for (n, key) in subjects.iter().enumerate() {
        let subject = state.subject(key)?;
        let bound = policy.bound(limit, key, subject.as_deref(), now)?;
        least = if n == 0 { bound } else { least.min(bound) };
    }
    Ok(least)
}
