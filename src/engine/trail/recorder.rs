//! The record of refusals: written off the path of decisions, a little later,
//! and not at all where there are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::domain::event::RefusalRecord;
use crate::store::SharedStore;

/// The most refusals that wait to be written, and their most bytes.
const WAITING: usize = 1024;
const MAX_BYTES: usize = 8 << 20;
/// The most that are written in one go, and how often that is done.
const PART: usize = 256;
const EVERY: Duration = Duration::from_millis(200);
/// How long a server that ends takes to write what is left.
const FAREWELL: Duration = Duration::from_secs(2);

/// Takes refusals in.
#[derive(Clone)]
pub(in crate::engine) struct Recorder {
    sender: mpsc::Sender<RefusalRecord>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Bytes of what waits.
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

impl Recorder {
    /// A recorder, and the work of writing what it takes in, which ends some
    /// time after the other end of `stopped` is used or dropped.
    pub fn new(
        store: SharedStore,
        stopped: oneshot::Receiver<()>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let shared = Arc::new(Shared::default());
        let writer = Writer { store, receiver, shared: Arc::clone(&shared) };
        (Self { sender, shared }, writer.run(stopped))
    }

    /// Takes a refusal in, if there is room.
    pub fn note(&self, record: impl FnOnce() -> Option<RefusalRecord>) {
        if self.sender.capacity() == 0 {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(mut refused) = record() else { return };
        refused.shorten();
        let weight = refused.weight();
        let bytes = self.shared.bytes.fetch_add(weight, Ordering::Relaxed) + weight;
        if bytes > MAX_BYTES || self.sender.try_send(refused).is_err() {
            self.shared.bytes.fetch_sub(weight, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer {
    store: SharedStore,
    receiver: mpsc::Receiver<RefusalRecord>,
    shared: Arc<Shared>,
}

impl Writer {
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.write_forever() => {}
            _ = stopped => {
                self.receiver.close();
                let rest = async { while self.write_part().await {} };
                if tokio::time::timeout(FAREWELL, rest).await.is_err() {
                    debug!("the store does not take the latest refusals; leaving them");
                }
            }
        }
    }

    async fn write_forever(&mut self) {
        while self.write_part().await {
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Waits for refusals and writes them; false when there will be none any
    /// more.
    async fn write_part(&mut self) -> bool {
        let mut part = Vec::new();
        if self.receiver.recv_many(&mut part, PART).await == 0 {
            return false;
        }
        let bytes = part.iter().map(RefusalRecord::weight).sum();
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Err(error) = self.store.note_refusals(&part).await {
            debug!(%error, count = part.len(), "refusals are not in the trail");
        }
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            debug!(dropped, "refusals are not in the trail: there were too many");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Time;
    use crate::store::clock::{Clock, ManualClock};
    use crate::store::memory::MemoryStore;
    use crate::store::{Store as _, TrailFilter};

    fn refusal(n: usize, message: &str) -> RefusalRecord {
        RefusalRecord {
            namespace: "n".to_owned(),
            time: Time::saturating(i64::try_from(n).unwrap()),
            principal: String::new(),
            reservation_id: n.to_string(),
            call: "reserve".to_owned(),
            reason: "QUOTA_EXCEEDED".to_owned(),
            items: Vec::new(),
            limits: Vec::new(),
            message: message.to_owned(),
            details: std::collections::BTreeMap::new(),
        }
    }

    fn store() -> Arc<MemoryStore> {
        Arc::new(MemoryStore::new(Clock::Manual(ManualClock::at(Time::default()))))
    }

    async fn kept(store: &MemoryStore) -> Vec<String> {
        let filter = TrailFilter { namespace: "n".to_owned(), ..TrailFilter::default() };
        let found = store.refusals_before(&filter, None, 10_000).await.unwrap();
        found.into_iter().map(|kept| kept.value.reservation_id).rev().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_a_part_is_written_at_a_time_and_what_does_not_fit_is_dropped() {
        let store = store();
        let (stop, stopped) = oneshot::channel();
        let (recorder, writer) = Recorder::new(store.clone(), stopped);
        for n in 0..WAITING + 100 {
            recorder.note(|| Some(refusal(n, "")));
        }
        assert_eq!(recorder.shared.dropped.load(Ordering::Relaxed), 100);
        let writer = tokio::spawn(writer);
        let begun = tokio::time::Instant::now();
        for parts in 1..=WAITING / PART {
            let count = u32::try_from(parts).unwrap();
            tokio::time::sleep_until(begun + EVERY * count - Duration::from_millis(1)).await;
            assert_eq!(kept(&store).await.len(), parts * PART);
        }
        tokio::time::sleep_until(begun + EVERY * 5).await;
        recorder.note(|| Some(refusal(WAITING + 100, "")));
        recorder.note(|| None);
        stop.send(()).unwrap();
        writer.await.unwrap();
        let expected: Vec<String> =
            (0..WAITING).chain([WAITING + 100]).map(|n| n.to_string()).collect();
        assert_eq!(kept(&store).await, expected, "what was taken in is written in the end");
        assert_eq!(recorder.shared.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_too() {
        let (_stop, stopped) = oneshot::channel();
        let (recorder, _writer) = Recorder::new(store(), stopped);
        for n in 0..10 {
            recorder.note(|| Some(refusal(n, &"x".repeat(1 << 20))));
        }
        assert_eq!(recorder.shared.dropped.load(Ordering::Relaxed), 3);
    }
}
