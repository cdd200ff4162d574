//! MongoDB's clock, tracked as an offset to this process's monotonic clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use mongodb::Database;
use tokio::time::timeout;

use crate::domain::time::Time;

/// How long a reading may take; a slower one says too little about the time.
const PATIENCE: Duration = Duration::from_secs(2);

/// The primary's clock.
pub(super) struct TrackedClock {
    origin: Instant,
    /// The primary's clock at `origin`, in milliseconds.
    offset: AtomicI64,
}

impl TrackedClock {
    /// Reads the clock once.
    pub async fn start(database: &Database) -> mongodb::error::Result<Self> {
        let clock = Self { origin: Instant::now(), offset: AtomicI64::new(0) };
        clock.sync(database).await?;
        Ok(clock)
    }

    /// The time now.
    pub fn now(&self) -> Time {
        let offset = self.offset.load(Ordering::Relaxed);
        Time::saturating(offset.saturating_add(millis(self.origin.elapsed())))
    }

    /// Reads the clock again.
    pub async fn sync(&self, database: &Database) -> mongodb::error::Result<()> {
        let sent = self.origin.elapsed();
        let hello = timeout(PATIENCE, database.run_command(doc! { "hello": 1 }));
        let reply = hello.await.map_err(|_| mongodb::error::Error::custom("hello timed out"))??;
        let received = self.origin.elapsed();
        let local = reply
            .get_datetime("localTime")
            .map_err(|_| mongodb::error::Error::custom("hello lacks localTime"))?;
        // The reading was taken somewhere between sending and receiving.
        let middle = millis((sent + received) / 2);
        self.offset.store(local.timestamp_millis().saturating_sub(middle), Ordering::Relaxed);
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
