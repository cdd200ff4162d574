//! Changes of policies and subjects. Rare, so each is a write of its own,
//! guarded like all others and tried again when another was first.

mod over_limit;
mod policy;
mod subject;
#[cfg(test)]
mod tests;

pub use over_limit::OverLimit;
pub use policy::{PolicyApplied, PolicyChange};
pub use subject::SubjectPut;

use super::{Engine, Error};
use crate::store::{ChangeSet, WriteError};

/// How often a change is tried while others are first.
const ATTEMPTS: u32 = 16;

impl Engine {
    /// Writes changes; false when another was first, or perhaps this very
    /// write: reading again tells.
    async fn write_once(&self, changes: &ChangeSet) -> Result<bool, Error> {
        match self.store.write(changes).await {
            Ok(()) => Ok(true),
            Err(WriteError::Conflict | WriteError::Exists) => {
                let pause = std::time::Duration::from_millis(1 + fastrand::u64(0..10));
                tokio::time::sleep(pause).await;
                Ok(false)
            }
            Err(WriteError::Failed(message)) => Err(Error::Unavailable(message)),
            Err(WriteError::Unknown(_)) => Err(Error::OutcomeUnknown),
        }
    }
}
