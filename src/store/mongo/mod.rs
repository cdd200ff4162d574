//! The product's store: MongoDB, a replica set or a sharded cluster.
//!
//! A change set is one transaction under majority write concern; each write in
//! it is guarded by the version that its document must have, so several
//! servers share a database without a leader. Loads go outside transactions,
//! to the primary, under majority read concern: what an answer rests on cannot
//! be rolled back.

mod charged;
mod clock;
mod error;
mod failpoint;
mod feed;
mod list;
mod load;
mod schema;
mod sessions;
mod trail;
mod values;
mod write;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bson::{Document, RawDocumentBuf};
use mongodb::options::{
    ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Client, Collection, Database};
use thiserror::Error;

use super::{
    ChangeSet, CounterFeed, CounterFilter, CounterPlace, Feed, Kept, Loaded, ReservationFilter,
    Retention, Store, StoreError, SubjectFilter, TrailFilter, TrailPlace, Versioned, Visitor,
    WriteError,
};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use clock::TrackedClock;
use error::unavailable;
use sessions::Sessions;

/// The database when the URI names none.
const DEFAULT_DATABASE: &str = "quotad";
/// How long the driver looks for a primary before a call fails. Elections take
/// longer, but a caller who is told to come back can go elsewhere meanwhile.
const SERVER_SELECTION: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(2);
/// How often each server is asked how it is. The driver's own ten seconds are
/// how long it would believe a server dead that only stumbled, and the better
/// part of how long it takes to miss one that is paused.
const MONITOR: Duration = Duration::from_secs(1);

/// A store on MongoDB.
pub struct MongoStore {
    collections: Arc<Collections>,
    sessions: Arc<Sessions>,
    clock: Arc<TrackedClock>,
    beat: tokio::task::JoinHandle<()>,
}

/// Why a MongoDB cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The URI is not one.
    #[error("the MongoDB URI is not valid: {0}")]
    Uri(String),
    /// It does not answer (yet).
    #[error("MongoDB does not answer: {0}")]
    Unreachable(String),
    /// It answers, but cannot be used as it is.
    #[error("{0}")]
    Unfit(String),
}

/// The collections, with read and write concerns set.
struct Collections {
    database: Database,
    reservations: Collection<RawDocumentBuf>,
    counters: Collection<RawDocumentBuf>,
    resources: Collection<RawDocumentBuf>,
    subjects: Collection<RawDocumentBuf>,
    policies: Collection<RawDocumentBuf>,
    events: Collection<RawDocumentBuf>,
    refusals: Collection<RawDocumentBuf>,
    meta: Collection<Document>,
}

impl MongoStore {
    /// Connects, checks that the deployment can do transactions, creates what
    /// is missing (but for the indexes of retention: see [`Store::retain`]),
    /// and starts the heartbeat.
    ///
    /// # Errors
    ///
    /// The URI is wrong, nothing answers, or the deployment is unfit: a
    /// standalone server, or a database of a newer version of this program.
    pub async fn connect(uri: &str) -> Result<Self, ConnectError> {
        let mut options = ClientOptions::parse(uri)
            .await
            .map_err(|error| ConnectError::Uri(error.to_string()))?;
        options.app_name.get_or_insert_with(|| "quotad".to_owned());
        options.connect_timeout.get_or_insert(CONNECT);
        options.server_selection_timeout.get_or_insert(SERVER_SELECTION);
        options.heartbeat_freq.get_or_insert(MONITOR);
        // Whatever the URI says: an acknowledged answer must survive (I5).
        options.write_concern = Some(WriteConcern::majority());
        options.read_concern = Some(ReadConcern::majority());
        options.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        schema::check_deployment(&options).await?;
        let database = options.default_database.clone();
        let client =
            Client::with_options(options).map_err(|error| ConnectError::Uri(error.to_string()))?;
        let database = client.database(database.as_deref().unwrap_or(DEFAULT_DATABASE));
        schema::prepare(&database).await?;
        let clock = Arc::new(TrackedClock::start(&database).await.map_err(unreachable)?);
        let sessions = Sessions::start(client, database.clone()).await.map_err(unreachable)?;
        let sessions = Arc::new(sessions);
        let beat = tokio::spawn(Arc::clone(&sessions).beat_forever(Arc::clone(&clock)));
        let collections = Arc::new(Collections {
            reservations: database.collection("reservations"),
            counters: database.collection("counters"),
            resources: database.collection("resources"),
            subjects: database.collection("subjects"),
            policies: database.collection("policies"),
            events: database.collection("events"),
            refusals: trail::refusals(&database),
            meta: database.collection("meta"),
            database,
        });
        Ok(Self { collections, sessions, clock, beat })
    }
}

fn unreachable(error: mongodb::error::Error) -> ConnectError {
    ConnectError::Unreachable(error::brief(&error))
}

#[async_trait]
impl Store for MongoStore {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        load::load(&self.collections, keys).await
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        write::write(&self.collections, &self.sessions, changes).await
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        load::policy_head(&self.collections, namespace).await
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        load::policy(&self.collections, namespace, revision).await
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        load::revisions_before(&self.collections, namespace, before, limit).await
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        load::subjects_after(&self.collections, filter, key, limit).await
    }

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        load::reservations_after(&self.collections, key, limit).await
    }

    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        load::counters_after(&self.collections, key, limit).await
    }

    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError> {
        trail::events_before(&self.collections, filter, before, limit).await
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        trail::refusals_before(&self.collections, filter, before, limit).await
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        trail::note_refusals(&self.collections, refusals).await
    }

    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        charged::charged(&self.collections, counters, held_after, visit).await
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        list::reservations_before(&self.collections, filter, before, limit).await
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        list::counters_of(&self.collections, filter, after, limit).await
    }

    fn changes(&self) -> Feed {
        feed::follow(self.collections.database.clone())
    }

    fn counter_changes(&self) -> CounterFeed {
        feed::follow_counters(self.collections.counters.clone())
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        values::read(&self.collections, name).await
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        values::swap(&self.collections, name, expected, new).await
    }

    async fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        let done = schema::retain(&self.collections.database, retention).await;
        done.map_err(|error| unavailable(&error))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.clock.sync(&self.collections.database).await.map_err(|error| unavailable(&error))
    }

    async fn close(&self) {
        self.beat.abort();
        self.sessions.sign_off().await;
    }
}

impl Drop for MongoStore {
    fn drop(&mut self) {
        self.beat.abort();
    }
}
