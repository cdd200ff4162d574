//! Everything that can be wrong with a policy.

use std::collections::{BTreeSet, HashSet};

use super::spec::{Bound, CalendarUnit, LimitSpec, MaxSpec, PolicySpec, WindowSpec};
use crate::domain::name::{MAX_MAP_ENTRIES, Violation, check_name, quoted};
use crate::domain::time::Span;
use crate::domain::window::{MAX_BUCKETS, MAX_LENGTH, MIN_LENGTH, time_zone};

/// The most limits of one policy.
pub const MAX_LIMITS: usize = 1000;
/// The most plans of one policy.
pub const MAX_PLANS: usize = 64;
/// The most values of one `where` condition.
pub const MAX_VALUES: usize = 64;

/// Every fault of `spec`, with the path of the field; empty for a good one.
pub fn faults(spec: &PolicySpec) -> Vec<Violation> {
    let mut faults = Faults(Vec::new());
    check_name("namespace", &spec.namespace, &mut faults.0);
    plans(spec, &mut faults);
    metrics(spec, &mut faults);
    if spec.limits.is_empty() {
        faults.add("limits", "must name at least one limit; without any, every call is refused");
    }
    faults.at_most("limits", spec.limits.len(), MAX_LIMITS);
    let mut names = HashSet::new();
    for (n, limit) in spec.limits.iter().enumerate() {
        let path = format!("limits[{n}]");
        check_name(&format!("{path}.name"), &limit.name, &mut faults.0);
        if !names.insert(&limit.name) {
            faults.add(format!("{path}.name"), format!("{} is used twice", quoted(&limit.name)));
        }
        limit_faults(spec, limit, &path, &mut faults);
    }
    faults.0
}

struct Faults(Vec<Violation>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Violation::new(field, message));
    }

    fn at_most(&mut self, field: &str, count: usize, most: usize) {
        if count > most {
            self.add(field, format!("has {count} entries; at most {most} are allowed"));
        }
    }

    fn distinct(&mut self, field: &str, names: &[String]) {
        let mut seen = HashSet::new();
        for (n, name) in names.iter().enumerate() {
            check_name(&format!("{field}[{n}]"), name, &mut self.0);
            if !seen.insert(name) {
                self.add(format!("{field}[{n}]"), format!("{} stands here twice", quoted(name)));
            }
        }
    }
}

fn plans(spec: &PolicySpec, faults: &mut Faults) {
    faults.at_most("plans", spec.plans.len(), MAX_PLANS);
    faults.distinct("plans", &spec.plans);
    if let Some(plan) = &spec.default_plan
        && !spec.plans.contains(plan)
    {
        faults.add("default_plan", format!("{} is not one of plans", quoted(plan)));
    }
}

fn metrics(spec: &PolicySpec, faults: &mut Faults) {
    if spec.metrics.is_empty() {
        faults.add("metrics", "must name at least one metric");
    }
    for (name, metric) in &spec.metrics {
        let path = format!("metrics[{name}]");
        check_name(&path, name, &mut faults.0);
        let requires = format!("{path}.requires");
        faults.at_most(&requires, metric.requires.len(), MAX_MAP_ENTRIES);
        faults.distinct(&requires, &metric.requires);
    }
}

fn limit_faults(spec: &PolicySpec, limit: &LimitSpec, path: &str, faults: &mut Faults) {
    faults.at_most(&format!("{path}.per"), limit.per.len(), MAX_MAP_ENTRIES);
    faults.distinct(&format!("{path}.per"), &limit.per);
    faults.at_most(&format!("{path}.where"), limit.conditions.len(), MAX_MAP_ENTRIES);
    for (dimension, values) in &limit.conditions {
        let field = format!("{path}.where[{dimension}]");
        check_name(&field, dimension, &mut faults.0);
        faults.at_most(&field, values.len(), MAX_VALUES);
        faults.distinct(&field, values);
        if values.is_empty() {
            faults.add(&field, "must list at least one value; with none the limit never applies");
        }
    }
    if let Some(dimension) = &limit.plan_of {
        check_name(&format!("{path}.plan_of"), dimension, &mut faults.0);
    }
    match spec.metrics.get(&limit.metric) {
        None => faults.add(
            format!("{path}.metric"),
            format!("{} is not one of metrics", quoted(&limit.metric)),
        ),
        Some(metric) if !limit.optional => {
            let named: BTreeSet<&str> = limit.dimensions().collect();
            for dimension in named {
                if !metric.requires.iter().any(|required| required == dimension) {
                    let message = format!(
                        "the limit names dimension {}, which metric {} does not require: a call \
                         could escape the limit by leaving it out. Add it to requires, or say \
                         optional: true",
                        quoted(dimension),
                        quoted(&limit.metric)
                    );
                    faults.add(path, message);
                }
            }
        }
        Some(_) => {}
    }
    window_faults(limit, &limit.window, &format!("{path}.window"), faults);
    max_faults(spec, limit, &format!("{path}.max"), faults);
}

fn window_faults(limit: &LimitSpec, window: &WindowSpec, path: &str, faults: &mut Faults) {
    match window {
        WindowSpec::Lifetime => {}
        WindowSpec::Fixed(length) => length_faults(*length, &format!("{path}.fixed"), faults),
        WindowSpec::Rolling { length, buckets } => {
            let path = format!("{path}.rolling");
            length_faults(*length, &path, faults);
            if !(1..=MAX_BUCKETS).contains(buckets) {
                let message = format!("must be 1 to {MAX_BUCKETS}");
                faults.add(format!("{path}.buckets"), message);
            }
        }
        WindowSpec::Billing { without_period, .. } => {
            billing_faults(limit, &format!("{path}.billing"), faults);
            match without_period.as_deref() {
                None => {}
                Some(WindowSpec::Billing { .. } | WindowSpec::Rolling { .. }) => {
                    let message = "must be lifetime, calendar or fixed";
                    faults.add(format!("{path}.billing.without_period"), message);
                }
                Some(window) => {
                    let path = format!("{path}.billing.without_period");
                    window_faults(limit, window, &path, faults);
                }
            }
        }
        WindowSpec::Calendar(calendar) => {
            if time_zone(&calendar.time_zone).is_none() {
                let message = format!("{} is not an IANA time zone", quoted(&calendar.time_zone));
                faults.add(format!("{path}.calendar.time_zone"), message);
            }
            if calendar.week_start.is_some() && calendar.unit != CalendarUnit::Week {
                let message = "only goes with unit: week";
                faults.add(format!("{path}.calendar.week_start"), message);
            }
        }
    }
}

fn length_faults(length: Span, path: &str, faults: &mut Faults) {
    if length < MIN_LENGTH || length > MAX_LENGTH {
        let message = format!("must be {MIN_LENGTH} to {MAX_LENGTH}");
        faults.add(format!("{path}.length"), message);
    }
}

/// A counter lies in one window, so its key must tell whose period that is.
fn billing_faults(limit: &LimitSpec, path: &str, faults: &mut Faults) {
    let field = format!("{path}.subject");
    match limit.billing_dimension() {
        None => faults.add(field, "must be named, since per does not name exactly one dimension"),
        Some(dimension) if !limit.per.iter().any(|named| named == dimension) => {
            let message = format!(
                "{} is not one of per: each counter needs the billing period of one subject",
                quoted(dimension)
            );
            faults.add(field, message);
        }
        Some(_) => {}
    }
}

fn max_faults(spec: &PolicySpec, limit: &LimitSpec, path: &str, faults: &mut Faults) {
    let mut bound_fault = |field: &str, bound: &Bound| {
        if matches!(bound, Bound::AtMost(max) if *max < 0) {
            faults.add(field, "must be 0 to 2^63-1, or unlimited in so many words");
        }
    };
    let by_plan = match &limit.max {
        MaxSpec::Same(bound) => return bound_fault(path, bound),
        MaxSpec::ByPlan(by_plan) => by_plan,
    };
    for (plan, bound) in by_plan {
        bound_fault(&format!("{path}.by_plan[{plan}]"), bound);
    }
    for plan in by_plan.keys().filter(|plan| !spec.plans.contains(plan)) {
        let message = format!("{} is not one of plans", quoted(plan));
        faults.add(format!("{path}.by_plan[{plan}]"), message);
    }
    for plan in spec.plans.iter().filter(|plan| !by_plan.contains_key(*plan)) {
        let message = format!("lacks plan {}: write its max, 0 or unlimited", quoted(plan));
        faults.add(format!("{path}.by_plan"), message);
    }
    if limit.subject_dimension().is_none() {
        let message = "a max by plan needs plan_of, since per does not name exactly one dimension";
        faults.add(path, message);
    }
}
