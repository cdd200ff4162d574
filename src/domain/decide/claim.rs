//! What a request would take from one counter, and by whose rules.

use std::sync::Arc;

use super::Rules;
use crate::domain::counter::CounterId;
use crate::domain::name::{Dimensions, SubjectKey};
use crate::domain::policy::{Bound, Limit, MaxSpec, Policy, subject_name};
use crate::domain::refusal::Refusal;
use crate::domain::state::{Missing, State};
use crate::domain::status::LimitStatus;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::domain::window::{Billing, Window};

/// What a request would take from one counter.
pub(super) struct Claim<'p> {
    pub counter: Arc<CounterId>,
    pub items: Vec<usize>,
    pub amount: i64,
    pub bound: Bound,
    pub enforced: bool,
    pub policy: &'p Policy,
    pub limit: &'p Limit,
    /// Whose plan and overrides rule.
    pub subjects: Subjects,
    /// Whose billing periods are the windows.
    pub billing: Option<Arc<Subject>>,
}

impl Claim<'_> {
    /// Where the counter stands before the request.
    pub fn at_rest(&self, state: &State<'_>, now: Time) -> LimitStatus {
        let counter = state.counter(&self.counter);
        let status = LimitStatus::at_rest(&counter, self.bound, self.enforced, now);
        status.named(&self.counter, now)
    }

    /// Instants after `now` at which the standing of the counter changes by
    /// itself.
    pub fn changes_at(&self, state: &State<'_>, now: Time) -> impl Iterator<Item = Time> {
        let returned = state.counter(&self.counter).next_return(now);
        let ends = [returned, self.counter.window.end(), self.bound_at(now).1];
        ends.into_iter().flatten().filter(move |at| *at > now)
    }

    /// Where the counter stands, and what the request would mean to it.
    ///
    /// # Errors
    ///
    /// What tells when it could pass is not known yet.
    pub fn status(&self, state: &mut State<'_>, now: Time) -> Result<LimitStatus, Missing> {
        let exceeded = !state.counter(&self.counter).fits(self.bound, self.amount, now);
        let retry_time = if exceeded { self.first_pass(state, now)? } else { None };
        let (requested, at_rest) = (self.amount, self.at_rest(state, now));
        Ok(LimitStatus { requested, exceeded, retry_time, ..at_rest })
    }

    /// Where the counter stands, and whether it refuses the request: for want of
    /// room, or since others wait for the room that there is. When those are
    /// served nobody can tell, so that no instant is promised.
    ///
    /// # Errors
    ///
    /// What tells when it could pass is not known yet.
    pub fn verdict(
        &self,
        state: &mut State<'_>,
        rules: &Rules<'_>,
        now: Time,
    ) -> Result<(LimitStatus, bool), Missing> {
        let status = self.status(state, now)?;
        if self.refuses(state, &status, now) {
            return Ok((status, true));
        }
        let behind = self.enforced && rules.others_wait(&self.counter);
        Ok((LimitStatus { exceeded: status.exceeded || behind, ..status }, behind))
    }

    /// Whether this claim refuses the request: an observed limit never does,
    /// unless the sum could not be counted at all.
    fn refuses(&self, state: &State<'_>, status: &LimitStatus, now: Time) -> bool {
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
pub(super) struct Subjects(Vec<(SubjectKey, Option<Arc<Subject>>)>);

impl Subjects {
    /// Those of `keys` that are known, and whether all are: all that are
    /// missing are asked for at once.
    pub fn load(state: &mut State<'_>, keys: &[SubjectKey]) -> (Self, Result<(), Missing>) {
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

    pub fn get(&self, key: &SubjectKey) -> Option<&Arc<Subject>> {
        self.0.iter().find(|(known, _)| known == key)?.1.as_ref()
    }

    pub fn some(&self, keys: &[SubjectKey]) -> Self {
        Self(keys.iter().map(|key| (key.clone(), self.get(key).cloned())).collect())
    }

    pub fn refuse_frozen(&self) -> Result<(), Refusal> {
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
    pub fn bound(&self, policy: &Policy, limit: &Limit, now: Time) -> Result<Bound, Refusal> {
        let mut least = match &limit.spec.max {
            MaxSpec::Same(bound) => *bound,
            // Where nobody's plan is known, which only an operator's correction
            // of a counter can be without: the largest of any.
            MaxSpec::ByPlan(by_plan) => {
                let bounds = by_plan.values().copied();
                bounds.max_by_key(|bound| bound.ceiling()).unwrap_or(Bound::AtMost(0))
            }
        };
        for (n, (key, subject)) in self.0.iter().enumerate() {
            let bound = policy.bound(limit, key, subject.as_deref(), now)?;
            least = if n == 0 { bound } else { least.min(bound) };
        }
        Ok(least)
    }
}

/// The billing of a subject that may not be there.
pub(super) fn billing_of(subject: Option<&Subject>) -> Option<&Billing> {
    subject.and_then(|subject| subject.billing.as_ref())
}

/// The counter of a limit for that key, in that window.
pub(super) fn counter_of(
    policy: &Policy,
    limit: &Limit,
    key: &Dimensions,
    window: Window,
) -> Arc<CounterId> {
    let Limit { spec, generation, .. } = limit;
    let (namespace, key) = (policy.namespace(), key.clone());
    Arc::new(CounterId::new(namespace, &spec.name, &spec.metric, *generation, key, window))
}
