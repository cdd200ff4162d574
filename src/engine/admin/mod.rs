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

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use super::{Engine, Error};
use crate::store::{ChangeSet, WriteError};

/// How often a change is tried while those of other servers are first.
const ATTEMPTS: u32 = 64;
/// The longest pause before the next attempt.
const PAUSE_AT_MOST: Duration = Duration::from_millis(200);
/// How many changes of different things may go on at once.
const DOORS: usize = 256;

/// Lets changes of one policy or subject through this server one at a time, so
/// that they neither get in each other's way nor take up their copies in
/// another order than they were written in.
pub(super) struct Doors {
    doors: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Doors {
    pub fn new() -> Self {
        let doors = (0..DOORS).map(|_| Mutex::new(())).collect();
        Self { doors, hasher: RandomState::new() }
    }

    /// Waits for those who are changing the same thing. Others may share the
    /// door by chance.
    async fn pass(&self, key: &str) -> MutexGuard<'_, ()> {
        let door = self.hasher.hash_one(key) % DOORS as u64;
        self.doors[usize::try_from(door).unwrap_or_default()].lock().await
    }
}

impl Engine {
    /// Writes changes; false when another was first, or perhaps this very
    /// write: reading again tells.
    async fn write_once(&self, changes: &ChangeSet, attempt: u32) -> Result<bool, Error> {
        match self.store.write(changes).await {
            Ok(()) => Ok(true),
            Err(WriteError::Conflict | WriteError::Exists) => {
                let pause = Duration::from_millis(1 + fastrand::u64(0..5 << attempt.min(8)));
                tokio::time::sleep(pause.min(PAUSE_AT_MOST)).await;
                Ok(false)
            }
            Err(WriteError::Failed(message)) => Err(Error::Unavailable(message)),
            Err(WriteError::Unknown(_)) => Err(Error::OutcomeUnknown),
        }
    }
}
