//! The span of time within which a limit counts.
//!
//! Periods are half-open, and every instant lies in exactly one: a period is
//! found by its boundaries, never by adding lengths to a clock reading, so
//! days of 23 and 25 hours, days without a midnight and hours that occur twice
//! need no rule of their own.

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan as _};

use super::time::{Span, Time};

/// The shortest window of a fixed length.
pub const MIN_LENGTH: Span = Span::from_secs(1);
/// The longest window of a fixed length.
pub const MAX_LENGTH: Span = Span::from_days(3660);

/// One window: the instants from `start` to just before `end`, or all of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// For ever.
    Lifetime,
    /// Half-open.
    Period {
        /// The first instant.
        start: Time,
        /// The first instant after it.
        end: Time,
    },
}

impl Window {
    /// When it ends, if it does.
    pub fn end(&self) -> Option<Time> {
        match *self {
            Self::Lifetime => None,
            Self::Period { end, .. } => Some(end),
        }
    }

    /// When it starts, if it does.
    pub fn start(&self) -> Option<Time> {
        match *self {
            Self::Lifetime => None,
            Self::Period { start, .. } => Some(start),
        }
    }

    /// The part of a counter's key that tells its windows apart.
    pub fn id(&self) -> String {
        match self {
            Self::Lifetime => "lifetime".to_owned(),
            Self::Period { start, .. } => start.to_string(),
        }
    }
}

/// How a limit's windows lie in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// One window for ever.
    Lifetime,
    /// The calendar unit that contains now.
    Calendar(Calendar),
    /// Spans of this length, end to end, aligned to the Unix epoch.
    Fixed(Span),
}

impl WindowRule {
    /// The window that contains `now`; `None` where it would reach beyond the
    /// years that a timestamp can carry.
    pub fn containing(&self, now: Time) -> Option<Window> {
        match self {
            Self::Lifetime => Some(Window::Lifetime),
            Self::Calendar(calendar) => calendar.containing(now),
            Self::Fixed(length) => {
                let start = now.as_millis() - now.as_millis().rem_euclid(length.as_millis());
                period(start, start + length.as_millis())
            }
        }
    }
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// From one full hour of the local clock to the next.
    Hour,
    /// From one local midnight to the next.
    Day,
    /// Seven days from this one on.
    Week(Weekday),
    /// From the first of a month.
    Month,
    /// From the first of January.
    Year,
}

/// Calendar units of a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    zone: TimeZone,
}

/// The zone of that IANA name, from the rules compiled into this program, so
/// that every server agrees whatever its host has installed.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

impl Calendar {
    /// Units of `zone`'s calendar.
    pub fn new(unit: Unit, zone: TimeZone) -> Self {
        Self { unit, zone }
    }

    fn containing(&self, now: Time) -> Option<Window> {
        let instant = Timestamp::from_millisecond(now.as_millis()).ok()?;
        if self.unit == Unit::Hour {
            return self.hour(instant);
        }
        let date = self.zone.to_datetime(instant).date();
        let mut first = self.first_day(date)?;
        // Where clocks go back across midnight, an instant can read a date
        // whose successor has begun already; the boundaries decide.
        while self.boundary(first)? > instant {
            first = self.first_day(first.yesterday().ok()?)?;
        }
        loop {
            let next = self.next(first)?;
            let end = self.boundary(next)?;
            if instant < end {
                return period(self.boundary(first)?.as_millisecond(), end.as_millisecond());
            }
            first = next;
        }
    }

    /// The first day of the unit that `date` lies in.
    fn first_day(&self, date: Date) -> Option<Date> {
        match self.unit {
            Unit::Hour | Unit::Day => Some(date),
            Unit::Week(start) => date.checked_sub(i64::from(date.weekday().since(start)).days()).ok(),
            Unit::Month => Some(date.first_of_month()),
            Unit::Year => Some(date.first_of_year()),
        }
    }

    fn next(&self, first: Date) -> Option<Date> {
        let step = match self.unit {
            Unit::Hour | Unit::Day => 1.day(),
            Unit::Week(_) => 1.week(),
            Unit::Month => 1.month(),
            Unit::Year => 1.year(),
        };
        first.checked_add(step).ok()
    }

    /// The first instant of a date, also where it has no midnight or two.
    fn boundary(&self, date: Date) -> Option<Timestamp> {
        let midnight = date.to_zoned_datetime(self.zone.clone()).ok()?;
        Some(midnight.start_of_day().ok()?.timestamp())
    }

    /// Full hours of the local clock, cut where the offset changes within one
    /// (Lord Howe moves by half an hour).
    fn hour(&self, instant: Timestamp) -> Option<Window> {
        const HOUR: i64 = 3_600_000;
        let offset = self.zone.to_offset(instant);
        let local = instant.as_millisecond() + i64::from(offset.seconds()) * 1000;
        let mut start = instant.as_millisecond() - local.rem_euclid(HOUR);
        let mut end = start + HOUR;
        let offset_at =
            |millis: i64| Some(self.zone.to_offset(Timestamp::from_millisecond(millis).ok()?));
        if offset_at(start)? != offset {
            let just_after = Timestamp::from_millisecond(instant.as_millisecond() + 1).ok()?;
            start = self.zone.preceding(just_after).next()?.timestamp().as_millisecond();
        }
        if offset_at(end - 1)? != offset {
            end = self.zone.following(instant).next()?.timestamp().as_millisecond();
        }
        period(start, end)
    }
}

fn period(start: i64, end: i64) -> Option<Window> {
    Some(Window::Period { start: Time::from_millis(start)?, end: Time::from_millis(end)? })
}
