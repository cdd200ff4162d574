//! The other way to do it: one MongoDB transaction per request, as users write
//! it: with the retry of the driver at hand, which pauses longer and longer, or
//! with the loop that the manuals showed before drivers had one, and that many
//! drivers still have inside, which tries again at once.
//!
//! Nothing above `store/mongo` may know the driver; this file is the one
//! exemption, since what it measures is the driver without this product.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bson::{Document, doc};
use mongodb::error::{Error, Result as MongoResult, TRANSIENT_TRANSACTION_ERROR};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, ClientSession, Collection, Database};

use super::Args;
use super::load::{self, Caller, Step, Tally};

/// As large as the limit that the server is measured with.
const MAX: i64 = 1_000_000_000_000_000;

/// How a transaction that met another is tried again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// As this driver does it.
    Driver,
    /// At once.
    AtOnce,
}

/// Measures on the MongoDB at `uri`, in a database of its own.
pub(super) async fn measure(uri: &str, args: &Args, retry: Retry) -> Result<Tally> {
    let mut options = ClientOptions::parse(uri).await.context("the MongoDB URI is not valid")?;
    options.write_concern = Some(WriteConcern::majority());
    let client = Client::with_options(options)?;
    let database = client.database(&format!("quotad_baseline_{}", uuid::Uuid::now_v7().simple()));
    let measured = measure_in(&client, &database, args, retry).await;
    database.drop().await.context("the baseline's database was not dropped")?;
    measured
}

async fn measure_in(
    client: &Client,
    database: &Database,
    args: &Args,
    retry: Retry,
) -> Result<Tally> {
    let counters: Collection<Document> = database.collection("counters");
    let keys =
        (0..args.keys).map(|n| doc! { "_id": key(n), "max": MAX, "used": 0_i64, "held": 0_i64 });
    counters.insert_many(keys).await.context("the baseline's counters were not made")?;
    // A collection that is made inside a transaction would be locked for all.
    database.create_collection("reservations").await?;
    let mut callers = Vec::new();
    for n in 0..u32::from(args.callers) {
        callers.push(TransactionCaller {
            session: client.start_session().await?,
            counters: counters.clone(),
            reservations: database.collection("reservations"),
            key: key(n % args.keys),
            retry,
        });
    }
    Ok(load::measure(callers, args.length()).await.0)
}

fn key(n: u32) -> String {
    format!("key-{n}")
}

/// A worker of a backend that counts for itself.
struct TransactionCaller {
    session: ClientSession,
    counters: Collection<Document>,
    reservations: Collection<Document>,
    key: String,
    retry: Retry,
}

impl Caller for TransactionCaller {
    async fn step(&mut self, end: Instant) -> Result<Step, String> {
        let id = uuid::Uuid::now_v7().to_string();
        let started = Instant::now();
        self.reserve(&id, end).await.map_err(|error| error.to_string())?;
        let reserved = Instant::now();
        self.commit(&id, end).await.map_err(|error| error.to_string())?;
        Ok(Step::Pair { reserve: reserved - started, commit: reserved.elapsed() })
    }
}

impl TransactionCaller {
    async fn reserve(&mut self, id: &str, end: Instant) -> MongoResult<()> {
        // Owned, since a callback that borrows cannot be run on other threads.
        let (counters, reservations) = (self.counters.clone(), self.reservations.clone());
        let key = self.key.as_str();
        let until = bson::DateTime::now().saturating_add_duration(Duration::from_mins(1));
        let room = doc! {
            "_id": key,
            "$expr": { "$lte": [{ "$add": ["$used", "$held", 1_i64] }, "$max"] },
        };
        let held = doc! { "$inc": { "held": 1_i64 } };
        let reservation = doc! {
            "_id": id, "key": key, "state": "HELD", "amount": 1_i64, "expire_time": until,
        };
        self.transaction(async move |session| {
            in_time(end)?;
            let counted =
                counters.update_one(room.clone(), held.clone()).session(&mut *session).await?;
            if counted.modified_count == 0 {
                return Err(Error::custom("no room"));
            }
            reservations.insert_one(&reservation).session(session).await?;
            Ok(())
        })
        .await
    }

    async fn commit(&mut self, id: &str, end: Instant) -> MongoResult<()> {
        let (counters, reservations) = (self.counters.clone(), self.reservations.clone());
        let key = self.key.as_str();
        let held = doc! { "_id": id, "state": "HELD" };
        let committed = doc! { "$set": { "state": "COMMITTED" } };
        let counter = doc! { "_id": key };
        let used = doc! { "$inc": { "held": -1_i64, "used": 1_i64 } };
        self.transaction(async move |session| {
            in_time(end)?;
            let settled = reservations
                .update_one(held.clone(), committed.clone())
                .session(&mut *session)
                .await?;
            if settled.modified_count == 0 {
                return Err(Error::custom("not held"));
            }
            counters.update_one(counter.clone(), used.clone()).session(session).await?;
            Ok(())
        })
        .await
    }
}

impl TransactionCaller {
    /// Runs one transaction until it is committed or fails for good.
    async fn transaction<F>(&mut self, mut work: F) -> MongoResult<()>
    where
        F: for<'s> AsyncFnMut(&'s mut ClientSession) -> MongoResult<()>,
    {
        if self.retry == Retry::Driver {
            return self.session.start_transaction().and_run2(work).await;
        }
        loop {
            self.session.start_transaction().await?;
            let mut done = work(&mut self.session).await;
            if done.is_ok() {
                done = self.session.commit_transaction().await;
            } else {
                // The server has most often aborted it already.
                let _ = self.session.abort_transaction().await;
            }
            match done {
                Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {}
                done => return done,
            }
        }
    }
}

/// Ends the driver's retries, which would go on for two minutes.
fn in_time(end: Instant) -> MongoResult<()> {
    if Instant::now() < end { Ok(()) } else { Err(Error::custom("the time is over")) }
}
