//! Instants and spans, whole milliseconds, as the stores keep them.

use std::fmt;

/// An instant: milliseconds since 1970-01-01T00:00:00Z, within the years 1 to
/// 9999 that a protobuf `Timestamp` can carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

/// A length of time in milliseconds; never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(i64);

impl Time {
    /// 0001-01-01T00:00:00Z.
    pub const MIN: Self = Self(-62_135_596_800_000);
    /// 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// The instant, or `None` outside [`Time::MIN`] to [`Time::MAX`].
    pub const fn from_millis(millis: i64) -> Option<Self> {
        if millis < Self::MIN.0 || millis > Self::MAX.0 { None } else { Some(Self(millis)) }
    }

    /// The instant, pulled into [`Time::MIN`] to [`Time::MAX`].
    pub const fn saturating(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant and `span` later; stays at [`Time::MAX`].
    pub const fn plus(self, span: Span) -> Self {
        Self::saturating(self.0.saturating_add(span.0))
    }

    /// This instant and `span` earlier; stays at [`Time::MIN`].
    pub const fn minus(self, span: Span) -> Self {
        Self::saturating(self.0.saturating_sub(span.0))
    }

    /// How long after `earlier` this instant is; zero when it is not after.
    pub const fn since(self, earlier: Self) -> Span {
        if self.0 <= earlier.0 { Span::ZERO } else { Span(self.0 - earlier.0) }
    }

    /// The first instant not before this one that lies on a grid of `step`,
    /// aligned to the epoch.
    pub const fn round_up(self, step: Span) -> Self {
        let rest = self.0.rem_euclid(step.0);
        if rest == 0 { self } else { Self::saturating(self.0 + (step.0 - rest)) }
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A length of so many milliseconds; negative ones become zero.
    pub const fn from_millis(millis: i64) -> Self {
        if millis < 0 { Self::ZERO } else { Self(millis) }
    }

    /// A length of so many seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Self::from_millis(secs.saturating_mul(1000))
    }

    /// A length of so many days of 24 hours.
    pub const fn from_days(days: i64) -> Self {
        Self::from_secs(days.saturating_mul(86_400))
    }

    /// The length in milliseconds.
    pub const fn as_millis(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Time {
    /// RFC 3339 in UTC; milliseconds only where there are some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

impl fmt::Display for Span {
    /// The largest unit that needs no fraction: `90s`, `24h`, `1500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(i64, &str); 4] =
            [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        for (millis, unit) in UNITS {
            if self.0 != 0 && self.0 % millis == 0 {
                return write!(f, "{}{unit}", self.0 / millis);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_on_both_sides_of_the_epoch() {
        let step = Span::from_millis(16);
        assert_eq!(Time(0).round_up(step), Time(0));
        assert_eq!(Time(1).round_up(step), Time(16));
        assert_eq!(Time(-1).round_up(step), Time(0));
        assert_eq!(Time(-17).round_up(step), Time(-16));
    }

    #[test]
    fn stays_within_the_years_of_a_timestamp() {
        assert_eq!(Time::MAX.plus(Span::from_days(1)), Time::MAX);
        assert_eq!(Time::from_millis(i64::MIN), None);
        assert_eq!(Time::saturating(i64::MIN), Time::MIN);
        assert_eq!(Time::MIN.to_string(), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn spans_read_well() {
        assert_eq!(Span::from_secs(90).to_string(), "90s");
        assert_eq!(Span::from_days(7).to_string(), "7d");
        assert_eq!(Span::from_millis(1500).to_string(), "1500ms");
        assert_eq!(Span::ZERO.to_string(), "0ms");
    }
}
