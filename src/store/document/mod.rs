//! How records are written down: BSON documents with words, not codes, the
//! same in every store that keeps bytes.
//!
//! Maps are lists of name and value, since a field name with a dot or a dollar
//! means something else to a database than to the caller who chose it.

mod counter;
pub mod policy;
mod records;
mod reservation;
mod subject;
mod trail;

pub use counter::{CounterDoc, CounterUpdate};
pub use policy::PolicyDoc;
pub use records::{ResourceDoc, RevisionDoc, RevisionHeadDoc};
pub use reservation::{ReservationDoc, ReservationUpdate};
pub use subject::SubjectDoc;
pub use trail::{EventDoc, RefusalDoc};

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::domain::name::Dimensions;
use crate::domain::policy::Bound;
use crate::domain::time::{Span, Time};
use crate::domain::window::{Rolling, Window};

/// Reads a document from its bytes.
///
/// # Errors
///
/// The record is damaged: not what this program writes.
pub fn decode<'b, D: Deserialize<'b>>(key: &str, bytes: &'b [u8]) -> Result<D, StoreError> {
    bson::deserialize_from_slice(bytes).map_err(|error| damaged(key, error))
}

/// The error for a record that is not what this program writes.
pub fn damaged(key: &str, message: impl ToString) -> StoreError {
    StoreError::Damaged { key: key.to_owned(), message: message.to_string() }
}

/// One entry of a map.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pair {
    name: String,
    value: String,
}

fn pairs(map: &Dimensions) -> Vec<Pair> {
    map.iter().map(|(name, value)| Pair { name: name.clone(), value: value.clone() }).collect()
}

fn map(pairs: Vec<Pair>) -> Dimensions {
    pairs.into_iter().map(|pair| (pair.name, pair.value)).collect()
}

/// A window; absent for a lifetime. One that stands still has a start and an
/// end, one that moves on a length.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct WindowDoc {
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<bson::DateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<bson::DateTime>,
    /// The id of a billing period.
    #[serde(skip_serializing_if = "Option::is_none")]
    billing_period: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rolling_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_ms: Option<i64>,
}

impl WindowDoc {
    fn new(window: &Window) -> Option<Self> {
        let from = |start: Time, end: Time| Self {
            start: Some(date(start)),
            end: Some(date(end)),
            ..Self::default()
        };
        match window {
            Window::Lifetime => None,
            Window::Period { start, end } => Some(from(*start, *end)),
            Window::Billing { id, start, end } => {
                Some(Self { billing_period: Some(id.to_string()), ..from(*start, *end) })
            }
            Window::Rolling(rolling) => Some(Self {
                rolling_ms: Some(rolling.length.as_millis()),
                bucket_ms: Some(rolling.bucket.as_millis()),
                ..Self::default()
            }),
        }
    }

    fn window(doc: Option<Self>) -> Result<Window, String> {
        let Some(doc) = doc else { return Ok(Window::Lifetime) };
        match doc {
            Self { rolling_ms: Some(length), bucket_ms: Some(bucket), .. }
                if length > 0 && bucket > 0 =>
            {
                let (length, bucket) = (Span::from_millis(length), Span::from_millis(bucket));
                Ok(Window::Rolling(Rolling { length, bucket }))
            }
            Self { start: Some(start), end: Some(end), billing_period, .. } => {
                let (start, end) = (time(start)?, time(end)?);
                Ok(match billing_period {
                    None => Window::Period { start, end },
                    Some(id) => Window::Billing { id: id.into(), start, end },
                })
            }
            _ => Err("its window has neither start and end nor a length".to_owned()),
        }
    }
}

/// A number of units or the word `unlimited`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum BoundDoc {
    AtMost(i64),
    Word(BoundWord),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BoundWord {
    Unlimited,
}

impl From<Bound> for BoundDoc {
    fn from(bound: Bound) -> Self {
        match bound {
            Bound::AtMost(max) => Self::AtMost(max),
            Bound::Unlimited => Self::Word(BoundWord::Unlimited),
        }
    }
}

impl From<BoundDoc> for Bound {
    fn from(doc: BoundDoc) -> Self {
        match doc {
            BoundDoc::AtMost(max) => Self::AtMost(max),
            BoundDoc::Word(BoundWord::Unlimited) => Self::Unlimited,
        }
    }
}

fn date(time: Time) -> bson::DateTime {
    bson::DateTime::from_millis(time.as_millis())
}

fn time(date: bson::DateTime) -> Result<Time, String> {
    let millis = date.timestamp_millis();
    Time::from_millis(millis).ok_or_else(|| format!("{millis} ms is not a time"))
}
