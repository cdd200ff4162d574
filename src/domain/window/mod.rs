//! The span of time within which a limit counts.
//!
//! Periods are half-open, and every instant lies in at most one: in exactly
//! one, but where a subject's billing periods leave a gap.

mod billing;
mod calendar;

pub use billing::{
    Anchor, Billing, BillingPeriod, Interval, MAX_EVERY, MAX_MONTHS, MAX_PERIODS, MIN_EVERY,
    OnLapse,
};
pub use calendar::{Calendar, Unit};

use std::sync::Arc;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::time::{Span, Time};

/// The shortest window of a fixed or rolling length.
pub const MIN_LENGTH: Span = Span::from_secs(1);
/// The longest window of a fixed or rolling length.
pub const MAX_LENGTH: Span = Span::from_days(3660);
/// The most buckets of a rolling window.
pub const MAX_BUCKETS: i64 = 1440;
/// The buckets of a rolling window that names no number.
pub const DEFAULT_BUCKETS: i64 = 60;

/// One window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// A billing period of a subject, half-open. Its id alone tells it from
    /// others, so that correcting its bounds keeps what was counted.
    Billing {
        /// The period's id.
        id: Arc<str>,
        /// The first instant.
        start: Time,
        /// The first instant after it.
        end: Time,
    },
    /// The span that ends now.
    Rolling(Rolling),
}

/// A span that moves on with time.
///
/// What is counted at an instant counts until a length later, and no longer.
/// So that a counter stays small, units that are counted within one bucket
/// return together, a length after the last of them: late, by at most one
/// bucket, and never early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rolling {
    /// How far back it reaches.
    pub length: Span,
    /// How long one bucket is; buckets are aligned to the Unix epoch.
    pub bucket: Span,
}

impl Rolling {
    /// A span of `length` in that many buckets; one more where they do not
    /// divide it evenly into milliseconds.
    pub fn new(length: Span, buckets: i64) -> Self {
        let buckets = buckets.clamp(1, MAX_BUCKETS);
        let bucket = (length.as_millis() + buckets - 1) / buckets;
        Self { length, bucket: Span::from_millis(bucket.max(1)) }
    }

    /// The start of the bucket that `at` lies in.
    pub fn bucket_of(&self, at: Time) -> Time {
        Time::saturating(at.as_millis() - at.as_millis().rem_euclid(self.bucket.as_millis()))
    }
}

impl Window {
    /// When it ends, if it ever does.
    pub fn end(&self) -> Option<Time> {
        match *self {
            Self::Lifetime | Self::Rolling(_) => None,
            Self::Period { end, .. } | Self::Billing { end, .. } => Some(end),
        }
    }

    /// When it starts, if it ever does.
    pub fn start(&self) -> Option<Time> {
        match *self {
            Self::Lifetime | Self::Rolling(_) => None,
            Self::Period { start, .. } | Self::Billing { start, .. } => Some(start),
        }
    }

    /// From when to when it counts, as seen at `now`; `None` for a lifetime.
    pub fn span(&self, now: Time) -> Option<(Time, Time)> {
        match *self {
            Self::Lifetime => None,
            Self::Period { start, end } | Self::Billing { start, end, .. } => Some((start, end)),
            Self::Rolling(Rolling { length, .. }) => Some((now.minus(length), now)),
        }
    }

    /// The last instant at which something that is counted no later than `at`
    /// may still count; `None` when it does for ever.
    pub fn counts_until(&self, at: Time) -> Option<Time> {
        match *self {
            Self::Lifetime => None,
            Self::Period { end, .. } | Self::Billing { end, .. } => Some(end),
            Self::Rolling(Rolling { length, bucket }) => Some(at.plus(length).plus(bucket)),
        }
    }

    /// The part of a counter's key that tells its windows apart.
    pub fn id(&self) -> String {
        match self {
            Self::Lifetime => "lifetime".to_owned(),
            Self::Period { start, .. } => start.to_string(),
            Self::Billing { id, .. } => format!("billing:{id}"),
            Self::Rolling(_) => "rolling".to_owned(),
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
    /// The billing period of the subject that contains now.
    Billing {
        /// What holds for subjects that have no periods; `None` refuses them.
        without_period: Option<Box<WindowRule>>,
    },
    /// The span that ends now.
    Rolling(Rolling),
}

impl WindowRule {
    /// The window that contains `now`, for a subject with this `billing`.
    /// `None` where there is none: no billing period is under way, or the
    /// window would reach beyond the years that a timestamp can carry.
    pub fn containing(&self, now: Time, billing: Option<&Billing>) -> Option<Window> {
        match self {
            Self::Lifetime => Some(Window::Lifetime),
            Self::Calendar(calendar) => calendar.containing(now),
            Self::Fixed(length) => {
                let start = now.as_millis() - now.as_millis().rem_euclid(length.as_millis());
                period(start, start + length.as_millis())
            }
            Self::Billing { without_period } => match billing {
                Some(billing) => billing.containing(now),
                None => without_period.as_ref()?.containing(now, None),
            },
            Self::Rolling(rolling) => Some(Window::Rolling(*rolling)),
        }
    }

    /// The earliest instant, `from` or later, that lies in a window; `None`
    /// when no window comes any more.
    pub fn next(&self, from: Time, billing: Option<&Billing>) -> Option<Time> {
        match (self, billing) {
            (Self::Billing { .. }, Some(billing)) => billing.next(from),
            _ => self.containing(from, billing).map(|_| from),
        }
    }
}

/// The zone of that IANA name, from the rules compiled into this program, so
/// that every server agrees whatever its host has installed.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    // `Etc/Unknown` is a name too, of no place.
    TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown())
}

fn period(start: i64, end: i64) -> Option<Window> {
    Some(Window::Period { start: Time::from_millis(start)?, end: Time::from_millis(end)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_spans_are_aligned_to_the_epoch_on_both_sides_of_it() {
        let rule = WindowRule::Fixed(Span::from_secs(60));
        let start =
            |millis| rule.containing(Time::from_millis(millis).unwrap(), None).unwrap().start();
        assert_eq!(start(59_999), Time::from_millis(0));
        assert_eq!(start(60_000), Time::from_millis(60_000));
        assert_eq!(start(-1), Time::from_millis(-60_000));
    }

    #[test]
    fn rolling_buckets_divide_the_length_rounded_up() {
        let bucket = |secs, buckets| Rolling::new(Span::from_secs(secs), buckets).bucket;
        assert_eq!(bucket(60, 60), Span::from_secs(1));
        assert_eq!(bucket(1, 1440), Span::from_millis(1));
        assert_eq!(bucket(10, 3), Span::from_millis(3334));
        assert_eq!(bucket(86_400, 1), Span::from_days(1));
    }
}
