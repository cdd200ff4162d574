//! Policies on the wire.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use jiff::civil::Weekday;

use super::page::{self, Page};
use super::times::timestamp;
use crate::domain::name::{Violation, check_name};
use crate::domain::policy::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec,
    RevisionHead, WindowSpec, check,
};
use crate::domain::time::Span;
use crate::proto::v1;

/// The zone of calendar windows that name none.
const UTC: &str = "UTC";

/// The policy of a message, and everything that cannot be converted, in whose
/// place some value stands. Only its form is looked at: whether a policy makes
/// sense is for [`faults`](crate::domain::policy::check::faults) to say, whose
/// paths lack the `policy.` in front.
///
/// The faults have their paths below `policy`: kinds that are not set, `unlimited: false`, numbers of enums that this version
/// does not know, a calendar unit that is unspecified, lengths that are
/// negative, too long or no whole milliseconds, windows that this version does
/// not serve.
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

    fn window(&mut self, path: &str, window: Option<v1::WindowRule>) -> Option<WindowSpec> {
        use v1::window_rule::Kind;
        match window.and_then(|window| window.kind) {
            None => self.fault(path, "must be set: one of lifetime, calendar and fixed"),
            Some(Kind::Lifetime(_)) => Some(WindowSpec::Lifetime),
            Some(Kind::Calendar(calendar)) => {
                let spec = self.calendar(&format!("{path}.calendar"), calendar)?;
                Some(WindowSpec::Calendar(spec))
            }
            Some(Kind::Fixed(fixed)) => {
                let length = self.length(&format!("{path}.fixed.length"), fixed.length)?;
                Some(WindowSpec::Fixed(length))
            }
            Some(Kind::Billing(_)) => self.not_served(path, "billing"),
            Some(Kind::Rolling(_)) => self.not_served(path, "rolling"),
        }
    }

    fn not_served<T>(&mut self, path: &str, kind: &str) -> Option<T> {
        let message = format!("{kind} windows are not served by this version");
        self.fault(&format!("{path}.{kind}"), message)
    }

    fn calendar(&mut self, path: &str, calendar: v1::CalendarWindow) -> Option<CalendarSpec> {
        let unit = self.unit(&format!("{path}.unit"), calendar.unit);
        let week_start = self.weekday(&format!("{path}.week_start"), calendar.week_start);
        let time_zone = set(calendar.time_zone).unwrap_or_else(|| UTC.to_owned());
        Some(CalendarSpec { unit: unit?, time_zone, week_start })
    }

    fn unit(&mut self, path: &str, unit: i32) -> Option<CalendarUnit> {
        match v1::CalendarUnit::try_from(unit) {
            Ok(v1::CalendarUnit::Unspecified) => {
                self.fault(path, "must be set: hour, day, week, month or year")
            }
            Ok(v1::CalendarUnit::Hour) => Some(CalendarUnit::Hour),
            Ok(v1::CalendarUnit::Day) => Some(CalendarUnit::Day),
            Ok(v1::CalendarUnit::Week) => Some(CalendarUnit::Week),
            Ok(v1::CalendarUnit::Month) => Some(CalendarUnit::Month),
            Ok(v1::CalendarUnit::Year) => Some(CalendarUnit::Year),
            Err(_) => self.fault(path, format!("{unit} is not a CalendarUnit")),
        }
    }

    fn weekday(&mut self, path: &str, day: i32) -> Option<Weekday> {
        match v1::Weekday::try_from(day) {
            Ok(v1::Weekday::Unspecified) => None,
            Ok(v1::Weekday::Monday) => Some(Weekday::Monday),
            Ok(v1::Weekday::Tuesday) => Some(Weekday::Tuesday),
            Ok(v1::Weekday::Wednesday) => Some(Weekday::Wednesday),
            Ok(v1::Weekday::Thursday) => Some(Weekday::Thursday),
            Ok(v1::Weekday::Friday) => Some(Weekday::Friday),
            Ok(v1::Weekday::Saturday) => Some(Weekday::Saturday),
            Ok(v1::Weekday::Sunday) => Some(Weekday::Sunday),
            Err(_) => self.fault(path, format!("{day} is not a Weekday")),
        }
    }

    fn length(&mut self, path: &str, length: Option<prost_types::Duration>) -> Option<Span> {
        let Some(prost_types::Duration { seconds, nanos }) = length else {
            return self.fault(path, "must be set");
        };
        if seconds < 0 || nanos < 0 {
            return self.fault(path, "must not be negative");
        }
        if nanos > 999_999_999 {
            return self.fault(path, format!("has {nanos} nanos; at most 999999999 are allowed"));
        }
        if nanos % 1_000_000 != 0 {
            return self.fault(path, "must be whole milliseconds");
        }
        let millis =
            seconds.checked_mul(1000).and_then(|ms| ms.checked_add(i64::from(nanos / 1_000_000)));
        match millis {
            Some(millis) => Some(Span::from_millis(millis)),
            None => self.fault(path, "is longer than 2^63-1 ms"),
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
        window: Some(v1::WindowRule { kind: Some(window(&spec.window)) }),
        max: Some(v1::Max { kind: Some(max(&spec.max)) }),
        mode: mode.into(),
    }
}

fn window(spec: &WindowSpec) -> v1::window_rule::Kind {
    use v1::window_rule::Kind;
    match spec {
        WindowSpec::Lifetime => Kind::Lifetime(v1::LifetimeWindow {}),
        WindowSpec::Calendar(spec) => Kind::Calendar(v1::CalendarWindow {
            unit: unit(spec.unit).into(),
            time_zone: spec.time_zone.clone(),
            week_start: spec.week_start.map_or(v1::Weekday::Unspecified, weekday).into(),
        }),
        WindowSpec::Fixed(length) => {
            let millis = length.as_millis();
            let nanos = i32::try_from(millis % 1000).unwrap_or_default() * 1_000_000;
            let length = prost_types::Duration { seconds: millis / 1000, nanos };
            Kind::Fixed(v1::FixedWindow { length: Some(length) })
        }
    }
}

fn unit(unit: CalendarUnit) -> v1::CalendarUnit {
    match unit {
        CalendarUnit::Hour => v1::CalendarUnit::Hour,
        CalendarUnit::Day => v1::CalendarUnit::Day,
        CalendarUnit::Week => v1::CalendarUnit::Week,
        CalendarUnit::Month => v1::CalendarUnit::Month,
        CalendarUnit::Year => v1::CalendarUnit::Year,
    }
}

fn weekday(day: Weekday) -> v1::Weekday {
    match day {
        Weekday::Monday => v1::Weekday::Monday,
        Weekday::Tuesday => v1::Weekday::Tuesday,
        Weekday::Wednesday => v1::Weekday::Wednesday,
        Weekday::Thursday => v1::Weekday::Thursday,
        Weekday::Friday => v1::Weekday::Friday,
        Weekday::Saturday => v1::Weekday::Saturday,
        Weekday::Sunday => v1::Weekday::Sunday,
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
