//! Policies on the wire.

#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, HashMap};

use super::page::{self, Page};
use super::times::timestamp;
use crate::domain::name::{Violation, check_name};
use crate::domain::policy::{
    Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, RevisionHead, WindowSpec, check,
};
use crate::proto::v1;

/// The zone of calendar windows that name none.
const UTC: &str = "UTC";

/// The policy of a message, and everything that cannot be converted, in whose
/// place some value stands. Only its form is looked at: whether a policy makes
/// sense is for [`faults`](crate::domain::policy::check::faults) to say, whose
/// paths lack the `policy.` in front.
///
/// The faults have their paths below `policy`: kinds that are not set,
/// `unlimited: false`, numbers of enums that this version does not know, a
/// calendar unit that is unspecified, lengths that are negative, too long or no
/// whole milliseconds.
pub fn convert(policy: v1::Policy) -> (PolicySpec, Vec<Violation>) {
    let mut convert = Converter::default();
    let limits = policy.limits.into_iter().enumerate();
    let spec = PolicySpec {
        namespace: policy.namespace,
        default_plan: set(policy.default_plan),
        plans: policy.plans,
        metrics: policy
            .metrics
            .into_iter()
            .map(|(name, metric)| (name, MetricSpec { requires: metric.requires }))
            .collect(),
        limits: limits
            .map(|(n, limit)| convert.limit(&format!("policy.limits[{n}]"), limit))
            .collect(),
    };
    (spec, convert.faults)
}

/// The spec of a policy, as [`convert`] gives it.
///
/// # Errors
///
/// Everything that cannot be converted.
#[cfg(test)]
pub fn policy_to_spec(policy: v1::Policy) -> Result<PolicySpec, Vec<Violation>> {
    let (spec, faults) = convert(policy);
    if faults.is_empty() { Ok(spec) } else { Err(faults) }
}

/// The spec of a policy that somebody wants applied.
///
/// # Errors
///
/// Every fault, of form and of content, but not those of content that only
/// follow from one of form.
pub fn checked(policy: v1::Policy) -> Result<PolicySpec, Vec<Violation>> {
    let (spec, mut faults) = convert(policy);
    let of_form = faults.len();
    for fault in check::faults(&spec) {
        let field = format!("policy.{}", fault.field);
        if !faults[..of_form].iter().any(|earlier| field.starts_with(&earlier.field)) {
            faults.push(Violation::new(field, fault.message));
        }
    }
    if faults.is_empty() { Ok(spec) } else { Err(faults) }
}

/// The message of a policy. Every policy without faults is the same again after
/// [`checked`].
pub fn spec_to_policy(spec: &PolicySpec) -> v1::Policy {
    let metric = |(name, metric): (&String, &MetricSpec)| {
        (name.clone(), v1::Metric { requires: metric.requires.clone() })
    };
    v1::Policy {
        namespace: spec.namespace.clone(),
        default_plan: spec.default_plan.clone().unwrap_or_default(),
        plans: spec.plans.clone(),
        metrics: spec.metrics.iter().map(metric).collect(),
        limits: spec.limits.iter().map(limit).collect(),
    }
}

/// A `ListPolicyRevisions`: the namespace, the page, and the revision that it
/// begins below.
///
/// # Errors
///
/// Every fault of the request.
pub fn revisions(
    request: v1::ListPolicyRevisionsRequest,
) -> Result<(String, Page, Option<i64>), Vec<Violation>> {
    let v1::ListPolicyRevisionsRequest { namespace, page_size, page_token } = request;
    let mut faults = Vec::new();
    check_name("namespace", &namespace, &mut faults);
    let page = Page::new("ListPolicyRevisions", [&*namespace], page_size, &page_token, &mut faults);
    let before = page.after.as_ref().map(|revision| revision.parse());
    let before = before.transpose().unwrap_or_else(|_| {
        faults.push(page::token_fault());
        None
    });
    if faults.is_empty() { Ok((namespace, page, before)) } else { Err(faults) }
}

/// The message of a revision, and the key that leads to the next.
pub fn revision(head: RevisionHead) -> (String, v1::PolicyRevision) {
    let RevisionHead { revision, create_time, principal } = head;
    let create_time = Some(timestamp(create_time));
    (revision.to_string(), v1::PolicyRevision { revision, create_time, principal })
}

/// Text of which the empty one means none.
fn set(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Goes on after a fault with some value in its place, so that all are found;
/// none of those values leaves this module.
#[derive(Default)]
struct Converter {
    faults: Vec<Violation>,
}

impl Converter {
    fn fault<T>(&mut self, path: &str, message: impl Into<String>) -> Option<T> {
        self.faults.push(Violation::new(path, message));
        None
    }

    fn limit(&mut self, path: &str, limit: v1::Limit) -> LimitSpec {
        let window = self.window(&format!("{path}.window"), limit.window);
        let max = self.max(&format!("{path}.max"), limit.max);
        let mode = self.mode(&format!("{path}.mode"), limit.mode);
        LimitSpec {
            name: limit.name,
            metric: limit.metric,
            conditions: limit.r#where.into_iter().map(|(name, any)| (name, any.values)).collect(),
            per: limit.per,
            optional: limit.optional,
            plan_of: set(limit.plan_of),
            window: window.unwrap_or(WindowSpec::Lifetime),
            max: max.unwrap_or(MaxSpec::Same(Bound::AtMost(0))),
            mode: mode.unwrap_or_default(),
        }
    }

    fn mode(&mut self, path: &str, mode: i32) -> Option<Mode> {
        match v1::LimitMode::try_from(mode) {
            Ok(v1::LimitMode::Unspecified | v1::LimitMode::Enforced) => Some(Mode::Enforced),
            Ok(v1::LimitMode::Observed) => Some(Mode::Observed),
            Err(_) => self.fault(path, format!("{mode} is not a LimitMode")),
        }
    }

    fn max(&mut self, path: &str, max: Option<v1::Max>) -> Option<MaxSpec> {
        use v1::max::Kind;
        match max.and_then(|max| max.kind) {
            None => self.fault(path, "must be set: one of amount, unlimited and by_plan"),
            Some(Kind::Amount(max)) => Some(MaxSpec::Same(Bound::AtMost(max))),
            Some(Kind::Unlimited(unlimited)) => self.unlimited(path, unlimited).map(MaxSpec::Same),
            Some(Kind::ByPlan(by_plan)) => {
                self.by_plan(&format!("{path}.by_plan"), by_plan.plans).map(MaxSpec::ByPlan)
            }
        }
    }

    fn by_plan(
        &mut self,
        path: &str,
        plans: HashMap<String, v1::PlanMax>,
    ) -> Option<BTreeMap<String, Bound>> {
        // In order, so that the same message always gives the same faults.
        let plans: BTreeMap<String, v1::PlanMax> = plans.into_iter().collect();
        let bounds: Vec<(String, Option<Bound>)> = plans
            .into_iter()
            .map(|(plan, max)| {
                let bound = self.plan_max(&format!("{path}[{plan}]"), max);
                (plan, bound)
            })
            .collect();
        bounds.into_iter().map(|(plan, bound)| Some((plan, bound?))).collect()
    }

    fn plan_max(&mut self, path: &str, max: v1::PlanMax) -> Option<Bound> {
        use v1::plan_max::Kind;
        match max.kind {
            None => self.fault(path, "must be set: one of amount and unlimited"),
            Some(Kind::Amount(max)) => Some(Bound::AtMost(max)),
            Some(Kind::Unlimited(unlimited)) => self.unlimited(path, unlimited),
        }
    }

    fn unlimited(&mut self, path: &str, unlimited: bool) -> Option<Bound> {
        if unlimited {
            return Some(Bound::Unlimited);
        }
        self.fault(&format!("{path}.unlimited"), "must be true; for a maximum set amount")
    }
}

fn limit(spec: &LimitSpec) -> v1::Limit {
    let any_of = |(name, values): (&String, &Vec<String>)| {
        (name.clone(), v1::AnyOf { values: values.clone() })
    };
    let mode = match spec.mode {
        Mode::Enforced => v1::LimitMode::Enforced,
        Mode::Observed => v1::LimitMode::Observed,
    };
    v1::Limit {
        name: spec.name.clone(),
        metric: spec.metric.clone(),
        r#where: spec.conditions.iter().map(any_of).collect(),
        per: spec.per.clone(),
        optional: spec.optional,
        plan_of: spec.plan_of.clone().unwrap_or_default(),
        window: Some(window::window(&spec.window)),
        max: Some(v1::Max { kind: Some(max(&spec.max)) }),
        mode: mode.into(),
    }
}

fn max(spec: &MaxSpec) -> v1::max::Kind {
    use v1::max::Kind;
    match spec {
        MaxSpec::Same(Bound::AtMost(max)) => Kind::Amount(*max),
        MaxSpec::Same(Bound::Unlimited) => Kind::Unlimited(true),
        MaxSpec::ByPlan(by_plan) => {
            let plan_max = |(plan, bound): (&String, &Bound)| {
                let kind = match bound {
                    Bound::AtMost(max) => v1::plan_max::Kind::Amount(*max),
                    Bound::Unlimited => v1::plan_max::Kind::Unlimited(true),
                };
                (plan.clone(), v1::PlanMax { kind: Some(kind) })
            };
            Kind::ByPlan(v1::MaxByPlan { plans: by_plan.iter().map(plan_max).collect() })
        }
    }
}
