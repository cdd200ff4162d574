//! A policy made ready: which limits apply to an item, and what they allow.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::index::Index;
use super::revision::PolicyRevision;
use super::spec::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, Mode, WindowSpec,
};
use crate::domain::name::{Dimensions, SubjectKey, Violation, quoted};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::ItemRequest;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::domain::window::{Calendar, Rolling, Unit, WindowRule, time_zone};

/// The rules of one namespace, in force.
#[derive(Debug)]
pub struct Policy {
    /// What was applied.
    pub source: PolicyRevision,
    limits: Vec<Limit>,
    by_name: HashMap<String, usize>,
    by_metric: HashMap<String, Metered>,
}

/// A metric, and where its limits are found.
#[derive(Debug)]
struct Metered {
    requires: Vec<String>,
    limits: Index,
}

/// One limit, in force.
#[derive(Debug)]
pub struct Limit {
    /// What was written.
    pub spec: LimitSpec,
    /// Which definition it is in.
    pub generation: i64,
    /// How its windows lie.
    pub window: WindowRule,
}

impl Limit {
    /// Whether it refuses.
    pub fn enforced(&self) -> bool {
        self.spec.mode == Mode::Enforced
    }

    /// Refuses a key that does not name just what the limit counts by.
    ///
    /// # Errors
    ///
    /// It does not; the field is called `key`.
    pub fn check_key(&self, key: &Dimensions) -> Result<(), Refusal> {
        let per = &self.spec.per;
        if key.len() == per.len() && per.iter().all(|name| key.contains_key(name)) {
            return Ok(());
        }
        let names: Vec<String> = per.iter().map(|name| quoted(name)).collect();
        let message = match names.as_slice() {
            [] => "must be empty: the limit has one counter for all".to_owned(),
            names => format!("must name just what the limit counts by: {}", names.join(", ")),
        };
        Err(Refusal::invalid("key", message))
    }

    fn applies(&self, dimensions: &Dimensions) -> bool {
        let holds = |(name, any): (&String, &Vec<String>)| {
            dimensions.get(name).is_some_and(|value| any.contains(value))
        };
        self.spec.conditions.iter().all(holds)
            && self.spec.dimensions().all(|name| dimensions.contains_key(name))
    }

    fn key(&self, dimensions: &Dimensions) -> Dimensions {
        let pair = |name: &String| Some((name.clone(), dimensions.get(name)?.clone()));
        self.spec.per.iter().filter_map(pair).collect()
    }
}

/// A limit that applies to some items, with the counter key that they share.
#[derive(Debug)]
pub struct Match<'p> {
    /// The limit.
    pub limit: &'p Limit,
    /// The values of its `per` dimensions.
    pub key: Dimensions,
    /// The items, by position.
    pub items: Vec<usize>,
    /// Units asked for, all items summed.
    pub amount: i64,
    /// The subjects whose plan and overrides rule; more than one only where
    /// items of different subjects meet on one counter.
    pub subjects: Vec<SubjectKey>,
}

impl Policy {
    /// Makes a checked revision ready.
    ///
    /// # Errors
    ///
    /// The faults, where the revision was stored by hand and is not a good one.
    pub fn new(source: PolicyRevision) -> Result<Self, Vec<Violation>> {
        let faults = super::check::faults(&source.spec);
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut limits = Vec::with_capacity(source.spec.limits.len());
        let mut of_metric: HashMap<&String, Vec<(usize, &LimitSpec)>> = HashMap::new();
        for spec in &source.spec.limits {
            of_metric.entry(&spec.metric).or_default().push((limits.len(), spec));
            limits.push(Limit {
                generation: source.generations.get(&spec.name).copied().unwrap_or(1),
                window: window_rule(&spec.window)?,
                spec: spec.clone(),
            });
        }
        let metered = |(name, metric): (&String, &MetricSpec)| {
            let limits = of_metric.get(name).map_or(&[][..], Vec::as_slice);
            let limits = Index::new(metric, limits);
            (name.clone(), Metered { requires: metric.requires.clone(), limits })
        };
        let by_metric = source.spec.metrics.iter().map(metered).collect();
        let name = |(n, limit): (usize, &Limit)| (limit.spec.name.clone(), n);
        let by_name = limits.iter().enumerate().map(name).collect();
        Ok(Self { source, limits, by_name, by_metric })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.source.spec.namespace
    }

    /// The limits, in the order of the policy.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limit of that name.
    pub fn present_limit(&self, name: &str) -> Option<&Limit> {
        Some(&self.limits[*self.by_name.get(name)?])
    }

    /// The limit of that name, if it still counts as it did in `generation`.
    pub fn limit(&self, name: &str, generation: i64) -> Option<&Limit> {
        self.present_limit(name).filter(|limit| limit.generation == generation)
    }

    /// Every limit that applies to `items`, each with one entry per counter
    /// key, in the order of the policy.
    ///
    /// # Errors
    ///
    /// An unknown metric, a dimension that its metric requires and the item
    /// lacks, an item that no limit governs, amounts that add up to more than
    /// an int64.
    pub fn matches(&self, items: &[ItemRequest]) -> Result<Vec<Match<'_>>, Refusal> {
        let mut found: BTreeMap<(usize, Dimensions), Match<'_>> = BTreeMap::new();
        let mut lacking = Vec::new();
        for (n, item) in items.iter().enumerate() {
            let Some(metric) = self.by_metric.get(&item.metric) else {
                return Err(Refusal::MetricNotFound { metric: item.metric.clone() });
            };
            for name in metric.requires.iter().filter(|name| !item.dimensions.contains_key(*name)) {
                let message = format!("is required by metric {}", quoted(&item.metric));
                lacking.push(Violation::new(format!("items[{n}].dimensions[{name}]"), message));
            }
            let mut governed = false;
            for index in metric.limits.candidates(&item.dimensions) {
                let limit = &self.limits[index];
                if limit.applies(&item.dimensions) {
                    governed = true;
                    let key = limit.key(&item.dimensions);
                    let entry = found.entry((index, key)).or_insert_with_key(|(_, key)| Match {
                        limit,
                        key: key.clone(),
                        items: Vec::new(),
                        amount: 0,
                        subjects: Vec::new(),
                    });
                    entry.add(n, item, self.namespace())?;
                }
            }
            if !governed && lacking.is_empty() {
                return Err(Refusal::NoLimitApplies { item: n, metric: item.metric.clone() });
            }
        }
        if lacking.is_empty() {
            Ok(found.into_values().collect())
        } else {
            Err(Refusal::InvalidFields(lacking))
        }
    }

    /// What `limit` allows `subject` at `now`.
    ///
    /// # Errors
    ///
    /// The subject has no plan that the limit names a max for.
    pub fn bound(
        &self,
        limit: &Limit,
        key: &SubjectKey,
        subject: Option<&Subject>,
        now: Time,
    ) -> Result<Bound, Refusal> {
        let plan = match subject {
            Some(subject) if !subject.plan.is_empty() => Some(&subject.plan),
            _ => self.source.spec.default_plan.as_ref(),
        };
        let general = match &limit.spec.max {
            MaxSpec::Same(bound) => Some(*bound),
            MaxSpec::ByPlan(by_plan) => plan.and_then(|plan| by_plan.get(plan)).copied(),
        };
        let name = &limit.spec.name;
        let bound = match subject {
            Some(subject) => subject.overridden(name, general, now),
            None => general,
        };
        bound.ok_or_else(|| Refusal::UnknownPlan {
            limit: name.clone(),
            subject: subject_name(key),
            plan: plan.cloned().unwrap_or_default(),
        })
    }

    /// Every subject that `items` name: by a dimension that their metric
    /// requires, or by one that a matching limit names.
    pub fn named_subjects(&self, items: &[ItemRequest], matches: &[Match<'_>]) -> Vec<SubjectKey> {
        let mut named = BTreeSet::new();
        for item in items {
            let required = self.by_metric.get(&item.metric);
            for kind in required.iter().flat_map(|metric| &metric.requires) {
                named.extend(item.dimensions.get(kind).map(|id| (kind.as_str(), id)));
            }
        }
        for found in matches {
            for &item in &found.items {
                for kind in found.limit.spec.dimensions() {
                    named.extend(items[item].dimensions.get(kind).map(|id| (kind, id)));
                }
            }
        }
        let key = |(kind, id): (&str, &String)| SubjectKey::new(self.namespace(), kind, id);
        named.into_iter().map(key).collect()
    }

    /// The subject whose billing periods are the windows of a counter of
    /// `limit` with that key; `None` where its windows are none.
    pub fn billing_subject(&self, limit: &Limit, key: &Dimensions) -> Option<SubjectKey> {
        let kind = limit.spec.billing_dimension()?;
        Some(SubjectKey::new(self.namespace(), kind, key.get(kind)?))
    }

    /// The subject that rules `limit` for an item with these dimensions.
    pub fn subject(&self, limit: &Limit, dimensions: &Dimensions) -> Option<SubjectKey> {
        let kind = limit.spec.subject_dimension()?;
        Some(SubjectKey::new(self.namespace(), kind, dimensions.get(kind)?))
    }
}

impl Match<'_> {
    fn add(&mut self, n: usize, item: &ItemRequest, namespace: &str) -> Result<(), Refusal> {
        let Some(amount) = self.amount.checked_add(item.amount) else {
            let message = format!(
                "the amounts on limit {} add up to more than 2^63-1",
                quoted(&self.limit.spec.name)
            );
            return Err(Refusal::invalid("items", message));
        };
        self.amount = amount;
        self.items.push(n);
        if let Some(kind) = self.limit.spec.subject_dimension()
            && let Some(id) = item.dimensions.get(kind)
        {
            let subject = SubjectKey::new(namespace, kind, id);
            if !self.subjects.contains(&subject) {
                self.subjects.push(subject);
            }
        }
        Ok(())
    }
}

/// A subject's key as `kind/id`, for messages.
pub fn subject_name(key: &SubjectKey) -> String {
    crate::domain::name::split_key(key.as_str())[1..].join("/")
}

fn window_rule(spec: &WindowSpec) -> Result<WindowRule, Vec<Violation>> {
    Ok(match spec {
        WindowSpec::Lifetime => WindowRule::Lifetime,
        WindowSpec::Fixed(length) => WindowRule::Fixed(*length),
        WindowSpec::Rolling { length, buckets } => {
            WindowRule::Rolling(Rolling::new(*length, *buckets))
        }
        WindowSpec::Billing { without_period, .. } => {
            let without_period = without_period.as_deref().map(window_rule).transpose()?;
            WindowRule::Billing { without_period: without_period.map(Box::new) }
        }
        WindowSpec::Calendar(CalendarSpec { unit, time_zone: name, week_start }) => {
            let unit = match unit {
                CalendarUnit::Hour => Unit::Hour,
                CalendarUnit::Day => Unit::Day,
                CalendarUnit::Week => {
                    Unit::Week(week_start.unwrap_or(jiff::civil::Weekday::Monday))
                }
                CalendarUnit::Month => Unit::Month,
                CalendarUnit::Year => Unit::Year,
            };
            let zone = time_zone(name)
                .ok_or_else(|| vec![Violation::new("time_zone", "is not an IANA time zone")])?;
            WindowRule::Calendar(Calendar::new(unit, zone))
        }
    })
}
