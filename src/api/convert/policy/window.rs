//! Windows of limits, to and fro.

use jiff::civil::Weekday;

use super::super::times::{duration, whole_span};
use super::{Converter, UTC, set};
use crate::domain::policy::{CalendarSpec, CalendarUnit, WindowSpec};
use crate::domain::time::Span;
use crate::domain::window::DEFAULT_BUCKETS;
use crate::proto::v1;

impl Converter {
    pub(super) fn window(
        &mut self,
        path: &str,
        window: Option<v1::WindowRule>,
    ) -> Option<WindowSpec> {
        use v1::window_rule::Kind;
        match window.and_then(|window| window.kind) {
            None => self
                .fault(path, "must be set: one of lifetime, calendar, fixed, billing and rolling"),
            Some(Kind::Lifetime(_)) => Some(WindowSpec::Lifetime),
            Some(Kind::Calendar(calendar)) => {
                let spec = self.calendar(&format!("{path}.calendar"), calendar)?;
                Some(WindowSpec::Calendar(spec))
            }
            Some(Kind::Fixed(fixed)) => {
                let length = self.length(&format!("{path}.fixed.length"), fixed.length)?;
                Some(WindowSpec::Fixed(length))
            }
            Some(Kind::Billing(billing)) => self.billing(&format!("{path}.billing"), *billing),
            Some(Kind::Rolling(rolling)) => {
                let length = self.length(&format!("{path}.rolling.length"), rolling.length)?;
                let buckets = match rolling.buckets {
                    0 => DEFAULT_BUCKETS,
                    buckets => i64::from(buckets),
                };
                Some(WindowSpec::Rolling { length, buckets })
            }
        }
    }

    fn billing(&mut self, path: &str, billing: v1::BillingWindow) -> Option<WindowSpec> {
        let without_period = match billing.without_period {
            None => None,
            Some(rule) => {
                let window = self.window(&format!("{path}.without_period"), Some(*rule))?;
                Some(Box::new(window))
            }
        };
        Some(WindowSpec::Billing { subject: set(billing.subject), without_period })
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
        match length.map(|length| whole_span(path, length)) {
            None => self.fault(path, "must be set"),
            Some(Ok(span)) => Some(span),
            Some(Err(fault)) => self.fault(path, fault.message),
        }
    }
}

/// The message of a window.
pub(super) fn window(spec: &WindowSpec) -> v1::WindowRule {
    use v1::window_rule::Kind;
    let kind = match spec {
        WindowSpec::Lifetime => Kind::Lifetime(v1::LifetimeWindow {}),
        WindowSpec::Calendar(spec) => Kind::Calendar(v1::CalendarWindow {
            unit: unit(spec.unit).into(),
            time_zone: spec.time_zone.clone(),
            week_start: spec.week_start.map_or(v1::Weekday::Unspecified, weekday).into(),
        }),
        WindowSpec::Fixed(length) => {
            Kind::Fixed(v1::FixedWindow { length: Some(duration(*length)) })
        }
        WindowSpec::Billing { subject, without_period } => {
            let without_period = without_period.as_ref().map(|rule| Box::new(window(rule)));
            let subject = subject.clone().unwrap_or_default();
            Kind::Billing(Box::new(v1::BillingWindow { subject, without_period }))
        }
        WindowSpec::Rolling { length, buckets } => Kind::Rolling(v1::RollingWindow {
            length: Some(duration(*length)),
            buckets: i32::try_from(*buckets).unwrap_or(i32::MAX),
        }),
    };
    v1::WindowRule { kind: Some(kind) }
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
