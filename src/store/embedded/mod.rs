//! A store in one file, for one machine and for trying out: durable, every
//! change set one synced transaction of redb.
//!
//! Records lie under numbers that rise in the order they were made: keys in
//! order cost a third of scattered ones, since what is written together lies
//! together. Where a record is, by its key, is known in memory and found again
//! at start by reading the file through. Each record carries a checksum, since
//! redb does not check its pages on every read.

mod charged;
mod file;
mod index;
mod list;
mod row;
mod trail;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redb::{Database, ReadableTable as _, TableDefinition};
use thiserror::Error;
use tokio::time::Instant;
use tracing::warn;

use super::clock::Clock;
use super::document::{CounterDoc, ReservationDoc, RevisionDoc, decode};
use super::{
    ChangeSet, CounterFilter, CounterPlace, Kept, Loaded, ReservationFilter, Retention, Store,
    StoreError, SubjectFilter, TrailFilter, TrailPlace, Versioned, Visitor, WriteError,
};
use crate::domain::counter::{Counter, CounterId};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::{ReservationKey, SubjectKey};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use file::File;
use index::Index;
use row::Kind;

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
/// The schema version, and named values; those are signed, bit for bit.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const SCHEMA: &str = "schema";
const SCHEMA_VERSION: u64 = 1;
/// How often records are looked for that retention may remove.
const PURGE_EVERY: Duration = Duration::from_hours(1);

/// A store in one file.
pub struct EmbeddedStore {
    file: Arc<File>,
    clock: Clock,
    /// Whether retention may remove anything.
    removes: AtomicBool,
    purged: Mutex<Option<Instant>>,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{0} is in use by another process; an embedded store serves one at a time")]
    InUse(String),
    /// It cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// What went wrong.
        message: String,
    },
    /// It is not what was written.
    #[error(
        "{path} is damaged: {message}; restore it from a backup, or move it away to start anew"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// It was written by a newer program.
    #[error(
        "{path} has schema version {found}, this program knows {SCHEMA_VERSION}: run a newer one"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its version.
        found: u64,
    },
}

impl EmbeddedStore {
    /// Opens the store in this folder, which is made where it does not exist.
    ///
    /// # Errors
    ///
    /// Another process has it open, it cannot be read, it is damaged, or it
    /// was written by a newer version of this program.
    pub fn open(folder: &Path, clock: Clock) -> Result<Self, OpenError> {
        let path = folder.join("quota.redb");
        let shown = path.display().to_string();
        let io = |error: &dyn std::fmt::Display| OpenError::Io {
            path: shown.clone(),
            message: error.to_string(),
        };
        let damaged = |message: String| OpenError::Damaged { path: shown.clone(), message };
        std::fs::create_dir_all(folder).map_err(|error| io(&error))?;
        let mut database = match Database::create(&path) {
            Ok(database) => database,
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => return Err(OpenError::InUse(shown)),
            Err(redb::DatabaseError::Storage(redb::StorageError::Corrupted(message))) => {
                return Err(damaged(message));
            }
            Err(error) => return Err(io(&error)),
        };
        database.check_integrity().map_err(|error| damaged(error.to_string()))?;
        let found = schema(&database).map_err(|error| io(&error))?;
        if found != SCHEMA_VERSION {
            return Err(OpenError::Newer { path: shown, found });
        }
        let index = Index::read(&database).map_err(damaged)?;
        let file = Arc::new(File::new(path, database, index));
        Ok(Self { file, clock, removes: AtomicBool::new(false), purged: Mutex::default() })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        let ended = |error: tokio::task::JoinError| StoreError::Unavailable(error.to_string());
        tokio::task::spawn_blocking(move || work(&file)).await.map_err(ended)?
    }

    fn purge_due(&self) -> bool {
        let mut purged = self.purged.lock().unwrap_or_else(PoisonError::into_inner);
        let due = purged.is_none_or(|purged| purged.elapsed() > PURGE_EVERY);
        if due {
            *purged = Some(Instant::now());
        }
        due
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        let keys = keys.clone();
        self.blocking(move |file| file.load(&keys)).await
    }

    async fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let file = Arc::clone(&self.file);
        let guards = changes.clone();
        let written = tokio::task::spawn_blocking(move || file.write(&guards)).await;
        written.unwrap_or_else(|error| Err(WriteError::Unknown(error.to_string())))
    }

    async fn policy_head(&self, namespace: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.file.index().heads.get(namespace).copied())
    }

    async fn policy(
        &self,
        namespace: &str,
        revision: i64,
    ) -> Result<Option<PolicyRevision>, StoreError> {
        let key = RevisionDoc::key(namespace, revision);
        self.blocking(move |file| {
            let found = file.read(Kind::Policy, &[&key])?.pop();
            found.map(|(key, bytes)| decode::<RevisionDoc>(&key, &bytes)?.record()).transpose()
        })
        .await
    }

    async fn revisions_before(
        &self,
        namespace: &str,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<RevisionHead>, StoreError> {
        let namespace = namespace.to_owned();
        self.blocking(move |file| list::revisions_before(file, &namespace, before, limit)).await
    }

    async fn subjects_after(
        &self,
        filter: &SubjectFilter,
        key: Option<&SubjectKey>,
        limit: usize,
    ) -> Result<Vec<Versioned<Subject>>, StoreError> {
        let (filter, key) = (filter.clone(), key.cloned());
        self.blocking(move |file| list::subjects_after(file, &filter, key, limit)).await
    }

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        let after = key.map(str::to_owned);
        self.blocking(move |file| {
            let rows = file.page(Kind::Reservation, after.as_deref(), limit)?;
            let record = |(key, bytes): &(String, Vec<u8>)| {
                Ok(decode::<ReservationDoc>(key, bytes)?.record()?.value)
            };
            rows.iter().map(record).collect()
        })
        .await
    }

    async fn counters_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        let after = key.map(str::to_owned);
        self.blocking(move |file| {
            let rows = file.page(Kind::Counter, after.as_deref(), limit)?;
            let record = |(key, bytes): &(String, Vec<u8>)| {
                Ok(decode::<CounterDoc>(key, bytes)?.record_as_it_is()?.value)
            };
            rows.iter().map(record).collect()
        })
        .await
    }

    async fn events_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<Event>>, StoreError> {
        let (filter, before) = (filter.clone(), before.cloned());
        self.blocking(move |file| trail::events_before(file, &filter, before.as_ref(), limit)).await
    }

    async fn refusals_before(
        &self,
        filter: &TrailFilter,
        before: Option<&TrailPlace>,
        limit: usize,
    ) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
        let (filter, before) = (filter.clone(), before.cloned());
        let read = move |file: &File| trail::refusals_before(file, &filter, before.as_ref(), limit);
        self.blocking(read).await
    }

    async fn note_refusals(&self, refusals: &[RefusalRecord]) -> Result<(), StoreError> {
        let rows = refusals.iter().map(trail::Row::new).collect::<Result<_, _>>()?;
        self.blocking(move |file| file.note(rows)).await
    }

    async fn charged(
        &self,
        counters: &[Arc<CounterId>],
        held_after: Option<Time>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        charged::charged(&self.file, counters.to_vec(), held_after, visit).await
    }

    async fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        let filter = filter.clone();
        let before = before.map(|(time, key)| (time, key.clone()));
        let look = move |index: &Index| {
            let before = before.as_ref().map(|(time, key)| (*time, key));
            index.lists.reservations_before(&filter, before, limit)
        };
        self.blocking(move |file| list::reservations(file, look)).await
    }

    async fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Result<Vec<Counter>, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        let look = move |index: &Index| index.lists.counters_of(&filter, after.as_ref(), limit);
        self.blocking(move |file| list::counters(file, look)).await
    }

    async fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let name = name.to_owned();
        self.blocking(move |file| file.value(&name)).await
    }

    async fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.blocking(move |file| file.swap(&name, expected, new)).await
    }

    async fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        self.removes.store(retention == Retention::Due, Ordering::Relaxed);
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.blocking(File::check).await?;
        let removes = self.removes.load(Ordering::Relaxed);
        // A clock that a test moves may stand anywhere; its records stay.
        if removes && matches!(self.clock, Clock::System) && self.purge_due() {
            let now = self.now();
            self.blocking(move |file| file.purge(now)).await?;
        }
        Ok(())
    }

    async fn close(&self) {
        if let Err(error) = self.blocking(File::sync).await {
            warn!(%error, "the latest refusals may be lost");
        }
    }
}

fn schema(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let version = {
        transaction.open_table(RECORDS)?;
        transaction.open_table(trail::REFUSALS)?;
        let mut meta = transaction.open_table(META)?;
        let found = meta.get(SCHEMA)?.map(|version| version.value());
        if let Some(version) = found {
            version
        } else {
            meta.insert(SCHEMA, SCHEMA_VERSION)?;
            SCHEMA_VERSION
        }
    };
    transaction.commit()?;
    Ok(version)
}
