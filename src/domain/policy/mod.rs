//! The rules of one namespace.
//!
//! A [`PolicySpec`] is what somebody wrote; [`check`](check::faults) finds
//! everything wrong with it; a [`PolicyRevision`] is a spec that was applied,
//! with its number and the generations of its limits; a [`Policy`] is a
//! revision made ready for matching.

pub mod check;
mod index;
mod listed;
mod lowered;
mod matching;
mod revision;
mod spec;

pub use listed::{listed, ruling};
pub use lowered::{Lowered, lowered, may_be_open};
pub use matching::{Limit, Match, Policy, subject_name};
pub use revision::{Applied, PolicyRevision, RevisionHead};
pub use spec::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
