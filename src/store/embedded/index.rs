//! Where records are, by their keys: in memory, found again at start.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use redb::{Database, ReadableDatabase as _, ReadableTable as _};

use super::RECORDS;
use super::row::{Head, Kind, Listed, Row, unseal};
use super::trail::{Ring, numbered_key};
use crate::domain::policy::PolicyRevision;
use crate::store::document::RevisionDoc;
use crate::store::lists::Lists;
use crate::store::{Binding, ChangeSet, WriteError};

/// Where records are.
#[derive(Default)]
pub(super) struct Index {
    pub by_kind: [BTreeMap<Arc<str>, Place>; Kind::COUNT],
    pub lists: Lists,
    /// The current revision of each namespace's policy.
    pub heads: HashMap<String, i64>,
    pub refusals: Ring,
    pub next: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub number: u64,
    pub version: i64,
    /// Milliseconds since the epoch; `None` for a record that stays.
    pub purge_at: Option<i64>,
}

impl Index {
    /// Reads the whole file through.
    pub fn read(database: &Database) -> Result<Self, String> {
        let transaction = database.begin_read().map_err(|error| error.to_string())?;
        let table = transaction.open_table(RECORDS).map_err(|error| error.to_string())?;
        let mut index = Self { refusals: Ring::read(&transaction)?, ..Self::default() };
        for entry in table.iter().map_err(|error| error.to_string())? {
            let (number, value) = entry.map_err(|error| error.to_string())?;
            let number = number.value();
            let place = |message| format!("record {number}: {message}");
            let (kind, bytes) = unseal(value.value()).map_err(place)?;
            let mut head = Head::of(kind, bytes).map_err(place)?;
            let (key, purge_at) = (std::mem::take(&mut head.key), millis(head.purge_at));
            let place = Place { number, version: head.version, purge_at };
            index.add(kind, &key, place, &head.listed(kind));
            index.next = index.next.max(number);
        }
        Ok(index)
    }

    /// Where each row goes: to its old place, or to the next free number.
    pub fn numbers(&self, rows: &[Row]) -> (Vec<u64>, u64) {
        let mut next = self.next;
        let number = |row: &Row| {
            if let Some(place) = self.by_kind[row.kind as usize].get(&*row.key) {
                place.number
            } else {
                next += 1;
                next
            }
        };
        let numbers = rows.iter().map(number).collect();
        (numbers, next)
    }

    /// Where the records lie that are to go.
    pub fn removed(&self, changes: &ChangeSet) -> Vec<u64> {
        let place = |(kind, key): (Kind, &str)| Some(self.by_kind[kind as usize].get(key)?.number);
        removals(changes).filter_map(place).collect()
    }

    /// Where the records of these keys lie, those that there are.
    pub fn places<'k>(
        &self,
        kind: Kind,
        keys: impl Iterator<Item = &'k str>,
    ) -> Vec<(String, u64)> {
        let of_kind = &self.by_kind[kind as usize];
        keys.filter_map(|key| Some((key.to_owned(), of_kind.get(key)?.number))).collect()
    }

    /// Records are gone, or about to be replaced by others of the same key:
    /// what listings go by of each.
    pub fn forget(&mut self, changes: &ChangeSet, gone: &[(String, Listed)]) {
        for (key, listed) in gone {
            if let Listed::Reservation(facts) = listed {
                self.lists.forget_reservation(key, facts);
            }
        }
        for (kind, key) in removals(changes) {
            self.by_kind[kind as usize].remove(key);
        }
    }

    pub fn add(&mut self, kind: Kind, key: &str, place: Place, listed: &Listed) {
        if kind == Kind::Policy {
            let parts = crate::domain::name::split_key(key);
            let head = self.heads.entry(parts[0].clone()).or_default();
            *head = (*head).max(place.version);
        }
        let of_kind = &mut self.by_kind[kind as usize];
        let known = of_kind.get_key_value(key).map(|(known, _)| Arc::clone(known));
        let key = match kind {
            // Several may be of the same instant.
            Kind::Event => Arc::from(numbered_key(key, place.number)),
            _ => known.unwrap_or_else(|| Arc::from(key)),
        };
        match listed {
            Listed::Reservation(facts) => self.lists.put_reservation(&key, place.number, facts),
            Listed::Counter(facts) => self.lists.put_counter(&key, facts),
            Listed::Otherwise => {}
        }
        of_kind.insert(key, place);
    }

    pub fn check(&self, changes: &ChangeSet) -> Result<(), WriteError> {
        let version =
            |kind: Kind, key: &str| self.by_kind[kind as usize].get(key).map(|place| place.version);
        for change in &changes.reservations {
            change.guard(version(Kind::Reservation, change.value.key.as_str()))?;
        }
        for removal in &changes.removed_reservations {
            removal.guard(version(Kind::Reservation, removal.key.as_str()))?;
        }
        for change in &changes.counters {
            change.guard_quietly(version(Kind::Counter, &change.value.id.text))?;
        }
        for change in &changes.subjects {
            change.guard_quietly(version(Kind::Subject, change.value.key().as_str()))?;
        }
        for removal in &changes.removed_subjects {
            removal.guard(version(Kind::Subject, removal.key.as_str()))?;
        }
        let freed = |binding: &Binding| {
            changes.removed_resources.iter().any(|freed| freed.resource == binding.resource)
        };
        let bound = |binding: &Binding| {
            version(Kind::Resource, binding.resource.as_str()).filter(|_| !freed(binding))
        };
        let applied = |policy: &PolicyRevision| {
            let key = RevisionDoc::key(&policy.spec.namespace, policy.revision);
            version(Kind::Policy, &key)
        };
        let exists = changes.resources.iter().any(|binding| bound(binding).is_some())
            || changes.policies.iter().any(|policy| applied(policy).is_some());
        if exists { Err(WriteError::Exists) } else { Ok(()) }
    }
}

/// The records that go, by kind and key.
fn removals(changes: &ChangeSet) -> impl Iterator<Item = (Kind, &str)> {
    let subjects = changes.removed_subjects.iter().map(|r| (Kind::Subject, r.key.as_str()));
    let reservations =
        changes.removed_reservations.iter().map(|r| (Kind::Reservation, r.key.as_str()));
    let resources = changes.removed_resources.iter().map(|r| (Kind::Resource, r.resource.as_str()));
    subjects.chain(reservations).chain(resources)
}

pub(super) fn millis(date: Option<bson::DateTime>) -> Option<i64> {
    date.map(bson::DateTime::timestamp_millis)
}
