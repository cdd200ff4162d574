//! A policy as it is written: the same words in the YAML file, in JSON and in
//! the stored document.
//!
//! What is read is first a [`Tree`], whatever it is, and becomes a policy in a
//! second step. Deriving the structures would stop at the first fault; whoever
//! writes a policy by hand wants all of them, each with its path.

#[cfg(test)]
mod any;
mod length;
mod read;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub use length::parse_length;
pub use tree::Tree;

use serde::{Deserialize, Serialize};

use crate::domain::name::Violation;
use crate::domain::policy::PolicySpec;

/// A policy in its written form, right or wrong.
///
/// Deserializing fails only where the format does; what the document says is
/// looked at by [`PolicyDoc::into_spec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyDoc(Tree);

impl PolicyDoc {
    /// The written form of `spec`, in the shortest words: what is left at its
    /// default is left out.
    pub fn from_spec(spec: &PolicySpec) -> Self {
        Self(write::policy(spec))
    }

    /// The policy that the document writes down. Only its form is looked at:
    /// whether a policy makes sense is for
    /// [`faults`](crate::domain::policy::check::faults) to say.
    ///
    /// # Errors
    ///
    /// Every fault of form, with its path: keys that are unknown, missing or
    /// written twice, values of the wrong kind, windows that this version does
    /// not serve.
    pub fn into_spec(self) -> Result<PolicySpec, Vec<Violation>> {
        let (spec, faults) = self.read();
        if faults.is_empty() { Ok(spec) } else { Err(faults) }
    }

    /// What can be read, and every fault of form. Where there is a fault, the
    /// policy has a harmless value in its place, so that the rest can be
    /// checked too; it must not be used for anything else.
    pub fn read(&self) -> (PolicySpec, Vec<Violation>) {
        read::policy(&self.0)
    }
}

#[cfg(test)]
impl PolicyDoc {
    /// Policies of every form, for tests of what reads and writes them.
    pub fn any_spec() -> impl proptest::strategy::Strategy<Value = PolicySpec> {
        any::policy()
    }
}

impl From<Tree> for PolicyDoc {
    fn from(tree: Tree) -> Self {
        Self(tree)
    }
}

/// The words of the written form, each with what it means.
mod words {
    use jiff::civil::Weekday;

    use crate::domain::policy::{CalendarUnit, Mode};

    /// Stands for the absence of a maximum.
    pub const UNLIMITED: &str = "unlimited";
    /// Stands for the window without an end.
    pub const LIFETIME: &str = "lifetime";
    /// The zone of calendar windows that name none.
    pub const UTC: &str = "UTC";

    pub const UNITS: [(&str, CalendarUnit); 5] = [
        ("hour", CalendarUnit::Hour),
        ("day", CalendarUnit::Day),
        ("week", CalendarUnit::Week),
        ("month", CalendarUnit::Month),
        ("year", CalendarUnit::Year),
    ];

    pub const WEEKDAYS: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];

    pub const MODES: [(&str, Mode); 2] =
        [("enforced", Mode::Enforced), ("observed", Mode::Observed)];

    /// The word for `meaning`; every meaning has one.
    pub fn word<T: PartialEq>(words: &[(&'static str, T)], meaning: &T) -> &'static str {
        words.iter().find(|(_, one)| one == meaning).map_or("", |(word, _)| word)
    }
}
