//! What a change of policy leaves above a limit that it lowers.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::matching::{Limit, Policy};
use super::spec::{Bound, MaxSpec};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::name::{Dimensions, SubjectKey, join_key};
use crate::domain::status::LimitStatus;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::domain::window::Window;

/// A limit that allows somebody less than before, and goes on with the counters
/// that it has.
#[derive(Debug)]
pub struct Lowered<'p> {
    before: &'p Policy,
    after: &'p Policy,
    /// What it was; `None` where it comes back after it was gone.
    old: Option<&'p Limit>,
    new: &'p Limit,
}

/// The limits that `after` may have lowered, in its order. Those that start
/// fresh counters are not among them: nothing is counted there yet.
pub fn lowered<'p>(before: &'p Policy, after: &'p Policy) -> Vec<Lowered<'p>> {
    let lowered = |new: &'p Limit| {
        let old = before.limit(&new.spec.name, new.generation);
        let comes_back = || {
            let gone = before.source.retired.iter();
            gone.into_iter().any(|(l, n)| l.name == new.spec.name && *n == new.generation)
        };
        let limit = Lowered { before, after, old, new };
        ((old.is_some() || comes_back()) && limit.lowers()).then_some(limit)
    };
    after.limits().iter().filter_map(lowered).collect()
}

impl Lowered<'_> {
    /// Whether anybody may have less than before. Exceptions need no look: they
    /// are the same before and after, or added to what is compared here.
    fn lowers(&self) -> bool {
        if !self.new.enforced() {
            return false;
        }
        let Some(old) = self.old.filter(|old| old.enforced()) else { return true };
        if old.spec.subject_dimension() != self.new.spec.subject_dimension() {
            // Another subject may rule the same counter.
            return true;
        }
        // Of both: a plan that has gone may have subjects still.
        let plans = [self.before, self.after].into_iter().flat_map(|p| &p.source.spec.plans);
        let plans: BTreeSet<Option<&String>> = plans.map(Some).chain([None]).collect();
        plans.into_iter().any(|plan| {
            let new = general(self.after, self.new, plan);
            new.is_some_and(|new| less(new, general(self.before, old, plan)))
        })
    }

    /// What the keys of its counters begin with.
    pub fn prefix(&self) -> String {
        let generation = self.new.generation.to_string();
        let parts = [self.after.namespace(), &self.new.spec.name, &generation];
        format!("{}/", join_key(parts))
    }

    /// The subjects whose plan and exceptions tell what `counter` may hold, now
    /// and before.
    pub fn subjects(&self, counter: &CounterId) -> impl Iterator<Item = SubjectKey> {
        let before = self.old.and_then(|old| self.before.subject(old, &counter.key));
        let billing = self.after.billing_subject(self.new, &counter.key);
        before.into_iter().chain(self.after.subject(self.new, &counter.key)).chain(billing)
    }

    /// Where `counter` stands, if its window is open at `now` and it holds more
    /// than the limit allows, which allowed more before.
    ///
    /// Where the limit goes by a subject that its counters do not tell, the
    /// largest max of any plan stands for it.
    pub fn over<'s>(
        &self,
        counter: &Counter,
        subject: impl Fn(&SubjectKey) -> Option<&'s Subject>,
        now: Time,
    ) -> Option<LimitStatus> {
        let now = now.max(counter.as_of);
        let key = &counter.id.key;
        let owner = self.after.billing_subject(self.new, key).and_then(|key| subject(&key));
        let open = self.new.window.containing(now, owner.and_then(|s| s.billing.as_ref()))?;
        if open.id() != counter.id.window.id() {
            return None;
        }
        let new = bound(self.after, self.new, key, &subject, now)?;
        let id = Arc::new(CounterId { window: open, ..CounterId::clone(&counter.id) });
        let status = LimitStatus::at_rest(counter, new, true, now).named(&id, now);
        if status.used.saturating_add(status.held) <= new.ceiling() {
            return None;
        }
        let old = self.old.filter(|old| old.enforced());
        let old = old.and_then(|old| bound(self.before, old, key, &subject, now));
        less(new, old).then_some(status)
    }
}

/// Whether the window of `counter` contains `now`, or may do so: only a
/// subject's billing tells which of its periods is open.
pub fn may_be_open(counter: &Counter, now: Time) -> bool {
    match (now.max(counter.as_of), &counter.id.window) {
        (now, Window::Period { start, end }) => *start <= now && now < *end,
        (_, Window::Billing { .. } | Window::Lifetime | Window::Rolling(_)) => true,
    }
}

/// Whether `new` allows less than `old`; nothing at all was no limit.
fn less(new: Bound, old: Option<Bound>) -> bool {
    old.is_none_or(|old| new.ceiling() < old.ceiling())
}

/// What a limit allows a subject on that plan, exceptions aside.
fn general(policy: &Policy, limit: &Limit, plan: Option<&String>) -> Option<Bound> {
    let plan = plan.or(policy.source.spec.default_plan.as_ref());
    match &limit.spec.max {
        MaxSpec::Same(bound) => Some(*bound),
        MaxSpec::ByPlan(by_plan) => plan.and_then(|plan| by_plan.get(plan)).copied(),
    }
}

/// What a limit allows on the counter of that key.
pub(super) fn bound<'s>(
    policy: &Policy,
    limit: &Limit,
    key: &Dimensions,
    subject: impl Fn(&SubjectKey) -> Option<&'s Subject>,
    now: Time,
) -> Option<Bound> {
    if let Some(ruling) = policy.subject(limit, key) {
        return policy.bound(limit, &ruling, subject(&ruling), now).ok();
    }
    match &limit.spec.max {
        MaxSpec::Same(bound) => Some(*bound),
        MaxSpec::ByPlan(by_plan) => by_plan.values().copied().max_by_key(|bound| bound.ceiling()),
    }
}

#[cfg(test)]
mod tests;
