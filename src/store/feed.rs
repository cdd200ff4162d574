//! The feed: what anybody has changed, told as it happens.

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};

use crate::domain::name::SubjectKey;

/// A record that somebody changed, perhaps another process. It is told once
/// the change is durable; what it is now, the store says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// The policy of this namespace.
    Policy(String),
    /// This subject.
    Subject(SubjectKey),
}

/// Changes as they happen; it never ends. It may tell one twice, and it may
/// leave some out, such as those made while the store was away: it makes
/// things quicker, and nothing may rest on it.
pub type Feed = BoxStream<'static, Changed>;

/// What is told of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterChanged {
    /// Somebody wrote this one, named by its
    /// [`text`](crate::domain::counter::CounterId::text).
    One(String),
    /// The feed has begun, or was interrupted: any may have been written
    /// before.
    Any,
}

/// Changes of counters as they happen; like [`Feed`] it never ends, may tell
/// one twice, and promises nothing.
pub type CounterFeed = BoxStream<'static, CounterChanged>;

/// The feed of a store that nobody but this process writes to, which knows of
/// its own changes.
pub(super) fn silent<T: Send + 'static>() -> BoxStream<'static, T> {
    stream::pending().boxed()
}
