//! Events: the trail of changes that are not a reservation's own history.

use super::name::Dimensions;
use super::time::Time;

/// One change of a policy or a subject, stored in the same atomic write as
/// the change itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The namespace.
    pub namespace: String,
    /// When.
    pub time: Time,
    /// What.
    pub kind: EventKind,
    /// Who.
    pub principal: String,
    /// The subject concerned, as `kind/id`; empty when none is.
    pub subject: String,
    /// More, by name: revision, plan before and after, and so on.
    pub details: Dimensions,
}

/// What happened in an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A policy got a new revision.
    PolicyApplied,
    /// A subject was created or changed.
    SubjectPut,
    /// A subject was deleted.
    SubjectDeleted,
}
