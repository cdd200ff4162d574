//! The file: reads by place, writes one change set at a time.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase as _, ReadableTable, Table,
    TableDefinition,
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::index::{Index, Place, millis};
use super::row::{Head, Kind, Listed, rows, seal, unseal};
use super::trail::{REFUSALS, Row as RefusalRow};
use super::{META, RECORDS};
use crate::domain::state::Keys;
use crate::domain::time::Time;
use crate::store::document::{CounterDoc, ReservationDoc, ResourceDoc, SubjectDoc, decode};
use crate::store::{ChangeSet, Loaded, StoreError, WriteError};

/// Documents, each with its key.
pub(super) type Rows = Vec<(String, Vec<u8>)>;

/// How often refusals are written before the disk is waited for once, where
/// nothing else brings it about: what they replace keeps its room until then.
const UNSYNCED: u32 = 64;

pub(super) struct File {
    /// Opened anew after an error; `None` while that does not succeed.
    database: RwLock<Option<Database>>,
    path: PathBuf,
    /// The disk has failed a write: what is in the file and what the index
    /// says may differ, and redb answers nothing any more.
    failed: AtomicBool,
    /// How often something was written that may not be on the disk yet.
    unsynced: AtomicU32,
    /// Held by whoever writes.
    turn: Mutex<()>,
    /// Never held while the disk is waited for.
    index: Mutex<Index>,
}

impl File {
    pub fn new(path: PathBuf, database: Database, index: Index) -> Self {
        Self {
            database: RwLock::new(Some(database)),
            path,
            failed: AtomicBool::new(false),
            unsynced: AtomicU32::new(0),
            turn: Mutex::default(),
            index: Mutex::new(index),
        }
    }

    /// Whether the file can be read and written; after an error it is opened
    /// anew, and what is in it counts.
    pub fn check(&self) -> Result<(), StoreError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Closed before it is opened: two cannot have it.
        *database = None;
        let opened = Database::create(&self.path).map_err(|error| unavailable(&error))?;
        let index = Index::read(&opened).map_err(StoreError::Unavailable)?;
        *self.index() = index;
        *database = Some(opened);
        self.failed.store(false, Ordering::Release);
        warn!("the disk had failed; the file was opened anew");
        Ok(())
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match database.as_ref() {
            Some(database) => work(database),
            None => Err(StoreError::Unavailable("the file could not be opened again".to_owned())),
        }
    }

    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load(&self, keys: &Keys) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded {
            reservations: absent(&keys.reservations),
            counters: absent(&keys.counters),
            resources: absent(&keys.resources),
            subjects: absent(&keys.subjects),
        };
        let wanted: Vec<&str> = keys.counters.iter().map(|id| id.text.as_str()).collect();
        for (key, bytes) in self.read(Kind::Counter, &wanted)? {
            let record = decode::<CounterDoc>(&key, &bytes)?.record()?;
            loaded.counters.insert(Arc::clone(&record.value.id), Some(record));
        }
        let wanted: Vec<&str> =
            keys.resources.iter().map(crate::domain::name::ResourceKey::as_str).collect();
        for (key, bytes) in self.read(Kind::Resource, &wanted)? {
            let resource = decode::<ResourceDoc>(&key, &bytes)?;
            loaded.resources.insert(resource.key(), Some(resource.owner()));
        }
        let wanted: Vec<&str> =
            keys.subjects.iter().map(crate::domain::name::SubjectKey::as_str).collect();
        for (key, bytes) in self.read(Kind::Subject, &wanted)? {
            let record = decode::<SubjectDoc>(&key, &bytes)?.record()?;
            loaded.subjects.insert(record.value.key(), Some(record));
        }
        // Last, as the trait has it.
        let wanted: Vec<&str> =
            keys.reservations.iter().map(crate::domain::name::ReservationKey::as_str).collect();
        for (key, bytes) in self.read(Kind::Reservation, &wanted)? {
            let record = decode::<ReservationDoc>(&key, &bytes)?.record()?;
            loaded.reservations.insert(record.value.key.clone(), Some(record));
        }
        Ok(loaded)
    }

    /// The records of these keys that exist.
    pub fn read(&self, kind: Kind, keys: &[&str]) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let places = self.index().places(kind, keys.iter().copied());
        self.read_places(places)
    }

    pub fn page(
        &self,
        kind: Kind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let places = {
            let index = self.index();
            let after = after.map_or(Unbounded, Excluded);
            let range = index.by_kind[kind as usize].range::<str, _>((after, Unbounded));
            range.take(limit).map(|(key, place)| (key.to_string(), place.number)).collect()
        };
        self.read_places(places)
    }

    /// Records with keys between these two, and the key of the last one that
    /// was looked at; `None` where there are no more.
    pub fn page_between(
        &self,
        kind: Kind,
        after: &str,
        end: &str,
        limit: usize,
    ) -> Result<(Rows, Option<String>), StoreError> {
        let places: Vec<(String, u64)> = {
            let index = self.index();
            let range =
                index.by_kind[kind as usize].range::<str, _>((Excluded(after), Excluded(end)));
            range.take(limit).map(|(key, place)| (key.to_string(), place.number)).collect()
        };
        let last = places.last().filter(|_| places.len() == limit).map(|(key, _)| key.clone());
        Ok((self.read_places(places)?, last))
    }

    pub fn read_places(&self, places: Vec<(String, u64)>) -> Result<Rows, StoreError> {
        self.read_table(RECORDS, places)
    }

    /// The documents under these numbers of a table, each with the key that
    /// stands beside its number.
    pub fn read_table(
        &self,
        table: TableDefinition<'_, u64, &'static [u8]>,
        places: Vec<(String, u64)>,
    ) -> Result<Rows, StoreError> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        self.with(|database| {
            let transaction = database.begin_read().map_err(|error| unavailable(&error))?;
            let table = transaction.open_table(table).map_err(|error| unavailable(&error))?;
            rows_at(&table, places)
        })
    }

    /// Reads the file as it is at a moment when nobody writes: `look` sees the
    /// index of that moment, and what it gives goes with the records of that
    /// moment to `read`, which nobody waits for.
    pub fn at_rest<W, T>(
        &self,
        look: impl FnOnce(&Index) -> W,
        read: impl FnOnce(W, &Snapshot) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Acquire) {
            return Err(unavailable(&"the disk has failed a write"));
        }
        let table = self.with(|database| {
            let transaction = database.begin_read().map_err(|error| unavailable(&error))?;
            transaction.open_table(RECORDS).map_err(|error| unavailable(&error))
        })?;
        let looked = look(&self.index());
        drop(turn);
        read(looked, &Snapshot(table))
    }

    pub fn write(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let rows = rows(changes)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.index().check(changes)?;
        if changes.valid_until.is_some_and(|until| Instant::now() > until) {
            return Err(WriteError::Conflict);
        }
        if self.failed.load(Ordering::Acquire) {
            return Err(WriteError::Failed("the disk has failed a write".to_owned()));
        }
        let (numbers, next) = self.index().numbers(&rows);
        let removed = self.index().removed(changes);
        let mut gone = Vec::new();
        let committed = self.change(|table| {
            // First: a resource that is set free may be bound anew.
            for number in &removed {
                gone.extend(table.remove(number)?.and_then(|old| head(old.value())));
            }
            for (row, number) in rows.iter().zip(&numbers) {
                let old = table.insert(number, seal(row.kind, &row.bytes).as_slice())?;
                let old = old.filter(|_| row.whole);
                gone.extend(old.and_then(|old| head(old.value())));
            }
            Ok(())
        });
        if let Err(error) = committed {
            self.failed.store(true, Ordering::Release);
            return Err(WriteError::Unknown(error.to_string()));
        }
        let mut index = self.index();
        index.next = next;
        index.forget(changes, &gone);
        for (row, number) in rows.into_iter().zip(numbers) {
            let place = Place { number, version: row.version, purge_at: millis(row.purge_at) };
            index.add(row.kind, &row.key, place, &row.listed);
        }
        Ok(())
    }

    /// One synced transaction.
    fn change(
        &self,
        work: impl FnOnce(&mut Table<'_, u64, &'static [u8]>) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let transaction = database.begin_write()?;
        work(&mut transaction.open_table(RECORDS)?)?;
        Ok(transaction.commit()?)
    }

    /// Keeps refusals in place of the oldest ones, without waiting for the disk.
    pub fn note(&self, rows: Vec<RefusalRow>) -> Result<(), StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (numbers, gone) = self.index().refusals.plan(rows.len());
        let unsynced = self.unsynced.fetch_add(1, Ordering::AcqRel);
        self.alter(|database| {
            let mut transaction = database.begin_write()?;
            if unsynced < UNSYNCED {
                transaction.set_durability(Durability::None)?;
            } else {
                self.unsynced.store(0, Ordering::Release);
            }
            {
                let mut table = transaction.open_table(REFUSALS)?;
                for (row, number) in rows.iter().zip(numbers.clone()) {
                    table.insert(number, seal(Kind::Refusal, &row.bytes).as_slice())?;
                }
                for number in &gone {
                    table.remove(number)?;
                }
            }
            Ok(transaction.commit()?)
        })?;
        self.index().refusals.add(rows.into_iter().map(|row| row.key).zip(numbers));
        Ok(())
    }

    /// Brings to the disk what is not there yet.
    pub fn sync(&self) -> Result<(), StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.unsynced.swap(0, Ordering::AcqRel) == 0 {
            return Ok(());
        }
        self.alter(|database| Ok(database.begin_write()?.commit()?))
    }

    /// A change by somebody whose turn it is.
    fn alter(
        &self,
        work: impl FnOnce(&Database) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("the disk has failed a write".to_owned()));
        }
        let altered = self.with(|database| work(database).map_err(|error| unavailable(&error)));
        if altered.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        altered
    }

    /// A named value.
    pub fn value(&self, name: &str) -> Result<Option<i64>, StoreError> {
        self.with(|database| {
            let transaction = database.begin_read().map_err(|error| unavailable(&error))?;
            let table = transaction.open_table(META).map_err(|error| unavailable(&error))?;
            let found = table.get(name).map_err(|error| unavailable(&error))?;
            Ok(found.map(|value| value.value().cast_signed()))
        })
    }

    /// Sets a named value if it is the expected one now.
    pub fn swap(&self, name: &str, expected: Option<i64>, new: i64) -> Result<bool, StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("the disk has failed a write".to_owned()));
        }
        let swapped = self.with(|database| {
            let swap = || -> Result<bool, redb::Error> {
                let transaction = database.begin_write()?;
                {
                    let mut meta = transaction.open_table(META)?;
                    let present = meta.get(name)?.map(|value| value.value().cast_signed());
                    if present != expected {
                        return Ok(false);
                    }
                    meta.insert(name, new.cast_unsigned())?;
                }
                transaction.commit()?;
                Ok(true)
            };
            swap().map_err(|error| unavailable(&error))
        });
        if swapped.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        swapped
    }

    pub fn purge(&self, now: Time) -> Result<(), StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |place: &Place| place.purge_at.is_some_and(|at| at <= now.as_millis());
        let numbers: Vec<u64> = {
            let index = self.index();
            let places = index.by_kind.iter().flat_map(std::collections::BTreeMap::values);
            places.filter(|place| due(place)).map(|place| place.number).collect()
        };
        let removed = self.change(|table| {
            for number in &numbers {
                table.remove(number)?;
            }
            Ok(())
        });
        if let Err(error) = removed {
            self.failed.store(true, Ordering::Release);
            return Err(unavailable(&error));
        }
        if !numbers.is_empty() {
            let mut index = self.index();
            let Index { by_kind, lists, .. } = &mut *index;
            let gone = by_kind.each_mut().map(|of_kind| {
                let gone = of_kind.extract_if(.., |_, place| due(place));
                gone.map(|(key, _)| key).collect::<HashSet<_>>()
            });
            lists.forget(&gone[Kind::Reservation as usize], &gone[Kind::Counter as usize]);
            info!(removed = numbers.len(), "retention has removed records");
        }
        Ok(())
    }
}

/// The records as they were at a moment.
pub(super) struct Snapshot(ReadOnlyTable<u64, &'static [u8]>);

impl Snapshot {
    /// The records that lay there. One that retention has removed is passed over.
    pub fn read(&self, places: Vec<(String, u64)>) -> Result<Rows, StoreError> {
        rows_at(&self.0, places)
    }
}

fn rows_at(
    table: &impl ReadableTable<u64, &'static [u8]>,
    places: Vec<(String, u64)>,
) -> Result<Rows, StoreError> {
    let mut rows = Vec::with_capacity(places.len());
    for (key, number) in places {
        // One that retention has just removed is as if it never was.
        if let Some(value) = table.get(number).map_err(|error| unavailable(&error))? {
            let (_, bytes) = unseal(value.value())
                .map_err(|message| StoreError::Damaged { key: key.clone(), message })?;
            rows.push((key, bytes.to_vec()));
        }
    }
    Ok(rows)
}

/// The key of a sealed record, and what listings go by of it.
fn head(sealed: &[u8]) -> Option<(String, Listed)> {
    let (kind, bytes) = unseal(sealed).ok()?;
    let mut head = Head::of(kind, bytes).ok()?;
    Some((std::mem::take(&mut head.key), head.listed(kind)))
}

fn unavailable(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

fn absent<K: Clone + Eq + Hash, V>(keys: &[K]) -> HashMap<K, Option<V>> {
    keys.iter().map(|key| (key.clone(), None)).collect()
}
