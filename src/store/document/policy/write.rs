//! From a policy to its written form.

use std::collections::BTreeMap;

use super::tree::Tree;
use super::words::{LIFETIME, MODES, UNITS, UNLIMITED, WEEKDAYS, word};
use crate::domain::policy::{
    Bound, CalendarSpec, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
use crate::domain::window::DEFAULT_BUCKETS;

/// The policy as it is written.
pub fn policy(spec: &PolicySpec) -> Tree {
    let mut map = Vec::new();
    put(&mut map, "namespace", spec.namespace.as_str().into());
    if let Some(plan) = &spec.default_plan {
        put(&mut map, "default_plan", plan.as_str().into());
    }
    if !spec.plans.is_empty() {
        put(&mut map, "plans", texts(&spec.plans));
    }
    put(&mut map, "metrics", by_name(&spec.metrics, metric));
    put(&mut map, "limits", Tree::List(spec.limits.iter().map(limit).collect()));
    Tree::Map(map)
}

fn metric(spec: &MetricSpec) -> Tree {
    let mut map = Vec::new();
    if !spec.requires.is_empty() {
        put(&mut map, "requires", texts(&spec.requires));
    }
    Tree::Map(map)
}

fn limit(spec: &LimitSpec) -> Tree {
    let mut map = Vec::new();
    put(&mut map, "name", spec.name.as_str().into());
    put(&mut map, "metric", spec.metric.as_str().into());
    if !spec.conditions.is_empty() {
        put(&mut map, "where", by_name(&spec.conditions, |values| texts(values)));
    }
    if !spec.per.is_empty() {
        put(&mut map, "per", texts(&spec.per));
    }
    if spec.optional {
        put(&mut map, "optional", Tree::Bool(true));
    }
    if let Some(dimension) = &spec.plan_of {
        put(&mut map, "plan_of", dimension.as_str().into());
    }
    put(&mut map, "window", window(&spec.window));
    put(&mut map, "max", max(&spec.max));
    if spec.mode != Mode::default() {
        put(&mut map, "mode", word(&MODES, &spec.mode).into());
    }
    Tree::Map(map)
}

fn window(spec: &WindowSpec) -> Tree {
    match spec {
        WindowSpec::Lifetime => LIFETIME.into(),
        WindowSpec::Calendar(spec) => only("calendar", calendar(spec)),
        WindowSpec::Fixed(length) => {
            only("fixed", only("length", length.to_string().as_str().into()))
        }
        WindowSpec::Billing { subject, without_period } => {
            let mut map = Vec::new();
            if let Some(dimension) = subject {
                put(&mut map, "subject", dimension.as_str().into());
            }
            if let Some(spec) = without_period {
                put(&mut map, "without_period", window(spec));
            }
            only("billing", Tree::Map(map))
        }
        WindowSpec::Rolling { length, buckets } => {
            let mut map = Vec::new();
            put(&mut map, "length", length.to_string().as_str().into());
            if *buckets != DEFAULT_BUCKETS {
                put(&mut map, "buckets", Tree::Int(*buckets));
            }
            only("rolling", Tree::Map(map))
        }
    }
}

fn calendar(spec: &CalendarSpec) -> Tree {
    let mut map = Vec::new();
    put(&mut map, "unit", word(&UNITS, &spec.unit).into());
    // Written out even where it is the default: which day it is depends on it.
    put(&mut map, "time_zone", spec.time_zone.as_str().into());
    if let Some(day) = &spec.week_start {
        put(&mut map, "week_start", word(&WEEKDAYS, day).into());
    }
    Tree::Map(map)
}

fn max(spec: &MaxSpec) -> Tree {
    match spec {
        MaxSpec::Same(one) => bound(one),
        MaxSpec::ByPlan(by_plan) => only("by_plan", by_name(by_plan, bound)),
    }
}

fn bound(bound: &Bound) -> Tree {
    match bound {
        Bound::AtMost(max) => Tree::Int(*max),
        Bound::Unlimited => UNLIMITED.into(),
    }
}

fn put(map: &mut Vec<(String, Tree)>, key: &str, value: Tree) {
    map.push((key.to_owned(), value));
}

fn only(key: &str, value: Tree) -> Tree {
    Tree::Map(vec![(key.to_owned(), value)])
}

fn texts(texts: &[String]) -> Tree {
    Tree::List(texts.iter().map(|text| text.as_str().into()).collect())
}

fn by_name<T>(map: &BTreeMap<String, T>, write: impl Fn(&T) -> Tree) -> Tree {
    Tree::Map(map.iter().map(|(name, value)| (name.clone(), write(value))).collect())
}
