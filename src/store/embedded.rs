//! A store in one file, for one machine and for trying out: durable, every
//! change set one synced transaction of redb.
//!
//! Records lie under numbers that rise in the order they were made: keys in
//! order cost a third of scattered ones, since what is written together lies
//! together. Where a record is, by its key, is known in memory and found again
//! at start by reading the file through. Each record carries a checksum, since
//! redb does not check its pages on every read.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use async_trait::async_trait;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::Serialize;
use thiserror::Error;
use tracing::info;

use super::clock::Clock;
use super::document::{
    CounterDoc, EventDoc, ReservationDoc, ResourceDoc, RevisionDoc, SubjectDoc, decode,
};
use super::{ChangeSet, Loaded, Store, StoreError, WriteError};
use crate::domain::counter::Counter;
use crate::domain::policy::PolicyRevision;
use crate::domain::reservation::Reservation;
use crate::domain::state::Keys;
use crate::domain::time::Time;

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const SCHEMA: &str = "schema";
const SCHEMA_VERSION: u64 = 1;
/// How often records are looked for that retention may remove.
const PURGE_EVERY: Duration = Duration::from_secs(3600);

/// A store in one file.
pub struct EmbeddedStore {
    file: Arc<File>,
    clock: Clock,
    purged: Mutex<Instant>,
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

struct File {
    database: Database,
    /// Held by whoever writes.
    turn: Mutex<()>,
    /// Never held while the disk is waited for.
    index: Mutex<Index>,
}

/// Where records are.
#[derive(Default)]
struct Index {
    by_kind: [BTreeMap<String, Place>; Kind::COUNT],
    /// The current revision of each namespace's policy.
    heads: HashMap<String, i64>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Place {
    number: u64,
    version: i64,
    /// Milliseconds since the epoch; `None` for a record that stays.
    purge_at: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reservation,
    Counter,
    Resource,
    Subject,
    Policy,
    Event,
}

impl Kind {
    const COUNT: usize = 6;
    const ALL: [Self; Self::COUNT] = [
        Self::Reservation,
        Self::Counter,
        Self::Resource,
        Self::Subject,
        Self::Policy,
        Self::Event,
    ];
}

/// One record as it lies in the file.
struct Row {
    kind: Kind,
    key: String,
    version: i64,
    purge_at: Option<bson::DateTime>,
    bytes: Vec<u8>,
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
        let file = Arc::new(File { database, turn: Mutex::default(), index: Mutex::new(index) });
        Ok(Self { file, clock, purged: Mutex::new(Instant::now()) })
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
        let due = purged.elapsed() > PURGE_EVERY;
        if due {
            *purged = Instant::now();
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

    async fn reservations_after(
        &self,
        key: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Reservation>, StoreError> {
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
                Ok(decode::<CounterDoc>(key, bytes)?.record()?.value)
            };
            rows.iter().map(record).collect()
        })
        .await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        // A clock that a test moves may stand anywhere; its records stay.
        if matches!(self.clock, Clock::System) && self.purge_due() {
            let now = self.now();
            self.blocking(move |file| file.purge(now)).await?;
        }
        Ok(())
    }

    async fn close(&self) {}
}

impl File {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded {
            reservations: absent(&keys.reservations),
            counters: absent(&keys.counters),
            resources: absent(&keys.resources),
            subjects: absent(&keys.subjects),
        };
        let wanted: Vec<&str> = keys.reservations.iter().map(|key| key.as_str()).collect();
        for (key, bytes) in self.read(Kind::Reservation, &wanted)? {
            let record = decode::<ReservationDoc>(&key, &bytes)?.record()?;
            loaded.reservations.insert(record.value.key.clone(), Some(record));
        }
        let wanted: Vec<&str> = keys.counters.iter().map(|id| id.text.as_str()).collect();
        for (key, bytes) in self.read(Kind::Counter, &wanted)? {
            let record = decode::<CounterDoc>(&key, &bytes)?.record()?;
            loaded.counters.insert(Arc::clone(&record.value.id), Some(record));
        }
        let wanted: Vec<&str> = keys.resources.iter().map(|key| key.as_str()).collect();
        for (key, bytes) in self.read(Kind::Resource, &wanted)? {
            let resource = decode::<ResourceDoc>(&key, &bytes)?;
            loaded.resources.insert(resource.key(), Some(resource.owner()));
        }
        let wanted: Vec<&str> = keys.subjects.iter().map(|key| key.as_str()).collect();
        for (key, bytes) in self.read(Kind::Subject, &wanted)? {
            let record = decode::<SubjectDoc>(&key, &bytes)?.record()?;
            loaded.subjects.insert(record.value.key(), Some(record));
        }
        Ok(loaded)
    }

    /// The records of these keys that exist.
    fn read(&self, kind: Kind, keys: &[&str]) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let places: Vec<(String, u64)> = {
            let index = self.index();
            let of_kind = &index.by_kind[kind as usize];
            keys.iter()
                .filter_map(|key| Some(((*key).to_owned(), of_kind.get(*key)?.number)))
                .collect()
        };
        self.read_places(places)
    }

    fn page(
        &self,
        kind: Kind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let places = {
            let index = self.index();
            let after = after.map_or(Unbounded, Excluded);
            let range = index.by_kind[kind as usize].range::<str, _>((after, Unbounded));
            range.take(limit).map(|(key, place)| (key.clone(), place.number)).collect()
        };
        self.read_places(places)
    }

    fn read_places(
        &self,
        places: Vec<(String, u64)>,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |error: &dyn std::fmt::Display| StoreError::Unavailable(error.to_string());
        let transaction = self.database.begin_read().map_err(|error| failed(&error))?;
        let table = transaction.open_table(RECORDS).map_err(|error| failed(&error))?;
        let mut rows = Vec::with_capacity(places.len());
        for (key, number) in places {
            // One that retention has just removed is as if it never was.
            if let Some(value) = table.get(number).map_err(|error| failed(&error))? {
                let row = unseal(value.value())
                    .map_err(|message| StoreError::Damaged { key: key.clone(), message })?;
                rows.push((key, row.1.to_vec()));
            }
        }
        Ok(rows)
    }

    fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let rows = rows(changes)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.index().check(changes)?;
        if changes.valid_until.is_some_and(|until| Instant::now() > until) {
            return Err(WriteError::Conflict);
        }
        let failed = |error: &dyn std::fmt::Display| WriteError::Failed(error.to_string());
        let transaction = self.database.begin_write().map_err(|error| failed(&error))?;
        let (numbers, next) = self.index().numbers(&rows);
        {
            let mut table = transaction.open_table(RECORDS).map_err(|error| failed(&error))?;
            for (row, number) in rows.iter().zip(&numbers) {
                let sealed = seal(row.kind, &row.bytes);
                table.insert(number, sealed.as_slice()).map_err(|error| failed(&error))?;
            }
        }
        transaction.commit().map_err(|error| WriteError::Unknown(error.to_string()))?;
        let mut index = self.index();
        index.next = next;
        for (row, number) in rows.into_iter().zip(numbers) {
            let purge_at = millis(row.purge_at);
            index.add(row.kind, row.key, Place { number, version: row.version, purge_at });
        }
        Ok(())
    }

    fn purge(&self, now: Time) -> Result<(), StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Unavailable(error.to_string());
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |place: &Place| place.purge_at.is_some_and(|at| at <= now.as_millis());
        let numbers: Vec<u64> = {
            let index = self.index();
            let places = index.by_kind.iter().flat_map(BTreeMap::values);
            places.filter(|place| due(place)).map(|place| place.number).collect()
        };
        let transaction = self.database.begin_write().map_err(|error| failed(&error))?;
        {
            let mut table = transaction.open_table(RECORDS).map_err(|error| failed(&error))?;
            for number in &numbers {
                table.remove(number).map_err(|error| failed(&error))?;
            }
        }
        transaction.commit().map_err(|error| failed(&error))?;
        for of_kind in &mut self.index().by_kind {
            of_kind.retain(|_, place| !due(place));
        }
        info!(removed = numbers.len(), "retention has removed records");
        Ok(())
    }
}

impl Index {
    /// Reads the whole file through.
    fn read(database: &Database) -> Result<Self, String> {
        let transaction = database.begin_read().map_err(|error| error.to_string())?;
        let table = transaction.open_table(RECORDS).map_err(|error| error.to_string())?;
        let mut index = Self::default();
        for entry in table.iter().map_err(|error| error.to_string())? {
            let (number, value) = entry.map_err(|error| error.to_string())?;
            let number = number.value();
            let place = |message| format!("record {number}: {message}");
            let (kind, bytes) = unseal(value.value()).map_err(place)?;
            let head = Head::of(kind, bytes).map_err(place)?;
            let purge_at = millis(head.purge_at);
            index.add(kind, head.key, Place { number, version: head.version, purge_at });
            index.next = index.next.max(number);
        }
        Ok(index)
    }

    /// Where each row goes: to its old place, or to the next free number.
    fn numbers(&self, rows: &[Row]) -> (Vec<u64>, u64) {
        let mut next = self.next;
        let number = |row: &Row| match self.by_kind[row.kind as usize].get(&row.key) {
            Some(place) => place.number,
            None => {
                next += 1;
                next
            }
        };
        let numbers = rows.iter().map(number).collect();
        (numbers, next)
    }

    fn add(&mut self, kind: Kind, key: String, place: Place) {
        if kind == Kind::Policy {
            let parts = crate::domain::name::split_key(&key);
            let head = self.heads.entry(parts[0].clone()).or_default();
            *head = (*head).max(place.version);
        }
        // Events are only ever read through, never found by key.
        if kind != Kind::Event {
            self.by_kind[kind as usize].insert(key, place);
        }
    }

    fn check(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let version =
            |kind: Kind, key: &str| self.by_kind[kind as usize].get(key).map(|place| place.version);
        for change in &changes.reservations {
            change.guard(version(Kind::Reservation, change.value.key.as_str()))?;
        }
        for change in &changes.counters {
            change.guard_quietly(version(Kind::Counter, &change.value.id.text))?;
        }
        for change in &changes.subjects {
            change.guard_quietly(version(Kind::Subject, change.value.key().as_str()))?;
        }
        let bound = |binding: &super::Binding| version(Kind::Resource, binding.resource.as_str());
        let applied = |policy: &PolicyRevision| {
            let key = RevisionDoc::key(&policy.spec.namespace, policy.revision);
            version(Kind::Policy, &key)
        };
        let exists = changes.resources.iter().any(|binding| bound(binding).is_some())
            || changes.policies.iter().any(|policy| applied(policy).is_some());
        if exists { Err(WriteError::Exists) } else { Ok(()) }
    }
}

/// The part of a document that the index keeps.
#[derive(serde::Deserialize)]
struct Head {
    #[serde(rename = "_id", default)]
    key: String,
    #[serde(default)]
    version: i64,
    #[serde(default)]
    revision: i64,
    #[serde(default)]
    purge_at: Option<bson::DateTime>,
}

impl Head {
    fn of(kind: Kind, bytes: &[u8]) -> Result<Self, String> {
        let mut head: Self =
            bson::deserialize_from_slice(bytes).map_err(|error| error.to_string())?;
        if kind == Kind::Policy {
            head.version = head.revision;
        }
        Ok(head)
    }
}

fn rows(changes: &ChangeSet) -> Result<Vec<Row>, WriteError> {
    let mut rows = Vec::new();
    for change in &changes.reservations {
        let document = ReservationDoc::new(change);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Reservation, key, change.version, document.purge_at, &document)?);
    }
    for change in &changes.counters {
        let document = CounterDoc::new(change);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Counter, key, change.version, document.purge_at, &document)?);
    }
    for binding in &changes.resources {
        let document = ResourceDoc::new(binding);
        let key = document.id.clone();
        rows.push(Row::new(Kind::Resource, key, 0, document.purge_at, &document)?);
    }
    for change in &changes.subjects {
        let document = SubjectDoc::new(change);
        rows.push(Row::new(Kind::Subject, document.id.clone(), change.version, None, &document)?);
    }
    for policy in &changes.policies {
        let document = RevisionDoc::new(policy);
        rows.push(Row::new(Kind::Policy, document.id.clone(), policy.revision, None, &document)?);
    }
    for event in &changes.events {
        rows.push(Row::new(Kind::Event, String::new(), 0, None, &EventDoc::new(event))?);
    }
    Ok(rows)
}

impl Row {
    fn new(
        kind: Kind,
        key: String,
        version: i64,
        purge_at: Option<bson::DateTime>,
        document: &impl Serialize,
    ) -> Result<Self, WriteError> {
        let bytes = bson::serialize_to_vec(document);
        let bytes = bytes.map_err(|error| WriteError::Failed(error.to_string()))?;
        Ok(Self { kind, key, version, purge_at, bytes })
    }
}

/// Kind, checksum, document.
fn seal(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(bytes.len() + 5);
    sealed.push(kind as u8);
    sealed.extend(crc32fast::hash(bytes).to_le_bytes());
    sealed.extend(bytes);
    sealed
}

fn unseal(sealed: &[u8]) -> Result<(Kind, &[u8]), String> {
    let (head, bytes) = sealed.split_at_checked(5).ok_or("it is cut short")?;
    let kind = *Kind::ALL.get(usize::from(head[0])).ok_or("it is of no known kind")?;
    if crc32fast::hash(bytes).to_le_bytes() != head[1..] {
        return Err("its checksum does not match".to_owned());
    }
    Ok((kind, bytes))
}

fn schema(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let version = {
        transaction.open_table(RECORDS)?;
        let mut meta = transaction.open_table(META)?;
        let found = meta.get(SCHEMA)?.map(|version| version.value());
        match found {
            Some(version) => version,
            None => {
                meta.insert(SCHEMA, SCHEMA_VERSION)?;
                SCHEMA_VERSION
            }
        }
    };
    transaction.commit()?;
    Ok(version)
}

fn millis(date: Option<bson::DateTime>) -> Option<i64> {
    date.map(bson::DateTime::timestamp_millis)
}

fn absent<K: Clone + Eq + Hash, V>(keys: &[K]) -> HashMap<K, Option<V>> {
    keys.iter().map(|key| (key.clone(), None)).collect()
}
