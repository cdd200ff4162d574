//! Billing periods on the command line.

use clap::{Args, ValueEnum};
use jiff::civil::Date;
use prost_types::Timestamp;

use crate::api::times;
use crate::cli::output::{Failure, instant};
use crate::cli::parse;
use crate::domain::name::quoted;
use crate::domain::time::Time;
use crate::domain::window::time_zone;
use crate::proto::v1;
use crate::proto::v1::billing_anchor::Interval;

/// What was typed of billing.
#[derive(Debug, Args)]
#[command(next_help_heading = "Billing")]
pub(super) struct Billing {
    /// A billing period, such as 2026-08-15/2026-09-15; may be repeated. They
    /// replace what billing it had. A date is its midnight in UTC; an ID keeps
    /// what was counted when the bounds are corrected.
    #[arg(long = "period", group = "change", value_name = "START/END[=ID]", value_parser = period)]
    periods: Vec<v1::BillingPeriod>,
    /// What follows the last period: none, or the same length again and again.
    #[arg(long, group = "change")]
    on_lapse: Option<OnLapse>,
    /// Periods without end instead, the first of which begins then: an instant,
    /// or a date, which is its midnight in --time-zone.
    #[arg(
        long,
        group = "change",
        value_name = "START",
        value_parser = start,
        requires = "every",
        conflicts_with_all = ["periods", "on_lapse"]
    )]
    anchor: Option<Start>,
    /// How far the anchor's periods are apart: months, such as 1mo, counted in
    /// --time-zone, or a length, such as 30d.
    #[arg(long, value_name = "INTERVAL", value_parser = every, requires = "anchor")]
    every: Option<Interval>,
    /// The IANA time zone in which months are counted; UTC by default.
    #[arg(long, value_name = "ZONE", requires = "anchor")]
    time_zone: Option<String>,
    /// Take its billing away: it then has what a policy says of subjects
    /// without a period.
    #[arg(long = "no-billing", group = "change", conflicts_with_all = ["periods", "on_lapse", "anchor"])]
    without: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnLapse {
    Deny,
    Roll,
}

impl Billing {
    /// The anchor's instant, if there is an anchor.
    ///
    /// # Errors
    ///
    /// There is no such zone.
    pub fn anchored(&self) -> Result<Option<Timestamp>, Failure> {
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        self.anchor.map(|start| start.within(zone)).transpose().map_err(Failure::Usage)
    }

    /// Changes a subject's billing as it was typed.
    pub fn change(&self, anchored: Option<Timestamp>, billing: &mut Option<v1::Billing>) {
        if self.without {
            *billing = None;
        }
        if let Some(start) = anchored {
            let anchor = v1::BillingAnchor {
                start_time: Some(start),
                interval: self.every,
                time_zone: self.time_zone.clone().unwrap_or_default(),
            };
            *billing = Some(v1::Billing { anchor: Some(anchor), ..v1::Billing::default() });
        }
        if !self.periods.is_empty() {
            let new = billing.get_or_insert_default();
            new.periods.clone_from(&self.periods);
            new.anchor = None;
        }
        if let Some(on_lapse) = self.on_lapse {
            let on_lapse = match on_lapse {
                OnLapse::Deny => v1::OnLapse::Deny,
                OnLapse::Roll => v1::OnLapse::Roll,
            };
            billing.get_or_insert_default().on_lapse = on_lapse.into();
        }
    }
}

/// Billing, a line for each thing that is known of it.
pub(super) fn describe(billing: &v1::Billing) -> Vec<[String; 2]> {
    let at = |at: Option<Timestamp>| at.map_or_else(String::new, instant);
    let period = |period: &v1::BillingPeriod| {
        let id = if period.id.is_empty() { String::new() } else { format!(" ({})", period.id) };
        let span = format!("{} to {}{id}", at(period.start_time), at(period.end_time));
        ["billing period".to_owned(), span]
    };
    let mut lines: Vec<_> = billing.periods.iter().map(period).collect();
    if !lines.is_empty() {
        let roll = billing.on_lapse() == v1::OnLapse::Roll;
        let then = if roll { "the same length again" } else { "none" };
        lines.push(["after the last period".to_owned(), then.to_owned()]);
    }
    if let Some(anchor) = &billing.anchor {
        let every = match anchor.interval {
            Some(Interval::EveryMonths(1)) => format!("month in {}", anchor.time_zone),
            Some(Interval::EveryMonths(n)) => format!("{n} months in {}", anchor.time_zone),
            Some(Interval::Every(length)) => {
                times::span_of(length).map_or_else(String::new, |span| span.to_string())
            }
            None => String::new(),
        };
        let text = format!("from {} every {every}", at(anchor.start_time));
        lines.push(["billing periods".to_owned(), text]);
    }
    lines
}

/// `START/END[=ID]`.
fn period(text: &str) -> Result<v1::BillingPeriod, String> {
    let malformed = || format!("must be START/END or START/END=ID, not {}", quoted(text));
    let (start, rest) = text.split_once('/').ok_or_else(malformed)?;
    let (end, id) = rest.split_once('=').unwrap_or((rest, ""));
    Ok(v1::BillingPeriod {
        id: id.to_owned(),
        start_time: Some(boundary(start)?),
        end_time: Some(boundary(end)?),
    })
}

/// An instant, or the midnight of a date in UTC.
fn boundary(text: &str) -> Result<Timestamp, String> {
    start(text)?.within("UTC")
}

/// When something begins, as it was typed.
#[derive(Clone, Copy, Debug)]
enum Start {
    At(Timestamp),
    On(Date),
}

impl Start {
    /// The instant; of a date its first one in that zone.
    fn within(self, zone: &str) -> Result<Timestamp, String> {
        let date = match self {
            Self::At(instant) => return Ok(instant),
            Self::On(date) => date,
        };
        let unknown = || format!("{} is not an IANA time zone", quoted(zone));
        let zone = time_zone(zone).ok_or_else(unknown)?;
        let day = date.to_zoned_datetime(zone).and_then(|day| day.start_of_day());
        let day = day.map_err(|error| error.to_string())?;
        Ok(times::timestamp(Time::saturating(day.timestamp().as_millisecond())))
    }
}

fn start(text: &str) -> Result<Start, String> {
    match text.parse::<Date>() {
        // A text with a time of day parses as a date too, and would lose it.
        Ok(date) if text.len() == date.to_string().len() => Ok(Start::On(date)),
        _ => parse::instant(text).map(Start::At),
    }
}

/// `1mo` and the like, or a length.
fn every(text: &str) -> Result<Interval, String> {
    let months = text.strip_suffix("mo").and_then(|months| months.parse().ok());
    match months {
        Some(months) => Ok(Interval::EveryMonths(months)),
        None => Ok(Interval::Every(times::duration(parse::length(text)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_taken_as_people_write_them() {
        let of = |text: &str| {
            let period = period(text).unwrap();
            (instant(period.start_time.unwrap()), instant(period.end_time.unwrap()), period.id)
        };
        let (start, end) = ("2026-08-15T00:00:00Z".to_owned(), "2026-09-15T00:00:00Z".to_owned());
        assert_eq!(of("2026-08-15/2026-09-15"), (start.clone(), end.clone(), String::new()));
        assert_eq!(
            of("2026-08-15T00:00:00Z/2026-09-15T02:00:00+02:00=in_1/a=b"),
            (start, end, "in_1/a=b".to_owned())
        );
        for bad in ["", "2026-08-15", "2026-08-15/", "x/2026-09-15", "2026-08-15T10:00/2026-09-15"]
        {
            assert!(period(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_date_is_its_first_instant_in_the_zone() {
        let within = |text: &str, zone: &str| instant(start(text).unwrap().within(zone).unwrap());
        assert_eq!(within("2025-01-31", "America/New_York"), "2025-01-31T05:00:00Z");
        assert_eq!(within("2024-04-26", "Africa/Cairo"), "2024-04-25T22:00:00Z");
        assert_eq!(within("2025-01-31T00:00:00Z", "America/New_York"), "2025-01-31T00:00:00Z");
        assert!(start("2025-01-31").unwrap().within("Mars").is_err());
    }

    #[test]
    fn intervals_are_months_or_lengths() {
        assert_eq!(every("3mo"), Ok(Interval::EveryMonths(3)));
        let month = times::duration(crate::domain::time::Span::from_days(30));
        assert_eq!(every("30d"), Ok(Interval::Every(month)));
        assert!(every("monthly").is_err());
    }
}
