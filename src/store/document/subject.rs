//! Subjects as documents.

use serde::{Deserialize, Serialize};

use super::{Pair, damaged, date, map, pairs, time};
use crate::domain::subject::{Override, OverrideChange, Subject};
use crate::domain::time::Span;
use crate::domain::window::{Anchor, Billing, BillingPeriod, Interval, OnLapse};
use crate::store::{Change, StoreError, Versioned};

/// A subject.
#[derive(Debug, Serialize, Deserialize)]
pub struct SubjectDoc {
    /// [`crate::domain::name::SubjectKey`].
    #[serde(rename = "_id")]
    pub id: String,
    version: i64,
    namespace: String,
    kind: String,
    subject_id: String,
    plan: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    billing: Option<BillingDoc>,
    overrides: Vec<OverrideDoc>,
    frozen: bool,
    labels: Vec<Pair>,
    update_time: bson::DateTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct OverrideDoc {
    limit: String,
    #[serde(flatten)]
    change: OverrideWord,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_time: Option<bson::DateTime>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverrideWord {
    Set(i64),
    Add(i64),
}

/// Explicit billing periods, or an anchor.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct BillingDoc {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    periods: Vec<PeriodDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_lapse: Option<OnLapseWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<AnchorDoc>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PeriodDoc {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    id: String,
    start: bson::DateTime,
    end: bson::DateTime,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnLapseWord {
    Deny,
    Roll,
}

#[derive(Debug, Serialize, Deserialize)]
struct AnchorDoc {
    start: bson::DateTime,
    #[serde(flatten)]
    interval: IntervalWord,
    time_zone: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IntervalWord {
    EveryMonths(i32),
    EveryMs(i64),
}

impl SubjectDoc {
    /// The document of a change.
    pub fn new(change: &Change<Subject>) -> Self {
        let subject = &change.value;
        let over = |over: &Override| OverrideDoc {
            limit: over.limit.clone(),
            change: match over.change {
                OverrideChange::Set(max) => OverrideWord::Set(max),
                OverrideChange::Add(more) => OverrideWord::Add(more),
            },
            expire_time: over.expire_time.map(date),
        };
        Self {
            id: subject.key().as_str().to_owned(),
            version: change.version,
            namespace: subject.namespace.clone(),
            kind: subject.kind.clone(),
            subject_id: subject.id.clone(),
            plan: subject.plan.clone(),
            billing: subject.billing.as_ref().map(BillingDoc::new),
            overrides: subject.overrides.iter().map(over).collect(),
            frozen: subject.frozen,
            labels: pairs(&subject.labels),
            update_time: date(subject.update_time),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<Versioned<Subject>, StoreError> {
        let id = self.id.clone();
        self.convert().map_err(|message| damaged(&id, message))
    }

    fn convert(self) -> Result<Versioned<Subject>, String> {
        let over = |over: OverrideDoc| {
            Ok(Override {
                limit: over.limit,
                change: match over.change {
                    OverrideWord::Set(max) => OverrideChange::Set(max),
                    OverrideWord::Add(more) => OverrideChange::Add(more),
                },
                expire_time: over.expire_time.map(time).transpose()?,
            })
        };
        let value = Subject {
            namespace: self.namespace,
            kind: self.kind,
            id: self.subject_id,
            plan: self.plan,
            billing: self.billing.map(BillingDoc::billing).transpose()?,
            overrides: self.overrides.into_iter().map(over).collect::<Result<_, String>>()?,
            frozen: self.frozen,
            labels: map(self.labels),
            update_time: time(self.update_time)?,
        };
        if value.key().as_str() != self.id {
            return Err(format!("its fields say that it is {}", value.key()));
        }
        Ok(Versioned { version: self.version, value })
    }
}

impl BillingDoc {
    fn new(billing: &Billing) -> Self {
        match billing {
            Billing::Periods { periods, on_lapse } => Self {
                periods: periods.iter().map(PeriodDoc::new).collect(),
                on_lapse: Some(match on_lapse {
                    OnLapse::Deny => OnLapseWord::Deny,
                    OnLapse::Roll => OnLapseWord::Roll,
                }),
                anchor: None,
            },
            Billing::Anchor(anchor) => {
                let anchor = AnchorDoc {
                    start: date(anchor.start),
                    interval: match anchor.interval {
                        Interval::Months(months) => IntervalWord::EveryMonths(months),
                        Interval::Every(span) => IntervalWord::EveryMs(span.as_millis()),
                    },
                    time_zone: anchor.time_zone.clone(),
                };
                Self { anchor: Some(anchor), ..Self::default() }
            }
        }
    }

    fn billing(self) -> Result<Billing, String> {
        let billing = match self.anchor {
            Some(anchor) => Billing::Anchor(Anchor {
                start: time(anchor.start)?,
                interval: match anchor.interval {
                    IntervalWord::EveryMonths(months) => Interval::Months(months),
                    IntervalWord::EveryMs(millis) => Interval::Every(Span::from_millis(millis)),
                },
                time_zone: anchor.time_zone,
            }),
            None => Billing::Periods {
                periods: self
                    .periods
                    .into_iter()
                    .map(PeriodDoc::period)
                    .collect::<Result<_, _>>()?,
                on_lapse: match self.on_lapse {
                    None | Some(OnLapseWord::Deny) => OnLapse::Deny,
                    Some(OnLapseWord::Roll) => OnLapse::Roll,
                },
            },
        };
        // The rules divide by its lengths.
        match billing.faults("billing").first() {
            None => Ok(billing),
            Some(fault) => Err(fault.to_string()),
        }
    }
}

impl PeriodDoc {
    fn new(period: &BillingPeriod) -> Self {
        Self { id: period.id.clone(), start: date(period.start), end: date(period.end) }
    }

    fn period(self) -> Result<BillingPeriod, String> {
        Ok(BillingPeriod { id: self.id, start: time(self.start)?, end: time(self.end)? })
    }
}
