//! Subjects, as a billing system puts them.

use quota_authority::api::times::timestamp;
use quota_authority::domain::time::Span;

use super::calls::{Client, duration};
use super::{Refused, instant, v1};

/// A subject being made.
#[derive(Clone, Debug)]
pub struct Owner(pub v1::Subject);

/// The user of that id, without plan, periods or exceptions yet.
pub fn user(id: &str) -> Owner {
    owner("user", id)
}

/// A subject of that kind and id.
pub fn owner(kind: &str, id: &str) -> Owner {
    Owner(v1::Subject { kind: kind.to_owned(), id: id.to_owned(), ..v1::Subject::default() })
}

impl Owner {
    pub fn plan(mut self, plan: &str) -> Self {
        plan.clone_into(&mut self.0.plan);
        self
    }

    pub fn billing(mut self, billing: v1::Billing) -> Self {
        self.0.billing = Some(billing);
        self
    }

    /// Explicit periods: id (empty for none), start, end.
    pub fn periods(self, periods: &[(&str, &str, &str)]) -> Self {
        self.billing(v1::Billing { periods: all_periods(periods), ..v1::Billing::default() })
    }

    /// Explicit periods, the last of which goes on and on.
    pub fn rolling_on(self, periods: &[(&str, &str, &str)]) -> Self {
        let on_lapse = v1::OnLapse::Roll.into();
        self.billing(v1::Billing { periods: all_periods(periods), anchor: None, on_lapse })
    }

    /// A period of so many months after another, from an instant on.
    pub fn monthly(self, months: i32, start: &str, time_zone: &str) -> Self {
        let interval = v1::billing_anchor::Interval::EveryMonths(months);
        self.anchored(anchor(start, interval, time_zone))
    }

    /// A period of that length after another, from an instant on.
    pub fn every(self, length: Span, start: &str) -> Self {
        let interval = v1::billing_anchor::Interval::Every(duration(length));
        self.anchored(anchor(start, interval, ""))
    }

    pub fn anchored(self, anchor: v1::BillingAnchor) -> Self {
        self.billing(v1::Billing { anchor: Some(anchor), ..v1::Billing::default() })
    }

    /// The limit allows so many instead, until an instant where one is given.
    pub fn set(self, limit: &str, max: i64, until: Option<&str>) -> Self {
        self.except(limit, v1::r#override::Change::Set(max), until)
    }

    /// The limit allows so many more, until an instant where one is given.
    pub fn add(self, limit: &str, more: i64, until: Option<&str>) -> Self {
        self.except(limit, v1::r#override::Change::Add(more), until)
    }

    fn except(mut self, limit: &str, change: v1::r#override::Change, until: Option<&str>) -> Self {
        self.0.overrides.push(v1::Override {
            limit: limit.to_owned(),
            expire_time: until.map(|until| timestamp(instant(until))),
            change: Some(change),
        });
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn frozen(mut self) -> Self {
        self.0.frozen = true;
        self
    }
}

impl Client {
    /// Puts a subject, whatever was there before.
    pub async fn put(&self, owner: Owner) -> Result<v1::PutSubjectResponse, Refused> {
        let (namespace, etag) = (self.namespace.clone(), String::new());
        let request = v1::PutSubjectRequest { namespace, subject: Some(owner.0), etag };
        Ok(self.policy.clone().put_subject(request).await?.into_inner())
    }
}

/// An explicit period.
pub fn period(id: &str, start: &str, end: &str) -> v1::BillingPeriod {
    v1::BillingPeriod {
        id: id.to_owned(),
        start_time: Some(timestamp(instant(start))),
        end_time: Some(timestamp(instant(end))),
    }
}

fn all_periods(periods: &[(&str, &str, &str)]) -> Vec<v1::BillingPeriod> {
    periods.iter().map(|(id, start, end)| period(id, start, end)).collect()
}

fn anchor(
    start: &str,
    interval: v1::billing_anchor::Interval,
    time_zone: &str,
) -> v1::BillingAnchor {
    v1::BillingAnchor {
        start_time: Some(timestamp(instant(start))),
        interval: Some(interval),
        time_zone: time_zone.to_owned(),
    }
}
