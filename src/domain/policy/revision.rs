//! Revisions: what applying a policy makes of the one before.

use std::collections::BTreeMap;

use super::spec::{LimitSpec, PolicySpec};
use crate::domain::time::Time;

/// The most limits that are remembered after they are gone; the oldest are
/// forgotten first, so that a policy with ever new names stays storable.
const MAX_RETIRED: usize = 1000;
/// The most bytes of names and values in them.
const MAX_RETIRED_BYTES: usize = 1 << 20;

/// A policy that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRevision {
    /// Counts from 1 in each namespace.
    pub revision: i64,
    /// The policy.
    pub spec: PolicySpec,
    /// Which definition each limit is in: its counters belong to it.
    pub generations: BTreeMap<String, i64>,
    /// Limits of earlier revisions that are gone. One that comes back just as
    /// it was goes on with its counters, so that removing a limit by mistake
    /// gives nobody fresh quota.
    pub retired: Vec<(LimitSpec, i64)>,
    /// When it was applied.
    pub create_time: Time,
    /// Who applied it.
    pub principal: String,
    /// Whether a policy file of the server made it, and not a call. A file
    /// never replaces what was made by a call unless it is forced.
    pub from_file: bool,
}

/// A policy that was applied, without what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionHead {
    /// Counts from 1 in each namespace.
    pub revision: i64,
    /// When it was applied.
    pub create_time: Time,
    /// Who applied it.
    pub principal: String,
}

/// What applying a policy does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The same content is in force already.
    Unchanged,
    /// A new revision.
    Changed {
        /// The revision to store.
        revision: Box<PolicyRevision>,
        /// Limits that start fresh counters although one of that name counted
        /// before.
        restarted: Vec<String>,
    },
}

impl PolicyRevision {
    /// What applying `spec` after `current` makes.
    pub fn after(current: Option<&Self>, spec: PolicySpec, now: Time, principal: &str) -> Applied {
        if current.is_some_and(|current| current.spec == spec) {
            return Applied::Unchanged;
        }
        let before = current.map_or_else(Vec::new, Self::every_limit);
        let mut generations = BTreeMap::new();
        let mut restarted = Vec::new();
        for limit in &spec.limits {
            let generation = match before.iter().find(|(earlier, _)| earlier.name == limit.name) {
                None => 1,
                Some((earlier, generation)) if earlier.counts_like(limit) => *generation,
                Some((_, generation)) => {
                    restarted.push(limit.name.clone());
                    generation + 1
                }
            };
            generations.insert(limit.name.clone(), generation);
        }
        let gone = before.into_iter().filter(|(limit, _)| !generations.contains_key(&limit.name));
        let mut bytes = 0;
        let light = |(limit, _): &(LimitSpec, i64)| {
            bytes += limit.weight();
            bytes <= MAX_RETIRED_BYTES
        };
        let retired = gone.take(MAX_RETIRED).take_while(light).collect();
        let revision = Box::new(Self {
            revision: current.map_or(0, |current| current.revision) + 1,
            spec,
            generations,
            retired,
            create_time: now,
            principal: principal.to_owned(),
            from_file: false,
        });
        Applied::Changed { revision, restarted }
    }

    /// The revision without what it says.
    pub fn head(&self) -> RevisionHead {
        let (create_time, principal) = (self.create_time, self.principal.clone());
        RevisionHead { revision: self.revision, create_time, principal }
    }

    fn every_limit(&self) -> Vec<(LimitSpec, i64)> {
        let present =
            self.spec.limits.iter().map(|limit| {
                (limit.clone(), self.generations.get(&limit.name).copied().unwrap_or(1))
            });
        present.chain(self.retired.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Bound, MaxSpec, Mode, WindowSpec};
    use super::*;
    use crate::domain::time::Span;

    fn limit(name: &str, window: WindowSpec, max: i64) -> LimitSpec {
        LimitSpec {
            name: name.to_owned(),
            metric: "m".to_owned(),
            conditions: BTreeMap::new(),
            per: vec![],
            optional: false,
            plan_of: None,
            window,
            max: MaxSpec::Same(Bound::AtMost(max)),
            mode: Mode::Enforced,
        }
    }

    fn apply(current: Option<&PolicyRevision>, limits: Vec<LimitSpec>) -> PolicyRevision {
        let spec = PolicySpec { limits, ..PolicySpec::default() };
        match PolicyRevision::after(current, spec, Time::default(), "test") {
            Applied::Changed { revision, .. } => *revision,
            Applied::Unchanged => panic!("nothing changed"),
        }
    }

    #[test]
    fn a_changed_max_keeps_the_counters_and_a_changed_window_does_not() {
        let first = apply(None, vec![limit("a", WindowSpec::Lifetime, 1)]);
        assert_eq!((first.revision, first.generations["a"]), (1, 1));
        let raised = apply(Some(&first), vec![limit("a", WindowSpec::Lifetime, 2)]);
        assert_eq!((raised.revision, raised.generations["a"]), (2, 1));
        let moved =
            apply(Some(&raised), vec![limit("a", WindowSpec::Fixed(Span::from_secs(60)), 2)]);
        assert_eq!((moved.revision, moved.generations["a"]), (3, 2));
    }

    #[test]
    fn a_limit_that_comes_back_goes_on_counting() {
        let first = apply(None, vec![limit("a", WindowSpec::Lifetime, 1)]);
        let without = apply(Some(&first), vec![limit("b", WindowSpec::Lifetime, 1)]);
        let back = apply(Some(&without), vec![limit("a", WindowSpec::Lifetime, 1)]);
        assert_eq!(back.generations["a"], 1);
        let other = limit("a", WindowSpec::Fixed(Span::from_secs(60)), 1);
        assert_eq!(apply(Some(&without), vec![other]).generations["a"], 2);
    }

    #[test]
    fn what_is_gone_is_forgotten_before_it_grows_too_large() {
        let values = (0..64).map(|n| format!("{n:0>250}")).collect::<Vec<_>>();
        let heavy = |name: &str| LimitSpec {
            conditions: (0..8).map(|n| (n.to_string(), values.clone())).collect(),
            ..limit(name, WindowSpec::Lifetime, 1)
        };
        let mut current = apply(None, vec![heavy("first")]);
        for n in 0..40 {
            current = apply(Some(&current), vec![heavy(&n.to_string())]);
        }
        let bytes: usize = current.retired.iter().map(|(limit, _)| limit.weight()).sum();
        assert!(bytes <= MAX_RETIRED_BYTES, "{bytes}");
        assert_eq!(current.retired[0].0.name, "38", "the youngest stay");
    }

    #[test]
    fn the_same_content_makes_no_revision() {
        let first = apply(None, vec![limit("a", WindowSpec::Lifetime, 1)]);
        let again = PolicyRevision::after(Some(&first), first.spec.clone(), Time::MAX, "other");
        assert_eq!(again, Applied::Unchanged);
    }
}
