//! What is charged to counters, as of one moment.
//!
//! The moment is one at which nobody writes: a reading transaction that begins
//! there sees the file as it is then, for as long as it lasts. What is to be
//! shown is read by a thread of its own, a part at a time, never far ahead of
//! whoever looks at it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::file::{File, Snapshot};
use super::index::Index;
use super::row::Kind;
use crate::domain::counter::CounterId;
use crate::domain::time::Time;
use crate::store::document::{CounterDoc, ReservationDoc, decode};
use crate::store::{Charged, StoreError, Visitor};

/// How many reservations are read in one go.
const PART: usize = 256;

type Parts = mpsc::Sender<Result<Vec<Charged>, StoreError>>;

pub(super) async fn charged(
    file: &Arc<File>,
    counters: Vec<Arc<CounterId>>,
    held_after: Option<Time>,
    visit: &mut Visitor<'_>,
) -> Result<(), StoreError> {
    let (sender, mut parts) = mpsc::channel(2);
    let file = Arc::clone(file);
    let reading = tokio::task::spawn_blocking(move || {
        let look = |index: &Index| {
            let texts = counters.iter().map(|id| id.text.as_str());
            let places = index.places(Kind::Counter, texts);
            (places, index.lists.charged(&counters, held_after))
        };
        let read = file.at_rest(look, |(places, takers), snapshot| {
            read(&counters, places, &takers, snapshot, &sender)
        });
        if let Err(error) = read {
            // Nobody may be looking any more.
            let _ = sender.blocking_send(Err(error));
        }
    });
    while let Some(part) = parts.recv().await {
        if part?.into_iter().try_for_each(&mut *visit).is_break() {
            return Ok(());
        }
    }
    // It has said all it had to say; what is left to hear is whether it got so
    // far.
    reading.await.map_err(|error| StoreError::Unavailable(error.to_string()))
}

fn read(
    counters: &[Arc<CounterId>],
    places: Vec<(String, u64)>,
    takers: &[(Arc<str>, u64)],
    snapshot: &Snapshot,
    parts: &Parts,
) -> Result<(), StoreError> {
    let mut found: HashMap<_, _> = counters.iter().map(|id| (Arc::clone(id), None)).collect();
    for (key, bytes) in snapshot.read(places)? {
        let row = decode::<CounterDoc>(&key, &bytes)?.record_as_it_is()?;
        found.insert(Arc::clone(&row.value.id), Some(row));
    }
    let mut part = vec![Charged::Counters(found)];
    for takers in takers.chunks(PART) {
        let places = takers.iter().map(|(key, number)| (key.to_string(), *number));
        for (key, bytes) in snapshot.read(places.collect())? {
            let row = decode::<ReservationDoc>(&key, &bytes)?.record()?;
            part.push(Charged::Reservation(row.value));
        }
        if parts.blocking_send(Ok(std::mem::take(&mut part))).is_err() {
            return Ok(());
        }
    }
    if !part.is_empty() {
        let _ = parts.blocking_send(Ok(part));
    }
    Ok(())
}
