//! Policies, as a caller of the API builds them.

use quota_authority::domain::time::Span;

use super::calls::duration;
use super::v1;

/// A policy being made.
#[derive(Clone, Debug, Default)]
pub struct Rules(pub v1::Policy);

impl Rules {
    pub fn new() -> Self {
        Self::default()
    }

    /// One metric `units` of a `user`, and limits on it.
    pub fn of_units(limits: impl IntoIterator<Item = LimitRule>) -> Self {
        Self::new().metric("units", &["user"]).limits(limits)
    }

    pub fn metric(mut self, name: &str, requires: &[&str]) -> Self {
        self.0.metrics.insert(name.to_owned(), v1::Metric { requires: owned(requires) });
        self
    }

    pub fn limits(mut self, limits: impl IntoIterator<Item = LimitRule>) -> Self {
        self.0.limits.extend(limits.into_iter().map(|limit| limit.0));
        self
    }

    pub fn plans(mut self, plans: &[&str], default: &str) -> Self {
        self.0.plans = owned(plans);
        default.clone_into(&mut self.0.default_plan);
        self
    }
}

/// A limit being made: `lifetime` and enforced unless told otherwise.
#[derive(Clone, Debug)]
pub struct LimitRule(pub v1::Limit);

/// A limit of that name on that metric, without a max yet.
pub fn limit(name: &str, metric: &str) -> LimitRule {
    let lifetime = v1::window_rule::Kind::Lifetime(v1::LifetimeWindow {});
    LimitRule(v1::Limit {
        name: name.to_owned(),
        metric: metric.to_owned(),
        window: Some(v1::WindowRule { kind: Some(lifetime) }),
        ..v1::Limit::default()
    })
}

impl LimitRule {
    pub fn per(mut self, dimensions: &[&str]) -> Self {
        self.0.per = owned(dimensions);
        self
    }

    pub fn only(mut self, dimension: &str, values: &[&str]) -> Self {
        self.0.r#where.insert(dimension.to_owned(), v1::AnyOf { values: owned(values) });
        self
    }

    pub fn max(self, max: i64) -> Self {
        self.bound(v1::max::Kind::Amount(max))
    }

    pub fn unlimited(self) -> Self {
        self.bound(v1::max::Kind::Unlimited(true))
    }

    pub fn by_plan(self, plans: &[(&str, i64)]) -> Self {
        let plan = |&(name, max): &(&str, i64)| {
            (name.to_owned(), v1::PlanMax { kind: Some(v1::plan_max::Kind::Amount(max)) })
        };
        self.bound(v1::max::Kind::ByPlan(v1::MaxByPlan { plans: plans.iter().map(plan).collect() }))
    }

    pub fn fixed(self, length: Span) -> Self {
        let length = Some(duration(length));
        self.window(v1::window_rule::Kind::Fixed(v1::FixedWindow { length }))
    }

    pub fn calendar(self, unit: v1::CalendarUnit, time_zone: &str) -> Self {
        self.window(v1::window_rule::Kind::Calendar(v1::CalendarWindow {
            unit: unit.into(),
            time_zone: time_zone.to_owned(),
            week_start: v1::Weekday::Unspecified.into(),
        }))
    }

    pub fn week(self, start: v1::Weekday) -> Self {
        self.window(v1::window_rule::Kind::Calendar(v1::CalendarWindow {
            unit: v1::CalendarUnit::Week.into(),
            time_zone: "UTC".to_owned(),
            week_start: start.into(),
        }))
    }

    /// The billing periods of the subject that carries the plan.
    pub fn billing(self) -> Self {
        self.billing_of("", None)
    }

    /// The billing periods of that dimension's subject, and what holds for one
    /// that has none.
    pub fn billing_of(self, subject: &str, without: Option<v1::window_rule::Kind>) -> Self {
        let without_period = without.map(|kind| Box::new(v1::WindowRule { kind: Some(kind) }));
        let subject = subject.to_owned();
        let billing = v1::BillingWindow { subject, without_period };
        self.window(v1::window_rule::Kind::Billing(Box::new(billing)))
    }

    /// The span that ends now; 0 buckets are as many as there are by default.
    pub fn rolling(self, length: Span, buckets: i32) -> Self {
        let length = Some(duration(length));
        self.window(v1::window_rule::Kind::Rolling(v1::RollingWindow { length, buckets }))
    }

    pub fn plan_of(mut self, dimension: &str) -> Self {
        dimension.clone_into(&mut self.0.plan_of);
        self
    }

    pub fn optional(mut self) -> Self {
        self.0.optional = true;
        self
    }

    pub fn observed(mut self) -> Self {
        self.0.mode = v1::LimitMode::Observed.into();
        self
    }

    pub fn bound(mut self, kind: v1::max::Kind) -> Self {
        self.0.max = Some(v1::Max { kind: Some(kind) });
        self
    }

    pub fn window(mut self, kind: v1::window_rule::Kind) -> Self {
        self.0.window = Some(v1::WindowRule { kind: Some(kind) });
        self
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}
