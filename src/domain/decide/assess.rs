//! What a request would take from which counter, and whether it fits.

use std::sync::Arc;

use super::{Rules, Stop};
use crate::domain::counter::CounterId;
use crate::domain::name::{Dimensions, ReservationKey, ResourceKey, SubjectKey};
use crate::domain::policy::{Bound, Limit, Match, MaxSpec, Policy, subject_name};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Charge, ItemRequest, MAX_CHARGES, Reservation};
use crate::domain::state::{Missing, State};
use crate::domain::status::LimitStatus;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::domain::window::{Billing, Window};

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

/// What a request would take from one counter.
pub(super) struct Claim<'p> {
    pub counter: Arc<CounterId>,
    pub items: Vec<usize>,
    pub amount: i64,
    pub bound: Bound,
    pub enforced: bool,
    policy: &'p Policy,
    limit: &'p Limit,
    /// Whose plan and overrides rule.
    subjects: Subjects,
    /// Whose billing periods are the windows.
    billing: Option<Arc<Subject>>,
}

impl Claim<'_> {
    /// Where the counter stands before the request.
    pub fn at_rest(&self, state: &State<'_>, now: Time) -> LimitStatus {
        let counter = state.counter(&self.counter);
        LimitStatus {
            counter: Arc::clone(&self.counter),
            window: self.counter.window.span(now),
            ..LimitStatus::at_rest(&counter, self.bound, self.enforced, now)
        }
    }

    /// Where the counter stands, and what the request would mean to it.
    pub fn status(&self, state: &State<'_>, now: Time) -> LimitStatus {
        let exceeded = !state.counter(&self.counter).fits(self.bound, self.amount, now);
        LimitStatus {
            requested: self.amount,
            exceeded,
            retry_time: if exceeded { self.first_pass(state, now) } else { None },
            ..self.at_rest(state, now)
        }
    }

    /// Whether this claim refuses the request: an observed limit never does,
    /// unless the sum could not be counted at all.
    pub fn refuses(&self, state: &State<'_>, status: &LimitStatus, now: Time) -> bool {
        status.exceeded
            && (self.enforced || state.counter(&self.counter).overflows(self.amount, now))
    }

    /// The earliest instant, `from` or later, that lies in a window.
    pub fn window_from(&self, from: Time) -> Option<Time> {
        self.limit.window.next(from, billing_of(self.billing.as_deref()))
    }

    /// The counter of the window that contains `at`.
    pub fn counter_at(&self, at: Time) -> Option<Arc<CounterId>> {
        let window = self.limit.window.containing(at, billing_of(self.billing.as_deref()))?;
        if window == self.counter.window {
            return Some(Arc::clone(&self.counter));
        }
        Some(counter_of(self.policy, self.limit, &self.counter.key, window))
    }

    /// What the limit allows at an instant, `None` where the plan is unknown,
    /// and when that changes by itself.
    pub fn bound_at(&self, at: Time) -> (Option<Bound>, Option<Time>) {
        let bound = self.subjects.bound(self.policy, self.limit, at).ok();
        let name = &self.limit.spec.name;
        let ends = self.subjects.0.iter().filter_map(|(_, subject)| {
            subject.as_ref().and_then(|subject| subject.override_end(name, at))
        });
        (bound, ends.min())
    }
}

/// Subjects as loaded; `None` for one that was never put.
#[derive(Default)]
struct Subjects(Vec<(SubjectKey, Option<Arc<Subject>>)>);

impl Subjects {
    /// Those of `keys` that are known, and whether all are: all that are
    /// missing are asked for at once.
    fn load(state: &mut State<'_>, keys: &[SubjectKey]) -> (Self, Result<(), Missing>) {
        let mut complete = Ok(());
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            match state.subject(key) {
                Ok(subject) => rows.push((key.clone(), subject)),
                Err(Missing) => complete = Err(Missing),
            }
        }
        (Self(rows), complete)
    }

    fn get(&self, key: &SubjectKey) -> Option<&Arc<Subject>> {
        self.0.iter().find(|(known, _)| known == key)?.1.as_ref()
    }

    fn some(&self, keys: &[SubjectKey]) -> Self {
        Self(keys.iter().map(|key| (key.clone(), self.get(key).cloned())).collect())
    }

    fn refuse_frozen(&self) -> Result<(), Refusal> {
        let frozen = |(_, subject): &&(SubjectKey, Option<Arc<Subject>>)| {
            subject.as_ref().is_some_and(|subject| subject.frozen)
        };
        match self.0.iter().find(frozen) {
            None => Ok(()),
            Some((key, _)) => Err(Refusal::SubjectFrozen { subject: subject_name(key) }),
        }
    }

    /// What the limit allows; the least of it where several subjects meet on
    /// one counter.
    fn bound(&self, policy: &Policy, limit: &Limit, now: Time) -> Result<Bound, Refusal> {
        let mut least = match &limit.spec.max {
            MaxSpec::Same(bound) => *bound,
            MaxSpec::ByPlan(_) => Bound::Unlimited,
        };
        for (n, (key, subject)) in self.0.iter().enumerate() {
            let bound = policy.bound(limit, key, subject.as_deref(), now)?;
            least = if n == 0 { bound } else { least.min(bound) };
        }
        Ok(least)
    }
}

fn billing_of(subject: Option<&Subject>) -> Option<&Billing> {
    subject.and_then(|subject| subject.billing.as_ref())
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
    let (subjects, complete) = Subjects::load(state, &named);
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
            state.counters(&counters)?;
            let now = latest(state, &counters, clock);
            (counters, now)
        }
    };
    complete?;
    let mut claims = Vec::with_capacity(matches.len());
    for (found, counter) in matches.into_iter().zip(counters) {
        let billing = policy.billing_subject(found.limit, &found.key);
        let own = subjects.some(&found.subjects);
        claims.push(Claim {
            counter,
            items: found.items,
            amount: found.amount,
            bound: own.bound(policy, found.limit, now)?,
            enforced: found.limit.enforced(),
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
    subjects: &Subjects,
    clock: Time,
) -> Result<(Vec<Arc<CounterId>>, Time), Stop> {
    let mut now = clock;
    loop {
        let counters = counters_at(policy, matches, subjects, now)?;
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
    subjects: &Subjects,
    now: Time,
) -> Result<Vec<Arc<CounterId>>, Refusal> {
    let counter = |found: &Match<'_>| {
        let owner = policy.billing_subject(found.limit, &found.key);
        let subject = owner.as_ref().and_then(|key| subjects.get(key));
        let billing = billing_of(subject.map(Arc::as_ref));
        let rule = &found.limit.window;
        let window = rule.containing(now, billing).ok_or_else(|| Refusal::PeriodUnavailable {
            limit: found.limit.spec.name.clone(),
            subject: owner.as_ref().map(subject_name),
            now,
            next: rule.next(now, billing),
        })?;
        Ok(counter_of(policy, found.limit, &found.key, window))
    };
    matches.iter().map(counter).collect()
}

fn counter_of(policy: &Policy, limit: &Limit, key: &Dimensions, window: Window) -> Arc<CounterId> {
    let Limit { spec, generation, .. } = limit;
    let (namespace, key) = (policy.namespace(), key.clone());
    Arc::new(CounterId::new(namespace, &spec.name, &spec.metric, *generation, key, window))
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
