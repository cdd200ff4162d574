//! Protobuf times and the domain's.

use prost_types::{Duration, Timestamp};

use crate::domain::name::Violation;
use crate::domain::time::{Span, Time};

/// The timestamp of an instant.
pub fn timestamp(time: Time) -> Timestamp {
    let millis = time.as_millis();
    let nanos = i32::try_from(millis.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: millis.div_euclid(1000), nanos }
}

/// The duration of a span.
pub fn duration(span: Span) -> Duration {
    let millis = span.as_millis();
    let nanos = i32::try_from(millis % 1000 * 1_000_000).unwrap_or(0);
    Duration { seconds: millis / 1000, nanos }
}

/// The instant of a timestamp; what is finer than a millisecond is cut off.
///
/// # Errors
///
/// It is not a valid timestamp (years 1 to 9999).
pub fn time(field: &str, timestamp: Timestamp) -> Result<Time, Violation> {
    let fault = || Violation::new(field, "must be a timestamp of the years 1 to 9999");
    if !(0..1_000_000_000).contains(&timestamp.nanos) {
        return Err(fault());
    }
    let millis = timestamp
        .seconds
        .checked_mul(1000)
        .and_then(|millis| millis.checked_add(i64::from(timestamp.nanos) / 1_000_000));
    millis.and_then(Time::from_millis).ok_or_else(fault)
}

/// The span of a duration within bounds; what is finer than a millisecond is
/// cut off.
///
/// # Errors
///
/// It is not a valid duration, or out of bounds.
pub fn span(field: &str, duration: Duration, least: Span, most: Span) -> Result<Span, Violation> {
    let fault = || Violation::new(field, format!("must be {least} to {most}"));
    let Duration { seconds, nanos } = duration;
    let mixed = (seconds > 0 && nanos < 0) || (seconds < 0 && nanos > 0);
    if mixed || nanos.unsigned_abs() >= 1_000_000_000 || seconds < 0 || nanos < 0 {
        return Err(fault());
    }
    let millis = seconds.checked_mul(1000).ok_or_else(fault)?;
    let span = Span::from_millis(millis.saturating_add(i64::from(nanos) / 1_000_000));
    let beyond = span == most && nanos % 1_000_000 != 0;
    if span < least || span > most || beyond { Err(fault()) } else { Ok(span) }
}

/// The span of a duration that this program made.
pub fn span_of(duration: Duration) -> Option<Span> {
    whole_span("", duration).ok()
}

/// The span of a duration of whole milliseconds.
///
/// # Errors
///
/// It is negative, not a valid duration, too long or finer than that.
pub fn whole_span(field: &str, duration: Duration) -> Result<Span, Violation> {
    let Duration { seconds, nanos } = duration;
    let fault = |message: String| Err(Violation::new(field, message));
    if seconds < 0 || nanos < 0 {
        return fault("must not be negative".to_owned());
    }
    if nanos > 999_999_999 {
        return fault(format!("has {nanos} nanos; at most 999999999 are allowed"));
    }
    if nanos % 1_000_000 != 0 {
        return fault("must be whole milliseconds".to_owned());
    }
    let millis = seconds.checked_mul(1000);
    match millis.and_then(|ms| ms.checked_add(i64::from(nanos / 1_000_000))) {
        Some(millis) => Ok(Span::from_millis(millis)),
        None => fault("is longer than 2^63-1 ms".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn timestamps_round_trip(millis in Time::MIN.as_millis()..=Time::MAX.as_millis()) {
            let instant = Time::from_millis(millis).unwrap();
            prop_assert_eq!(time("t", timestamp(instant)).unwrap(), instant);
        }

        #[test]
        fn whole_spans_are_exact_or_refused(seconds: i64, nanos: i32) {
            if let Ok(span) = whole_span("length", Duration { seconds, nanos }) {
                let nanos = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
                prop_assert_eq!(i128::from(span.as_millis()) * 1_000_000, nanos);
            }
        }
    }

    #[test]
    fn out_of_range_times_name_the_field() {
        for (seconds, nanos) in [(i64::MAX, 0), (0, -1), (0, 1_000_000_000), (253_402_300_800, 0)] {
            let fault = time("at", Timestamp { seconds, nanos }).unwrap_err();
            assert_eq!(fault.field, "at");
        }
    }

    #[test]
    fn spans_are_bounded() {
        let (least, most) = (Span::from_secs(1), Span::from_secs(86_400));
        let of = |seconds, nanos| span("ttl", Duration { seconds, nanos }, least, most);
        assert_eq!(of(1, 0), Ok(least));
        assert_eq!(of(86_400, 0), Ok(most));
        for (seconds, nanos) in
            [(0, 999_999_999), (86_400, 1), (86_400, 1_000_000), (-1, 0), (0, -5), (i64::MAX, 0)]
        {
            assert_eq!(of(seconds, nanos).unwrap_err().message, "must be 1s to 1d");
        }
    }
}
