//! Subjects: who is on which plan, and who is excepted from what.

use super::name::{Dimensions, SubjectKey, Violation, check_map, check_name};
use super::policy::Bound;
use super::time::Time;
use super::window::Billing;

/// The most overrides of one subject.
pub const MAX_OVERRIDES: usize = 64;

/// The owner of a plan, such as `user` 42.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The namespace.
    pub namespace: String,
    /// Which dimension names it.
    pub kind: String,
    /// The dimension's value.
    pub id: String,
    /// Its plan; empty means the policy's default plan.
    pub plan: String,
    /// When its billing periods begin and end; `None` means that it has none.
    pub billing: Option<Billing>,
    /// Exceptions, one per limit.
    pub overrides: Vec<Override>,
    /// Whether every Reserve that names it is refused.
    pub frozen: bool,
    /// The caller's own notes.
    pub labels: Dimensions,
    /// When it was last changed.
    pub update_time: Time,
}

/// An exception from one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit's name.
    pub limit: String,
    /// What it allows instead.
    pub change: OverrideChange,
    /// From when on the exception no longer holds.
    pub expire_time: Option<Time>,
}

/// How an override changes a max.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideChange {
    /// Replaces it; not negative.
    Set(i64),
    /// Is added to it; the sum is never below 0 nor above 2^63-1.
    Add(i64),
}

impl Subject {
    /// What finds it.
    pub fn key(&self) -> SubjectKey {
        SubjectKey::new(&self.namespace, &self.kind, &self.id)
    }

    /// What `limit` allows this subject at `now`, where its plan allows
    /// `general`. Only a set override helps a subject without a known plan.
    pub fn overridden(&self, limit: &str, general: Option<Bound>, now: Time) -> Option<Bound> {
        match (self.live_override(limit, now).map(|o| o.change), general) {
            (Some(OverrideChange::Set(max)), _) => Some(Bound::AtMost(max)),
            (Some(OverrideChange::Add(more)), Some(Bound::AtMost(max))) => {
                Some(Bound::AtMost(max.saturating_add(more).max(0)))
            }
            (_, general) => general,
        }
    }

    /// When what `limit` allows this subject at `now` changes by itself.
    pub fn override_end(&self, limit: &str, now: Time) -> Option<Time> {
        self.live_override(limit, now)?.expire_time
    }

    fn live_override(&self, limit: &str, now: Time) -> Option<&Override> {
        let live = |o: &&Override| o.limit == limit && o.expire_time.is_none_or(|end| now < end);
        self.overrides.iter().find(live)
    }

    /// Everything wrong with it by itself, with field paths below `subject`.
    pub fn faults(&self) -> Vec<Violation> {
        let mut faults = Vec::new();
        check_name("subject.kind", &self.kind, &mut faults);
        check_name("subject.id", &self.id, &mut faults);
        if !self.plan.is_empty() {
            check_name("subject.plan", &self.plan, &mut faults);
        }
        if let Some(billing) = &self.billing {
            faults.extend(billing.faults("subject.billing"));
        }
        check_map("subject.labels", &self.labels, &mut faults);
        if self.overrides.len() > MAX_OVERRIDES {
            let message = format!(
                "has {} entries; at most {MAX_OVERRIDES} are allowed",
                self.overrides.len()
            );
            faults.push(Violation::new("subject.overrides", message));
        }
        for (n, over) in self.overrides.iter().enumerate() {
            let field = format!("subject.overrides[{n}]");
            check_name(&format!("{field}.limit"), &over.limit, &mut faults);
            if matches!(over.change, OverrideChange::Set(max) if max < 0) {
                faults.push(Violation::new(format!("{field}.set"), "must be 0 to 2^63-1"));
            }
            if self.overrides[..n].iter().any(|earlier| earlier.limit == over.limit) {
                let message = "names a limit that has an override already; one is allowed for each";
                faults.push(Violation::new(format!("{field}.limit"), message));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: OverrideChange, expire_time: Option<Time>) -> Subject {
        let only = Override { limit: "posts".to_owned(), change, expire_time };
        Subject { overrides: vec![only], ..Subject::default() }
    }

    #[test]
    fn overrides_set_or_add_until_they_end() {
        let now = Time::from_millis(1000).unwrap();
        let soon = now.plus(super::super::time::Span::from_secs(1));
        let three = Some(Bound::AtMost(3));
        let set = with(OverrideChange::Set(7), Some(soon));
        assert_eq!(set.overridden("posts", three, now), Some(Bound::AtMost(7)));
        assert_eq!(set.overridden("posts", Some(Bound::Unlimited), now), Some(Bound::AtMost(7)));
        assert_eq!(set.overridden("posts", None, now), Some(Bound::AtMost(7)));
        assert_eq!(set.overridden("other", three, now), three);
        assert_eq!(set.overridden("posts", three, soon), three);
        let add = |n| with(OverrideChange::Add(n), None).overridden("posts", three, now);
        assert_eq!(add(5), Some(Bound::AtMost(8)));
        assert_eq!(add(-5), Some(Bound::AtMost(0)));
        assert_eq!(add(i64::MAX), Some(Bound::AtMost(i64::MAX)));
        assert_eq!(with(OverrideChange::Add(1), None).overridden("posts", None, now), None);
    }
}
