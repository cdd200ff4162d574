//! How records are written down: BSON documents with words, not codes, the
//! same in every store that keeps bytes.
//!
//! Maps are lists of name and value, since a field name with a dot or a dollar
//! means something else to a database than to the caller who chose it.

mod counter;
pub mod policy;
mod records;
mod reservation;

pub use counter::{CounterDoc, CounterUpdate};
pub use policy::PolicyDoc;
pub use records::{EventDoc, ResourceDoc, RevisionDoc, RevisionHeadDoc, SubjectDoc};
pub use reservation::{ReservationDoc, ReservationUpdate};

use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::domain::name::Dimensions;
use crate::domain::policy::Bound;
use crate::domain::time::Time;
use crate::domain::window::Window;

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

/// A window; absent for a lifetime.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct WindowDoc {
    start: bson::DateTime,
    end: bson::DateTime,
}

impl WindowDoc {
    fn new(window: Window) -> Option<Self> {
        match window {
            Window::Lifetime => None,
            Window::Period { start, end } => Some(Self { start: date(start), end: date(end) }),
        }
    }

    fn window(doc: Option<Self>) -> Result<Window, String> {
        match doc {
            None => Ok(Window::Lifetime),
            Some(doc) => Ok(Window::Period { start: time(doc.start)?, end: time(doc.end)? }),
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
