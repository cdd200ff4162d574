//! MongoDB's clock, tracked as an offset to this process's monotonic clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use mongodb::Database;
use tokio::time::timeout;

use crate::domain::time::Time;

/// How long a reading may take; a slower one says too little about the time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A reading that took longer than this may be wrong by as much as half of it,
/// and is only believed where there has been no better one for a while.
const PRECISE: Duration = Duration::from_millis(50);
const A_WHILE: Duration = Duration::from_secs(30);

/// The primary's clock.
pub(super) struct TrackedClock {
    origin: Instant,
    /// The primary's clock at `origin`, in milliseconds.
    offset: AtomicI64,
    /// When it was last read precisely, in milliseconds since `origin`.
    precise: AtomicI64,
}

impl TrackedClock {
    /// Reads the clock once.
    pub async fn start(database: &Database) -> mongodb::error::Result<Self> {
        let (offset, precise) = (AtomicI64::new(0), AtomicI64::new(i64::MIN));
        let clock = Self { origin: Instant::now(), offset, precise };
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
        let precise = received.saturating_sub(sent) <= PRECISE;
        let last = self.precise.load(Ordering::Relaxed);
        if !precise && millis(received).saturating_sub(last) < millis(A_WHILE) {
            return Ok(());
        }
        self.precise.store(millis(received), Ordering::Relaxed);
        // The reading was taken somewhere between sending and receiving.
        let middle = millis((sent + received) / 2);
        self.offset.store(local.timestamp_millis().saturating_sub(middle), Ordering::Relaxed);
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
