//! Units of the calendar of a time zone.
//!
//! A unit is found by its boundaries, never by adding lengths to a clock
//! reading, so days of 23 and 25 hours, days without a midnight and hours that
//! occur twice need no rule of their own.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use super::{Window, period};
use crate::domain::time::Time;

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

impl Calendar {
    /// Units of `zone`'s calendar.
    pub fn new(unit: Unit, zone: TimeZone) -> Self {
        Self { unit, zone }
    }

    /// The unit that contains `now`.
    pub fn containing(&self, now: Time) -> Option<Window> {
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
            Unit::Week(start) => {
                date.checked_sub(i64::from(date.weekday().since(start)).days()).ok()
            }
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

#[cfg(test)]
mod tests {
    use super::super::{WindowRule, time_zone};
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Time {
        let instant: Timestamp = text.parse().unwrap();
        Time::from_millis(instant.as_millisecond()).unwrap()
    }

    fn window(unit: Unit, zone: &str, now: &str) -> (String, String) {
        let rule = WindowRule::Calendar(Calendar::new(unit, time_zone(zone).unwrap()));
        let window = rule.containing(at(now), None).unwrap();
        (window.start().unwrap().to_string(), window.end().unwrap().to_string())
    }

    fn span(start: &str, end: &str) -> (String, String) {
        (start.to_owned(), end.to_owned())
    }

    fn any_unit() -> impl Strategy<Value = Unit> {
        prop_oneof![
            Just(Unit::Hour),
            Just(Unit::Day),
            Just(Unit::Month),
            Just(Unit::Year),
            (1i8..=7).prop_map(|n| Unit::Week(Weekday::from_monday_one_offset(n).unwrap())),
        ]
    }

    /// Zones that are awkward: half hours, changes at and across midnight,
    /// days that never were, and one with none of that.
    const ZONES: [&str; 18] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/St_Johns",
        "America/Havana",
        "America/Sao_Paulo",
        "America/Toronto",
        "Africa/Cairo",
        "Asia/Kolkata",
        "Asia/Kathmandu",
        "Asia/Tehran",
        "Asia/Beirut",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Auckland",
        "Pacific/Kiritimati",
        "Africa/Casablanca",
        "Antarctica/Troll",
    ];

    fn every_zone() -> Vec<String> {
        let names = jiff::tz::TimeZoneDatabase::bundled();
        let names = names.available().map(|name| name.as_str().to_owned());
        names.filter(|name| time_zone(name).is_some()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn every_instant_lies_in_exactly_one_period(
            unit in any_unit(),
            zone in proptest::sample::select(every_zone()),
            // 1970 to 2200.
            millis in 0i64..7_258_118_400_000,
        ) {
            let rule = WindowRule::Calendar(Calendar::new(unit, time_zone(&zone).unwrap()));
            let window = |millis: i64| rule.containing(Time::from_millis(millis).unwrap(), None).unwrap();
            let found = window(millis);
            let start = found.start().unwrap().as_millis();
            let end = found.end().unwrap().as_millis();
            prop_assert!(start <= millis && millis < end, "{found:?}");
            prop_assert_eq!(&window(start), &found, "the start belongs to it");
            prop_assert_eq!(&window(end - 1), &found, "and so does its last instant");
            prop_assert_eq!(window(end).start().unwrap().as_millis(), end, "the next one begins");
            prop_assert_eq!(window(start - 1).end().unwrap().as_millis(), start);
        }
    }

    /// Every change of an offset since 1970 in those zones, looked at closely.
    #[test]
    fn periods_meet_without_gap_or_overlap_around_every_clock_change() {
        for zone in ZONES {
            let tz = time_zone(zone).unwrap();
            let changes: Vec<i64> = tz
                .following(Timestamp::UNIX_EPOCH)
                .take_while(|change| change.timestamp().as_second() < 4_102_444_800)
                .map(|change| change.timestamp().as_millisecond())
                .collect();
            for unit in [Unit::Hour, Unit::Day] {
                let rule = WindowRule::Calendar(Calendar::new(unit, tz.clone()));
                let window = |millis: i64| {
                    rule.containing(Time::from_millis(millis).unwrap(), None).unwrap()
                };
                for change in &changes {
                    let mut millis = change - 26 * 3_600_000;
                    while millis < change + 26 * 3_600_000 {
                        let found = window(millis);
                        let end = found.end().unwrap().as_millis();
                        assert!(found.start().unwrap().as_millis() <= millis && millis < end);
                        assert_eq!(window(end - 1), found, "{zone} {unit:?} {found:?}");
                        assert_eq!(
                            window(end).start().unwrap().as_millis(),
                            end,
                            "{zone} {unit:?}"
                        );
                        millis = end;
                    }
                }
            }
        }
    }

    #[test]
    fn days_of_twenty_five_hours_and_days_with_two_midnights() {
        assert_eq!(
            window(Unit::Day, "Europe/Berlin", "2024-10-27T22:30:00Z"),
            span("2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z")
        );
        assert_eq!(
            window(Unit::Day, "America/Havana", "2023-11-05T05:30:00Z"),
            span("2023-11-05T04:00:00Z", "2023-11-06T05:00:00Z")
        );
        // Clocks went back from 00:01 to 23:01 of the day before.
        assert_eq!(
            window(Unit::Day, "America/St_Johns", "2010-11-07T02:40:00Z"),
            span("2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z")
        );
        // No 30 December 2011 in Samoa.
        assert_eq!(
            window(Unit::Day, "Pacific/Apia", "2011-12-30T09:59:59Z"),
            span("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z")
        );
    }

    #[test]
    fn hours_are_cut_where_clocks_move_by_half_an_hour() {
        assert_eq!(
            window(Unit::Hour, "Asia/Kolkata", "2024-08-01T00:00:00Z"),
            span("2024-07-31T23:30:00Z", "2024-08-01T00:30:00Z")
        );
        assert_eq!(
            window(Unit::Hour, "Australia/Lord_Howe", "2024-04-06T15:10:00Z"),
            span("2024-04-06T15:00:00Z", "2024-04-06T15:30:00Z")
        );
    }

    #[test]
    fn weeks_start_where_they_are_told_to() {
        let on = |start| window(Unit::Week(start), "UTC", "2025-03-09T00:00:00Z");
        assert_eq!(on(Weekday::Monday), span("2025-03-03T00:00:00Z", "2025-03-10T00:00:00Z"));
        assert_eq!(on(Weekday::Sunday), span("2025-03-09T00:00:00Z", "2025-03-16T00:00:00Z"));
    }

    #[test]
    fn the_last_period_of_time_is_none() {
        let rule = WindowRule::Calendar(Calendar::new(Unit::Year, time_zone("UTC").unwrap()));
        assert_eq!(rule.containing(Time::MAX, None), None);
    }
}
