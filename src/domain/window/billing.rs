//! Billing periods: explicit ones, or computed from an anchor.

use std::fmt;

use jiff::Timestamp;

use super::{Window, time_zone};
use crate::domain::name::{Violation, check_name, quoted};
use crate::domain::time::{Span, Time};

/// The most explicit periods of one subject.
pub const MAX_PERIODS: usize = 128;
/// The most months of an anchor's interval.
pub const MAX_MONTHS: i32 = 120;
/// The shortest interval of a fixed length.
pub const MIN_EVERY: Span = Span::from_secs(3600);
/// The longest interval of a fixed length.
pub const MAX_EVERY: Span = Span::from_days(3660);

/// When a subject's billing periods begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Billing {
    /// Explicit periods, at least one, in any order, none overlapping another.
    Periods {
        /// The periods.
        periods: Vec<BillingPeriod>,
        /// What holds after the last of them.
        on_lapse: OnLapse,
    },
    /// Periods that follow one another without end.
    Anchor(Anchor),
}

/// One explicit period, half-open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillingPeriod {
    /// Tells it from others when its bounds are corrected; empty means its
    /// start.
    pub id: String,
    /// The first instant.
    pub start: Time,
    /// The first instant after it.
    pub end: Time,
}

/// Periods of which the n-th begins n intervals after an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The start of the first period; nothing is before it.
    pub start: Time,
    /// From one boundary to the next.
    pub interval: Interval,
    /// The IANA time zone in which months are counted.
    pub time_zone: String,
}

/// How far apart boundaries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// So many calendar months, 1 to [`MAX_MONTHS`].
    Months(i32),
    /// A fixed length, [`MIN_EVERY`] to [`MAX_EVERY`].
    Every(Span),
}

/// What holds after the last explicit period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLapse {
    /// There is no period any more.
    #[default]
    Deny,
    /// Periods of the last one's length follow one another.
    Roll,
}

impl Billing {
    /// The period that contains `at`, if one does.
    pub fn containing(&self, at: Time) -> Option<Window> {
        match self {
            Self::Anchor(anchor) => anchor.containing(at),
            Self::Periods { periods, on_lapse } => {
                let explicit = periods.iter().find(|period| period.start <= at && at < period.end);
                explicit.map(BillingPeriod::window).or_else(|| match on_lapse {
                    OnLapse::Deny => None,
                    OnLapse::Roll => rolled(periods, at),
                })
            }
        }
    }

    /// The earliest instant, `from` or later, that lies in a period.
    pub fn next(&self, from: Time) -> Option<Time> {
        if self.containing(from).is_some() {
            return Some(from);
        }
        match self {
            Self::Anchor(anchor) => Some(anchor.start).filter(|start| *start > from),
            Self::Periods { periods, .. } => {
                periods.iter().map(|period| period.start).filter(|start| *start > from).min()
            }
        }
    }

    /// Everything wrong with it, with field paths below `field`.
    pub fn faults(&self, field: &str) -> Vec<Violation> {
        let mut faults = Vec::new();
        match self {
            Self::Periods { periods, .. } => period_faults(field, periods, &mut faults),
            Self::Anchor(anchor) => anchor.faults(&format!("{field}.anchor"), &mut faults),
        }
        faults
    }
}

impl fmt::Display for Billing {
    /// In one line, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anchor(Anchor { start, interval: Interval::Months(n), time_zone }) => {
                write!(f, "from {start} every {n} months in {time_zone}")
            }
            Self::Anchor(Anchor { start, interval: Interval::Every(span), .. }) => {
                write!(f, "from {start} every {span}")
            }
            Self::Periods { periods, on_lapse } => {
                for (n, BillingPeriod { id, start, end }) in periods.iter().enumerate() {
                    let comma = if n == 0 { "" } else { ", " };
                    write!(f, "{comma}{start} to {end}")?;
                    if !id.is_empty() {
                        write!(f, " ({id})")?;
                    }
                }
                f.write_str(if *on_lapse == OnLapse::Roll { ", and so on" } else { "" })
            }
        }
    }
}

impl BillingPeriod {
    /// What tells it from others.
    pub fn id(&self) -> String {
        if self.id.is_empty() { self.start.to_string() } else { self.id.clone() }
    }

    fn window(&self) -> Window {
        Window::Billing { id: self.id().into(), start: self.start, end: self.end }
    }
}

impl Anchor {
    fn containing(&self, at: Time) -> Option<Window> {
        if at < self.start {
            return None;
        }
        let mut n = self.intervals_until(at)?;
        // The guess goes by months alone; day and hour decide.
        while self.boundary(n)? > at {
            n -= 1;
        }
        loop {
            let end = self.boundary(n + 1)?;
            if at < end {
                return Some(begun_at(self.boundary(n)?, end));
            }
            n += 1;
        }
    }

    /// About how many intervals lie between the anchor and `at`; never too
    /// few by more than one.
    fn intervals_until(&self, at: Time) -> Option<i64> {
        match self.interval {
            Interval::Every(span) => Some(at.since(self.start).as_millis() / span.as_millis()),
            Interval::Months(months) => {
                let zone = time_zone(&self.time_zone)?;
                let month = |time: Time| {
                    let date = zone.to_datetime(timestamp(time)?).date();
                    Some(i64::from(date.year()) * 12 + i64::from(date.month()))
                };
                Some((month(at)? - month(self.start)?).max(0) / i64::from(months))
            }
        }
    }

    /// The start of the n-th period: so many intervals after the anchor, on
    /// the anchor's day of the month or the last one of a shorter month, at
    /// the anchor's time of day or, where clocks skip it, as much later.
    /// Always counted from the anchor: from one boundary to the next the 31st
    /// would become the 28th and stay so.
    pub fn boundary(&self, n: i64) -> Option<Time> {
        if n == 0 {
            return Some(self.start);
        }
        match self.interval {
            Interval::Every(span) => {
                let after = span.as_millis().checked_mul(n)?;
                Time::from_millis(self.start.as_millis().checked_add(after)?)
            }
            Interval::Months(months) => {
                let zone = time_zone(&self.time_zone)?;
                let after = i64::from(months).checked_mul(n)?;
                let local = zone.to_datetime(timestamp(self.start)?);
                let local = local.checked_add(jiff::Span::new().try_months(after).ok()?).ok()?;
                Time::from_millis(zone.to_timestamp(local).ok()?.as_millisecond())
            }
        }
    }

    fn faults(&self, field: &str, faults: &mut Vec<Violation>) {
        match self.interval {
            Interval::Months(months) if !(1..=MAX_MONTHS).contains(&months) => {
                let message = format!("must be 1 to {MAX_MONTHS}");
                faults.push(Violation::new(format!("{field}.every_months"), message));
            }
            Interval::Every(span) if span < MIN_EVERY || span > MAX_EVERY => {
                let message = format!("must be {MIN_EVERY} to {MAX_EVERY}");
                faults.push(Violation::new(format!("{field}.every"), message));
            }
            Interval::Months(_) | Interval::Every(_) => {}
        }
        if time_zone(&self.time_zone).is_none() {
            let message = format!("{} is not an IANA time zone", quoted(&self.time_zone));
            faults.push(Violation::new(format!("{field}.time_zone"), message));
        }
    }
}

fn period_faults(field: &str, periods: &[BillingPeriod], faults: &mut Vec<Violation>) {
    let mut fault = |path: String, message: String| faults.push(Violation::new(path, message));
    if periods.len() > MAX_PERIODS {
        let message = format!("has {} entries; at most {MAX_PERIODS} are allowed", periods.len());
        return fault(format!("{field}.periods"), message);
    }
    let mut names = Vec::new();
    for (n, period) in periods.iter().enumerate() {
        let path = format!("{field}.periods[{n}]");
        if !period.id.is_empty() {
            check_name(&format!("{path}.id"), &period.id, &mut names);
        }
        if period.end <= period.start {
            let message = format!("must be after start_time, {}", period.start);
            fault(format!("{path}.end_time"), message);
        }
        for (m, other) in periods[..n].iter().enumerate() {
            let whole = period.start < period.end && other.start < other.end;
            if whole && period.start < other.end && other.start < period.end {
                fault(path.clone(), format!("overlaps periods[{m}]"));
            } else if period.id() == other.id() {
                fault(format!("{path}.id"), format!("is also that of periods[{m}]"));
            }
        }
    }
    faults.extend(names);
}

/// The period that contains `at` where periods of the last one's length follow
/// it.
fn rolled(periods: &[BillingPeriod], at: Time) -> Option<Window> {
    let last = periods.iter().max_by_key(|period| period.end)?;
    if at < last.end {
        return None;
    }
    let length = last.end.since(last.start).as_millis().max(1);
    let n = at.since(last.end).as_millis() / length;
    let start = Time::from_millis(last.end.as_millis() + n * length)?;
    let end = Time::from_millis(start.as_millis().checked_add(length)?)?;
    // A period that is named after its end, say, must not be met again.
    let mut id = start.to_string();
    while periods.iter().any(|period| period.id() == id) {
        id.push('+');
    }
    Some(Window::Billing { id: id.into(), start, end })
}

/// A period that has no id but its start.
fn begun_at(start: Time, end: Time) -> Window {
    Window::Billing { id: start.to_string().into(), start, end }
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::from_millisecond(time.as_millis()).ok()
}

#[cfg(test)]
mod tests;
