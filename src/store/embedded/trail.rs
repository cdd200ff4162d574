//! Events and refusals, found by when they happened.
//!
//! Events lie among the records. Refusals have a table of their own, in which
//! the newest take the place of the oldest, and which is written without
//! waiting for the disk: the next change set takes them along.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included};
use std::ops::Range;

use redb::{ReadTransaction, ReadableTable as _, TableDefinition};

use super::file::{File, Rows};
use super::row::{Head, Kind, unseal};
use crate::domain::event::{Event, RefusalRecord};
use crate::domain::name::join_key;
use crate::domain::time::Time;
use crate::store::document::{EventDoc, RefusalDoc, decode};
use crate::store::trail::{REFUSALS_KEPT, numbered};
use crate::store::{Kept, StoreError, TrailFilter, TrailPlace};

/// The refusals, by numbers that rise.
pub(super) const REFUSALS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("refusals");
/// How many are read in one go.
const PART: usize = 256;

/// The first parts of the key that something of this instant is found by, in
/// the order of the instants.
pub(super) fn dated(namespace: &str, millis: i64) -> String {
    let since = millis.saturating_sub(Time::MIN.as_millis()).max(0);
    join_key([namespace, &format!("{since:020}")])
}

/// That key with its last part, which tells apart what is of one instant.
pub(super) fn numbered_key(dated: &str, number: u64) -> String {
    format!("{dated}/{}", numbered(number))
}

/// A refusal as it lies in the file, and the first parts of its key.
pub(super) struct Row {
    pub key: String,
    pub bytes: Vec<u8>,
}

impl Row {
    pub fn new(refused: &RefusalRecord) -> Result<Self, StoreError> {
        let bytes = bson::serialize_to_vec(&RefusalDoc::new(refused));
        let bytes = bytes.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self { key: dated(&refused.namespace, refused.time.as_millis()), bytes })
    }
}

/// Where the refusals are that the file keeps.
#[derive(Default)]
pub(super) struct Ring {
    by_key: BTreeMap<String, u64>,
    /// Oldest first.
    in_order: VecDeque<(u64, String)>,
}

impl Ring {
    /// Reads the whole table through.
    pub fn read(transaction: &ReadTransaction) -> Result<Self, String> {
        let table = transaction.open_table(REFUSALS).map_err(|error| error.to_string())?;
        let mut ring = Self::default();
        for entry in table.iter().map_err(|error| error.to_string())? {
            let (number, value) = entry.map_err(|error| error.to_string())?;
            let number = number.value();
            let place = |message| format!("refusal {number}: {message}");
            let (kind, bytes) = unseal(value.value()).map_err(place)?;
            let head = Head::of(kind, bytes).map_err(place)?;
            ring.add([(head.key, number)]);
        }
        Ok(ring)
    }

    /// The numbers that so many new ones get, and those of the oldest that make
    /// room for them.
    pub fn plan(&self, count: usize) -> (Range<u64>, Vec<u64>) {
        let next = self.in_order.back().map_or(0, |(number, _)| number + 1);
        let beyond = (self.in_order.len() + count).saturating_sub(REFUSALS_KEPT);
        let gone = self.in_order.iter().take(beyond).map(|(number, _)| *number).collect();
        (next..next + count as u64, gone)
    }

    /// Adds some with their numbers, and forgets the oldest.
    pub fn add(&mut self, rows: impl IntoIterator<Item = (String, u64)>) {
        for (dated, number) in rows {
            let key = numbered_key(&dated, number);
            self.by_key.insert(key.clone(), number);
            self.in_order.push_back((number, key));
        }
        while self.in_order.len() > REFUSALS_KEPT {
            if let Some((_, key)) = self.in_order.pop_front() {
                self.by_key.remove(&key);
            }
        }
    }
}

/// The keys between which everything lies that a filter asks for, before that
/// place; `None` where there can be nothing.
fn between(filter: &TrailFilter, before: Option<&TrailPlace>) -> Option<(String, String)> {
    let namespace = join_key([filter.namespace.as_str()]);
    let at = |time: Time| dated(&filter.namespace, time.as_millis());
    let first = filter.from.map_or_else(|| format!("{namespace}/"), at);
    // Other namespaces go on with something else than the slash, and the digit
    // 0 is the character that follows it.
    let mut end = filter.until.map_or_else(|| format!("{namespace}0"), at);
    if let Some(TrailPlace { time, id }) = before {
        end = end.min(format!("{}/{id}", at(*time)));
    }
    (first < end).then_some((first, end))
}

/// Reads part by part, newest first, what lies between these keys: `look` finds
/// the places of a part, `read` what is in them; so many of those that are
/// `wanted`.
fn list<T>(
    (first, mut end): (String, String),
    limit: usize,
    look: impl Fn(&str, &str) -> Vec<(String, u64)>,
    read: impl Fn(Vec<(String, u64)>) -> Result<Rows, StoreError>,
    record: impl Fn(&str, &[u8]) -> Result<T, StoreError>,
    wanted: impl Fn(&T) -> bool,
) -> Result<Vec<Kept<T>>, StoreError> {
    let mut found = Vec::new();
    loop {
        let places = look(&first, &end);
        let Some((last, _)) = places.last() else { return Ok(found) };
        end.clone_from(last);
        for (key, bytes) in read(places)? {
            let value = record(&key, &bytes)?;
            if wanted(&value) {
                let id = key.rsplit('/').next().unwrap_or_default().to_owned();
                found.push(Kept { id, value });
            }
            if found.len() == limit {
                return Ok(found);
            }
        }
    }
}

/// The last places between these keys.
fn last_part<K: Ord + Borrow<str>, V>(
    map: &BTreeMap<K, V>,
    (first, end): (&str, &str),
    number: impl Fn(&V) -> u64,
) -> Vec<(String, u64)> {
    if first >= end {
        return Vec::new();
    }
    let range = map.range::<str, _>((Included(first), Excluded(end))).rev().take(PART);
    range.map(|(key, value)| (key.borrow().to_owned(), number(value))).collect()
}

pub(super) fn events_before(
    file: &File,
    filter: &TrailFilter,
    before: Option<&TrailPlace>,
    limit: usize,
) -> Result<Vec<Kept<Event>>, StoreError> {
    let Some(keys) = between(filter, before).filter(|_| limit > 0) else { return Ok(Vec::new()) };
    list(
        keys,
        limit,
        |first, end| {
            let index = file.index();
            last_part(&index.by_kind[Kind::Event as usize], (first, end), |place| place.number)
        },
        |places| file.read_places(places),
        |key, bytes| decode::<EventDoc>(key, bytes)?.record(),
        |event| filter.wants_event(event),
    )
}

pub(super) fn refusals_before(
    file: &File,
    filter: &TrailFilter,
    before: Option<&TrailPlace>,
    limit: usize,
) -> Result<Vec<Kept<RefusalRecord>>, StoreError> {
    let Some(keys) = between(filter, before).filter(|_| limit > 0) else { return Ok(Vec::new()) };
    list(
        keys,
        limit,
        |first, end| last_part(&file.index().refusals.by_key, (first, end), |number| *number),
        |places| file.read_table(REFUSALS, places),
        |key, bytes| decode::<RefusalDoc>(key, bytes)?.record(),
        |refused| filter.wants_refusal(refused),
    )
}
