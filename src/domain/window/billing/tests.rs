//! Periods against what a calendar says.

use super::*;
use proptest::prelude::*;

fn at(text: &str) -> Time {
    let instant: Timestamp = text.parse().unwrap();
    Time::from_millis(instant.as_millisecond()).unwrap()
}

fn monthly(start: &str, time_zone: &str) -> Anchor {
    Anchor { start: at(start), interval: Interval::Months(1), time_zone: time_zone.to_owned() }
}

/// Start and end of the period that contains an instant, without what is 0.
fn found(billing: &Billing, now: &str) -> (String, String) {
    let window = billing.containing(at(now)).unwrap();
    (window.start().unwrap().to_string(), window.end().unwrap().to_string())
}

fn days(start: &str, end: &str) -> (String, String) {
    (format!("{start}T00:00:00Z"), format!("{end}T00:00:00Z"))
}

#[test]
fn b13_the_31st_comes_back_after_a_short_month() {
    let on_31 = Billing::Anchor(monthly("2024-01-31T00:00:00Z", "UTC"));
    let february = days("2024-01-31", "2024-02-29");
    let march = days("2024-02-29", "2024-03-31");
    assert_eq!(found(&on_31, "2024-02-28T12:00:00Z"), february);
    assert_eq!(found(&on_31, "2024-02-29T00:00:00Z"), march);
    assert_eq!(found(&on_31, "2024-03-15T00:00:00Z"), march);
    assert_eq!(found(&on_31, "2024-03-31T00:00:00Z"), days("2024-03-31", "2024-04-30"));
    assert_eq!(found(&on_31, "2024-04-30T00:00:00Z"), days("2024-04-30", "2024-05-31"));
    assert_eq!(found(&on_31, "2024-05-31T00:00:00Z"), days("2024-05-31", "2024-06-30"));
    let on_30 = Billing::Anchor(monthly("2024-01-30T00:00:00Z", "UTC"));
    assert_eq!(found(&on_30, "2024-02-29T00:00:00Z"), days("2024-02-29", "2024-03-30"));
    let on_29 = Billing::Anchor(monthly("2025-01-29T00:00:00Z", "UTC"));
    assert_eq!(found(&on_29, "2025-03-01T00:00:00Z"), days("2025-02-28", "2025-03-29"));
    assert_eq!(found(&on_29, "2025-03-29T00:00:00Z"), days("2025-03-29", "2025-04-29"));
}

#[test]
fn b14_months_keep_the_local_time_of_day_across_clock_changes() {
    let los_angeles = monthly("2017-03-02T07:30:00Z", "America/Los_Angeles");
    assert_eq!(los_angeles.boundary(1), Some(at("2017-04-02T06:30:00Z")));
    let berlin = monthly("2024-01-31T09:00:00Z", "Europe/Berlin");
    let boundaries: Vec<String> = (0..4).map(|n| berlin.boundary(n).unwrap().to_string()).collect();
    let expected = [
        "2024-01-31T09:00:00Z",
        "2024-02-29T09:00:00Z",
        "2024-03-31T08:00:00Z",
        "2024-04-30T08:00:00Z",
    ];
    assert_eq!(boundaries, expected);
}

/// Half past two on the day that clocks skip from two to three: an hour later.
/// Half past two on the day that has it twice: the first of them; but where an
/// anchor is the second one, that stays its start.
#[test]
fn boundaries_at_a_time_of_day_that_is_missing_or_there_twice() {
    let skipped = monthly("2024-02-29T01:30:00Z", "Europe/Berlin");
    assert_eq!(skipped.boundary(1), Some(at("2024-03-29T01:30:00Z")));
    let skipped = monthly("2024-01-31T01:30:00Z", "Europe/Berlin");
    assert_eq!(skipped.boundary(2), Some(at("2024-03-31T01:30:00Z")));
    let twice = monthly("2024-09-27T00:30:00Z", "Europe/Berlin");
    assert_eq!(twice.boundary(1), Some(at("2024-10-27T00:30:00Z")));
    let second = monthly("2024-10-27T01:30:00Z", "Europe/Berlin");
    assert_eq!(second.boundary(0), Some(at("2024-10-27T01:30:00Z")));
    let second = Billing::Anchor(second);
    assert_eq!(second.containing(at("2024-10-27T01:29:59Z")), None);
    assert_eq!(second.next(at("2024-10-27T00:30:00Z")), Some(at("2024-10-27T01:30:00Z")));
}

#[test]
fn nothing_is_before_an_anchor() {
    let anchor = Billing::Anchor(monthly("2024-01-31T00:00:00Z", "UTC"));
    assert_eq!(anchor.containing(at("2024-01-30T23:59:59Z")), None);
    assert_eq!(anchor.next(at("1970-01-01T00:00:00Z")), Some(at("2024-01-31T00:00:00Z")));
    let every = Anchor {
        interval: Interval::Every(Span::from_days(30)),
        ..monthly("2024-01-31T00:00:00Z", "UTC")
    };
    assert_eq!(
        found(&Billing::Anchor(every), "2024-03-01T00:00:00Z"),
        days("2024-03-01", "2024-03-31")
    );
}

fn explicit(bounds: &[(&str, &str, &str)], on_lapse: OnLapse) -> Billing {
    let period = |(id, start, end): &(&str, &str, &str)| BillingPeriod {
        id: (*id).to_owned(),
        start: at(start),
        end: at(end),
    };
    Billing::Periods { periods: bounds.iter().map(period).collect(), on_lapse }
}

const FIRST: (&str, &str, &str) = ("", "2025-01-15T10:00:00Z", "2025-02-03T00:00:00Z");
const SECOND: (&str, &str, &str) = ("", "2025-02-10T00:00:00Z", "2025-03-10T00:00:00Z");

#[test]
fn b59_explicit_periods_leave_gaps_and_end() {
    // In any order.
    let billing = explicit(&[SECOND, FIRST], OnLapse::Deny);
    assert!(billing.faults("billing").is_empty());
    let none = |now: &str, next: Option<&str>| {
        assert_eq!(billing.containing(at(now)), None, "{now}");
        assert_eq!(billing.next(at(now)), next.map(at), "{now}");
    };
    none("2025-01-15T09:59:59Z", Some(FIRST.1));
    none("2025-02-03T00:00:00Z", Some(SECOND.1));
    none("2025-03-10T00:00:00Z", None);
    assert_eq!(found(&billing, FIRST.1), (FIRST.1.to_owned(), FIRST.2.to_owned()));
    assert_eq!(found(&billing, "2025-03-09T23:59:59Z").0, SECOND.1);
}

#[test]
fn after_the_last_period_its_length_rolls_on() {
    let billing = explicit(&[SECOND, FIRST], OnLapse::Roll);
    // 28 days, again and again; the gap stays a gap.
    assert_eq!(found(&billing, "2025-03-10T00:00:00Z"), days("2025-03-10", "2025-04-07"));
    assert_eq!(found(&billing, "2025-04-07T00:00:00Z"), days("2025-04-07", "2025-05-05"));
    assert_eq!(billing.containing(at("2025-02-05T00:00:00Z")), None);
}

#[test]
fn a_period_is_told_by_its_id_or_else_by_its_start() {
    let id = |billing: &Billing, now: &str| billing.containing(at(now)).unwrap().id();
    let plain = explicit(&[FIRST], OnLapse::Deny);
    assert_eq!(id(&plain, FIRST.1), "billing:2025-01-15T10:00:00Z");
    let named = explicit(&[("sub_1", FIRST.1, FIRST.2)], OnLapse::Deny);
    let corrected = explicit(&[("sub_1", "2025-01-16T00:00:00Z", FIRST.2)], OnLapse::Deny);
    assert_eq!(id(&named, FIRST.1), "billing:sub_1");
    assert_eq!(id(&named, FIRST.1), id(&corrected, "2025-01-16T00:00:00Z"));
}

#[test]
fn a_period_that_rolls_on_is_none_of_those_before() {
    let named_by_end = [(FIRST.2, FIRST.1, FIRST.2), (SECOND.2, SECOND.1, SECOND.2)];
    let billing = explicit(&named_by_end, OnLapse::Roll);
    let id = |now: &str| billing.containing(at(now)).unwrap().id();
    assert_eq!(id("2025-03-09T00:00:00Z"), "billing:2025-03-10T00:00:00Z");
    assert_eq!(id("2025-03-10T00:00:00Z"), "billing:2025-03-10T00:00:00Z+");
    assert_eq!(id("2025-04-07T00:00:00Z"), "billing:2025-04-07T00:00:00Z");
}

#[test]
fn overlaps_and_other_faults_are_all_named() {
    let billing = explicit(
        &[
            FIRST,
            ("", "2025-02-02T23:59:59Z", "2025-02-05T00:00:00Z"),
            ("", "2025-03-01T00:00:00Z", "2025-03-01T00:00:00Z"),
            ("2025-01-15T10:00:00Z", SECOND.1, SECOND.2),
        ],
        OnLapse::Deny,
    );
    let faults: Vec<String> = billing.faults("billing").iter().map(ToString::to_string).collect();
    let expected = [
        "billing.periods[1]: overlaps periods[0]",
        "billing.periods[2].end_time: must be after start_time, 2025-03-01T00:00:00Z",
        "billing.periods[3].id: is also that of periods[0]",
    ];
    assert_eq!(faults, expected);
    let anchor = Anchor {
        interval: Interval::Months(121),
        ..monthly("2025-01-01T00:00:00Z", "Mars/Olympus")
    };
    let faults: Vec<String> =
        Billing::Anchor(anchor).faults("b").iter().map(ToString::to_string).collect();
    let expected = [
        "b.anchor.every_months: must be 1 to 120",
        "b.anchor.time_zone: 'Mars/Olympus' is not an IANA time zone",
    ];
    assert_eq!(faults, expected);
}

fn any_interval() -> impl Strategy<Value = Interval> {
    prop_oneof![
        (1i32..=MAX_MONTHS).prop_map(Interval::Months),
        (MIN_EVERY.as_millis()..=MAX_EVERY.as_millis())
            .prop_map(|millis| Interval::Every(Span::from_millis(millis))),
    ]
}

/// 1970 to 2200.
const MILLIS: std::ops::Range<i64> = 0..7_258_118_400_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn every_instant_from_the_anchor_on_lies_in_exactly_one_period(
        start in MILLIS,
        later in MILLIS,
        interval in any_interval(),
        zone in proptest::sample::select(jiff::tz::TimeZoneDatabase::bundled()
            .available().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()),
    ) {
        let anchor = Anchor { start: Time::saturating(start), interval, time_zone: zone };
        prop_assert!(anchor.containing(Time::saturating(start - 1)).is_none());
        let millis = start + later;
        let window = |millis: i64| anchor.containing(Time::saturating(millis)).unwrap();
        let found = window(millis);
        let (begin, end) = (found.start().unwrap().as_millis(), found.end().unwrap().as_millis());
        prop_assert!(begin <= millis && millis < end);
        prop_assert_eq!(&window(begin), &found, "the start belongs to it");
        prop_assert_eq!(&window(end - 1), &found, "and so does its last instant");
        prop_assert_eq!(window(end).start().unwrap().as_millis(), end, "the next one begins");
        if begin > start {
            prop_assert_eq!(window(begin - 1).end().unwrap().as_millis(), begin);
        }
    }

    /// Against dates counted by hand: the same day of a later month, or the
    /// last one of a shorter month, at the same time of day.
    #[test]
    fn the_nth_boundary_is_n_intervals_after_the_anchor_clamped(
        start in MILLIS,
        months in 1i32..=MAX_MONTHS,
        n in 0i32..200,
    ) {
        let anchor = Anchor {
            start: Time::saturating(start),
            interval: Interval::Months(months),
            time_zone: "UTC".to_owned(),
        };
        let first = timestamp(anchor.start).unwrap().to_zoned_datetime(jiff::tz::TimeZone::UTC);
        let count = i32::from(first.year()) * 12 + i32::from(first.month()) - 1 + months * n;
        let (year, month) = (count.div_euclid(12), count.rem_euclid(12) + 1);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let most = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let boundary = anchor.boundary(i64::from(n)).unwrap();
        let local = timestamp(boundary).unwrap().to_zoned_datetime(jiff::tz::TimeZone::UTC);
        let date = (i32::from(local.year()), i32::from(local.month()), i32::from(local.day()));
        prop_assert_eq!(date, (year, month, most.min(i32::from(first.day()))));
        prop_assert_eq!(local.time(), first.time());
    }
}
