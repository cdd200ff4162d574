//! Billing periods, to and fro.

use prost_types::Timestamp;

use super::super::times::{duration, time, timestamp, whole_span};
use crate::domain::name::Violation;
use crate::domain::time::Time;
use crate::domain::window::{Anchor, Billing, BillingPeriod, Interval, MIN_EVERY, OnLapse};
use crate::proto::v1;

const FIELD: &str = "subject.billing";
/// The zone of an anchor that names none.
const UTC: &str = "UTC";

/// The billing of a message. One that has neither periods nor an anchor is
/// none at all: that is what a webhook sends when a subscription has gone.
/// Adds what is wrong with its form to `faults`; what is wrong with its
/// content is for [`Billing::faults`] to say.
pub(super) fn read(billing: v1::Billing, faults: &mut Vec<Violation>) -> Option<Billing> {
    let v1::Billing { periods, anchor, on_lapse } = billing;
    let on_lapse = match v1::OnLapse::try_from(on_lapse) {
        Ok(v1::OnLapse::Unspecified | v1::OnLapse::Deny) => OnLapse::Deny,
        Ok(v1::OnLapse::Roll) => OnLapse::Roll,
        Err(_) => {
            let message = format!("{on_lapse} is not an OnLapse");
            faults.push(Violation::new(format!("{FIELD}.on_lapse"), message));
            OnLapse::Deny
        }
    };
    if on_lapse == OnLapse::Roll && periods.is_empty() {
        let message = "goes with periods: there is no last one to roll on from";
        faults.push(Violation::new(format!("{FIELD}.on_lapse"), message));
    }
    match anchor {
        Some(_) if !periods.is_empty() => {
            let message = "must have periods or an anchor, not both";
            faults.push(Violation::new(FIELD, message));
            None
        }
        Some(anchor) => Some(Billing::Anchor(read_anchor(anchor, faults))),
        None if periods.is_empty() => None,
        None => {
            let read = periods.into_iter().enumerate().map(|(n, p)| read_period(n, p, faults));
            // All of them, so that all faults are found.
            let read: Vec<Option<BillingPeriod>> = read.collect();
            let periods = read.into_iter().collect::<Option<Vec<_>>>()?;
            Some(Billing::Periods { periods, on_lapse })
        }
    }
}

/// The message of stored billing.
pub(super) fn message(billing: &Billing) -> v1::Billing {
    match billing {
        Billing::Periods { periods, on_lapse } => v1::Billing {
            periods: periods.iter().map(period_message).collect(),
            anchor: None,
            on_lapse: match on_lapse {
                OnLapse::Deny => v1::OnLapse::Deny,
                OnLapse::Roll => v1::OnLapse::Roll,
            }
            .into(),
        },
        Billing::Anchor(anchor) => {
            let anchor = v1::BillingAnchor {
                start_time: Some(timestamp(anchor.start)),
                interval: Some(match anchor.interval {
                    Interval::Months(months) => v1::billing_anchor::Interval::EveryMonths(months),
                    Interval::Every(span) => v1::billing_anchor::Interval::Every(duration(span)),
                }),
                time_zone: anchor.time_zone.clone(),
            };
            v1::Billing { anchor: Some(anchor), ..v1::Billing::default() }
        }
    }
}

fn period_message(period: &BillingPeriod) -> v1::BillingPeriod {
    v1::BillingPeriod {
        id: period.id.clone(),
        start_time: Some(timestamp(period.start)),
        end_time: Some(timestamp(period.end)),
    }
}

fn read_period(
    n: usize,
    period: v1::BillingPeriod,
    faults: &mut Vec<Violation>,
) -> Option<BillingPeriod> {
    let field = format!("{FIELD}.periods[{n}]");
    let start = instant(&format!("{field}.start_time"), period.start_time, faults);
    let end = instant(&format!("{field}.end_time"), period.end_time, faults);
    Some(BillingPeriod { id: period.id, start: start?, end: end? })
}

/// An anchor in which something harmless stands in for what cannot be read, so
/// that the faults of the rest are found too.
fn read_anchor(anchor: v1::BillingAnchor, faults: &mut Vec<Violation>) -> Anchor {
    let field = format!("{FIELD}.anchor");
    let start = instant(&format!("{field}.start_time"), anchor.start_time, faults);
    let interval = match anchor.interval {
        Some(v1::billing_anchor::Interval::EveryMonths(months)) => Interval::Months(months),
        Some(v1::billing_anchor::Interval::Every(every)) => {
            let span = whole_span(&format!("{field}.every"), every);
            Interval::Every(span.unwrap_or_else(|fault| {
                faults.push(fault);
                MIN_EVERY
            }))
        }
        None => {
            let message = "must have either every_months or every";
            faults.push(Violation::new(&field, message));
            Interval::Months(1)
        }
    };
    let time_zone = if anchor.time_zone.is_empty() { UTC.to_owned() } else { anchor.time_zone };
    Anchor { start: start.unwrap_or_default(), interval, time_zone }
}

/// An instant that must be given, in whole milliseconds: a boundary that is
/// cut off is another one.
fn instant(field: &str, at: Option<Timestamp>, faults: &mut Vec<Violation>) -> Option<Time> {
    let read = match at {
        None => Err(Violation::new(field, "must be given")),
        Some(at) if at.nanos % 1_000_000 != 0 => {
            Err(Violation::new(field, "must be whole milliseconds"))
        }
        Some(at) => time(field, at),
    };
    read.map_err(|fault| faults.push(fault)).ok()
}
