//! What is charged to counters, as of one moment.
//!
//! A snapshot session reads all as of one cluster time, without a transaction:
//! it locks nothing, and what is written meanwhile it does not see. The server
//! keeps the past for five minutes by default; a reading that takes longer, or
//! that loses its server, begins anew.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use tokio::time::timeout;
use tracing::debug;

use super::Collections;
use super::error::unavailable;
use super::list::date;
use super::load::{PATIENCE, absent, read};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::time::Time;
use crate::store::document::{CounterDoc, ReservationDoc};
use crate::store::{Charged, StoreError, Versioned, Visitor};

/// How often a reading is begun.
const ATTEMPTS: u32 = 6;
/// Before the second attempt; twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(50);
/// How many units are held by the holds that are read in one go.
const PART: i64 = 1000;
/// Codes that tell that this reading has failed, and another may succeed.
const AGAIN: [i32; 14] = [
    246,   // SnapshotUnavailable: an index or the commit point has just changed
    239,   // SnapshotTooOld
    43,    // CursorNotFound
    237,   // CursorKilled
    175,   // QueryPlanKilled
    11601, // Interrupted
    11600, // InterruptedAtShutdown
    11602, // InterruptedDueToReplStateChange
    10107, // NotWritablePrimary
    13435, // NotPrimaryNoSecondaryOk
    13436, // NotPrimaryOrSecondary
    189,   // PrimarySteppedDown
    91,    // ShutdownInProgress
    133,   // FailedToSatisfyReadPreference
];

enum Failure {
    /// Another attempt may succeed.
    Again(StoreError),
    Final(StoreError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let passing = match error.kind.as_ref() {
            ErrorKind::Command(command) => AGAIN.contains(&command.code),
            ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => true,
            _ => false,
        };
        let told = unavailable(&error);
        if passing { Self::Again(told) } else { Self::Final(told) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Final(error)
    }
}

pub(super) async fn charged(
    collections: &Collections,
    counters: &[Arc<CounterId>],
    held_after: Option<Time>,
    visit: &mut Visitor<'_>,
) -> Result<(), StoreError> {
    let mut pause = PAUSE;
    for attempt in 1.. {
        match attempt_once(collections, counters, held_after, visit).await {
            Ok(()) => break,
            Err(Failure::Again(error)) if attempt < ATTEMPTS => {
                debug!(%error, attempt, "a reading of one moment begins anew");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            Err(Failure::Again(error) | Failure::Final(error)) => return Err(error),
        }
    }
    Ok(())
}

async fn attempt_once(
    collections: &Collections,
    counters: &[Arc<CounterId>],
    held_after: Option<Time>,
    visit: &mut Visitor<'_>,
) -> Result<(), Failure> {
    let client = collections.database.client();
    let mut session = in_time(async { client.start_session().snapshot(true).await }).await?;
    let mut found = absent(counters);
    let ids: Vec<&str> = counters.iter().map(|id| id.text.as_str()).collect();
    let query = doc! { "_id": { "$in": &ids } };
    let mut take = |document: &bson::RawDocument| {
        let row: Versioned<Counter> = read::<CounterDoc>(document)?.record_as_it_is()?;
        found.insert(Arc::clone(&row.value.id), Some(row));
        Ok(ControlFlow::Continue(()))
    };
    let _ = each(&collections.counters, query, doc! {}, &mut session, &mut take).await?;
    let mut live: BTreeMap<Time, i64> = BTreeMap::new();
    for row in found.values().flatten() {
        for (until, units) in row.value.live(held_after.unwrap_or(Time::MAX)) {
            let units_then = live.entry(until).or_default();
            *units_then = units_then.saturating_add(units);
        }
    }
    if visit(Charged::Counters(found)).is_break() {
        return Ok(());
    }
    let reservations = &collections.reservations;
    let mut take = |document: &bson::RawDocument| {
        let row = read::<ReservationDoc>(document)?.record()?;
        Ok(visit(Charged::Reservation(row.value)))
    };
    let charged = doc! { "charges.counter": { "$in": ids } };
    if held_after.is_none() {
        // Broken off or not, there is nothing else to read.
        let _ = each(reservations, charged, doc! {}, &mut session, &mut take).await?;
        return Ok(());
    }
    for untils in parts(&live) {
        // By the very instants that the counters name: what was committed at
        // other times, a million maybe, is not looked at.
        let mut query = charged.clone();
        query.insert("expire_time", doc! { "$in": untils });
        query.insert("state", "held");
        let order = doc! { "expire_time": 1 };
        if each(reservations, query, order, &mut session, &mut take).await?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Instants in parts, in order: no more than [`PART`] units are held until
/// those of one part, and so no more holds, unless it is one instant alone.
/// What is asked for at once is in order, and MongoDB may choose to sort it.
fn parts(live: &BTreeMap<Time, i64>) -> Vec<Vec<Bson>> {
    let (mut parts, mut units) = (Vec::<Vec<Bson>>::new(), i64::MAX);
    for (until, more) in live {
        units = units.saturating_add(*more);
        if units > PART {
            parts.push(Vec::new());
            units = *more;
        }
        if let Some(part) = parts.last_mut() {
            part.push(date(*until));
        }
    }
    parts
}

/// Reads documents one after the other, each step in time, until there is no
/// more or `take` breaks off.
async fn each(
    collection: &Collection<RawDocumentBuf>,
    query: Document,
    order: Document,
    session: &mut ClientSession,
    take: &mut (dyn FnMut(&bson::RawDocument) -> Result<ControlFlow<()>, StoreError> + Send),
) -> Result<ControlFlow<()>, Failure> {
    // Said here too: the driver adds the moment to a reading, but leaves the
    // read concern as it finds it.
    let find = collection.find(query).sort(order).read_concern(ReadConcern::snapshot());
    let mut cursor = in_time(async { find.session(&mut *session).await }).await?;
    while in_time(cursor.advance(session)).await? {
        if take(cursor.current())?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

async fn in_time<T>(step: impl Future<Output = mongodb::error::Result<T>>) -> Result<T, Failure> {
    if let Ok(done) = timeout(PATIENCE, step).await {
        return Ok(done?);
    }
    let message = format!("no answer to a read within {PATIENCE:?}");
    Err(Failure::Final(StoreError::Unavailable(message)))
}
