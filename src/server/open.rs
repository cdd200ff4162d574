//! Store addresses: which store, and where.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tracing::warn;

use crate::store::SharedStore;
use crate::store::clock::Clock;
use crate::store::embedded::EmbeddedStore;
use crate::store::memory::MemoryStore;
use crate::store::mongo::{ConnectError, MongoStore};
use crate::store::test_clock::{self, StoreClock};

/// How long a server waits at its start for a MongoDB that does not answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Where records live.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// Nowhere but in this process: `memory`.
    Memory,
    /// In a folder of this machine: `embedded:PATH`.
    Embedded(PathBuf),
    /// In MongoDB: `mongodb://…` or `mongodb+srv://…`.
    MongoDb(String),
}

impl StoreAddress {
    /// Opens the store, to go by this clock.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is unfit, or has gone by another clock; what to do
    /// about it is in the text.
    pub async fn open(&self, clock: StoreClock) -> Result<SharedStore> {
        let store = self.reach().await?;
        match test_clock::open(Arc::clone(&store), clock).await {
            Ok(store) => Ok(store),
            Err(error) => {
                store.close().await;
                Err(error.into())
            }
        }
    }

    async fn reach(&self) -> Result<SharedStore> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryStore::new(Clock::System))),
            Self::Embedded(folder) => Ok(Arc::new(EmbeddedStore::open(folder, Clock::System)?)),
            Self::MongoDb(uri) => {
                let started = Instant::now();
                loop {
                    match MongoStore::connect(uri).await {
                        Ok(store) => return Ok(Arc::new(store)),
                        Err(ConnectError::Unreachable(message)) if started.elapsed() < PATIENCE => {
                            warn!(%message, "MongoDB does not answer yet; trying again");
                            tokio::time::sleep(Duration::from_secs(1)).await;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }
}

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory" {
            Ok(Self::Memory)
        } else if let Some(path) = text.strip_prefix("embedded:").filter(|path| !path.is_empty()) {
            Ok(Self::Embedded(path.into()))
        } else if text.starts_with("mongodb://") || text.starts_with("mongodb+srv://") {
            Ok(Self::MongoDb(text.to_owned()))
        } else {
            Err("must be memory, embedded:PATH or mongodb://…".to_owned())
        }
    }
}

impl fmt::Debug for StoreAddress {
    /// Without what may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Embedded(path) => write!(f, "embedded:{}", path.display()),
            Self::MongoDb(_) => f.write_str("mongodb://…"),
        }
    }
}
