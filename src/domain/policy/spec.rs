//! A policy as somebody wrote it.

use std::collections::BTreeMap;

use jiff::civil::Weekday;

use crate::domain::time::Span;

/// All rules of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// The namespace.
    pub namespace: String,
    /// The plan of subjects never seen; `None` refuses them.
    pub default_plan: Option<String>,
    /// Every plan that a subject may be on.
    pub plans: Vec<String>,
    /// What is counted.
    pub metrics: BTreeMap<String, MetricSpec>,
    /// The rules.
    pub limits: Vec<LimitSpec>,
}

/// Something that is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricSpec {
    /// Dimensions that every call must carry.
    pub requires: Vec<String>,
}

/// At most so many units of a metric, for each key, within one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// Unique in the policy.
    pub name: String,
    /// What it counts.
    pub metric: String,
    /// Applies only where all of these dimensions have one of the values.
    pub conditions: BTreeMap<String, Vec<String>>,
    /// One counter for each combination of these dimensions.
    pub per: Vec<String>,
    /// Does not apply where the call lacks a dimension that it names.
    pub optional: bool,
    /// The dimension whose subject carries the plan, where it is not the only
    /// one of `per`.
    pub plan_of: Option<String>,
    /// The span within which units are counted.
    pub window: WindowSpec,
    /// How much is allowed.
    pub max: MaxSpec,
    /// Whether it refuses or only counts.
    pub mode: Mode,
}

impl LimitSpec {
    /// The dimension whose subject carries plan and overrides.
    pub fn subject_dimension(&self) -> Option<&str> {
        match (&self.plan_of, self.per.as_slice()) {
            (Some(dimension), _) => Some(dimension),
            (None, [only]) => Some(only),
            _ => None,
        }
    }

    /// The dimension whose subject's billing periods are the windows, where
    /// the windows are billing periods.
    pub fn billing_dimension(&self) -> Option<&str> {
        match &self.window {
            WindowSpec::Billing { subject: Some(dimension), .. } => Some(dimension),
            WindowSpec::Billing { subject: None, .. } => self.subject_dimension(),
            _ => None,
        }
    }

    /// Every dimension that it names.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let named = self.per.iter().chain(&self.plan_of).chain(self.conditions.keys());
        named.map(String::as_str).chain(self.billing_dimension())
    }

    /// About how many bytes it takes to write it down.
    pub fn weight(&self) -> usize {
        let plans = match &self.max {
            MaxSpec::Same(_) => 0,
            MaxSpec::ByPlan(by_plan) => by_plan.keys().map(|plan| plan.len() + 16).sum(),
        };
        let values = self.conditions.values().flatten().map(|value| value.len() + 8);
        let names = self.dimensions().chain([self.name.as_str(), self.metric.as_str()]);
        256 + plans + values.sum::<usize>() + names.map(str::len).sum::<usize>()
    }

    /// Whether both count the same: if not, the one that replaces the other
    /// starts fresh counters.
    pub fn counts_like(&self, other: &Self) -> bool {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names
        };
        let conditions = |limit: &Self| -> BTreeMap<String, Vec<String>> {
            limit.conditions.iter().map(|(name, any)| (name.clone(), sorted(any))).collect()
        };
        self.metric == other.metric
            && conditions(self) == conditions(other)
            && sorted(&self.per) == sorted(&other.per)
            && self.billing_dimension() == other.billing_dimension()
            && self.window.lies_like(&other.window)
    }
}

/// How a limit's windows lie in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowSpec {
    /// For ever.
    Lifetime,
    /// A calendar unit.
    Calendar(CalendarSpec),
    /// Spans of this length, aligned to the Unix epoch.
    Fixed(Span),
    /// The billing periods of a subject.
    Billing {
        /// The dimension whose subject has them; `None` means the one that
        /// carries the plan.
        subject: Option<String>,
        /// What holds for subjects that have no periods; `None` refuses them.
        without_period: Option<Box<WindowSpec>>,
    },
    /// The span of this length that ends now.
    Rolling {
        /// How far back it reaches.
        length: Span,
        /// How finely it is divided.
        buckets: i64,
    },
}

impl WindowSpec {
    /// Whether both mean the same windows, whoever's billing periods they are:
    /// a week that names no first day starts on Monday, and the names of zones
    /// may be written small.
    fn lies_like(&self, other: &Self) -> bool {
        self.plain() == other.plain()
    }

    fn plain(&self) -> Self {
        match self {
            Self::Calendar(CalendarSpec { unit, time_zone, week_start }) => {
                let monday = (*unit == CalendarUnit::Week).then_some(Weekday::Monday);
                let (time_zone, week_start) = (time_zone.to_lowercase(), week_start.or(monday));
                Self::Calendar(CalendarSpec { unit: *unit, time_zone, week_start })
            }
            Self::Billing { without_period, .. } => Self::Billing {
                subject: None,
                without_period: without_period.as_ref().map(|window| Box::new(window.plain())),
            },
            other => other.clone(),
        }
    }
}

/// A calendar unit of a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarSpec {
    /// Which unit.
    pub unit: CalendarUnit,
    /// An IANA name.
    pub time_zone: String,
    /// The first day of a week; only with weeks.
    pub week_start: Option<Weekday>,
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// One hour of the local clock.
    Hour,
    /// One local day.
    Day,
    /// Seven local days.
    Week,
    /// One month.
    Month,
    /// One year.
    Year,
}

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaxSpec {
    /// The same for everybody.
    Same(Bound),
    /// By the subject's plan.
    ByPlan(BTreeMap<String, Bound>),
}

/// A number of units, or no maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At most so many; 0 always refuses. Never negative.
    AtMost(i64),
    /// Counted, but without a maximum.
    Unlimited,
}

impl Bound {
    /// The largest total that fits: beyond an int64 nothing does.
    pub fn ceiling(self) -> i64 {
        match self {
            Self::AtMost(max) => max,
            Self::Unlimited => i64::MAX,
        }
    }

    /// The smaller of two.
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unlimited, bound) | (bound, Self::Unlimited) => bound,
            (Self::AtMost(a), Self::AtMost(b)) => Self::AtMost(a.min(b)),
        }
    }
}

/// Whether a limit refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Requests that do not fit are refused.
    #[default]
    Enforced,
    /// Counts and reports, never refuses.
    Observed,
}
