//! Listings: found in the index, read a part at a time.

use super::file::File;
use super::index::Index;
use super::row::Kind;
use std::sync::Arc;

use crate::domain::counter::Counter;
use crate::domain::name::SubjectKey;
use crate::domain::policy::RevisionHead;
use crate::domain::reservation::Reservation;
use crate::domain::subject::Subject;
use crate::store::document::{
    CounterDoc, ReservationDoc, RevisionDoc, RevisionHeadDoc, SubjectDoc, decode,
};
use crate::store::{StoreError, SubjectFilter, Versioned};

/// How many subjects are read in one go.
const SUBJECTS: usize = 256;
/// How many policies are read in one go: each may have megabytes.
const POLICIES: usize = 16;

pub(super) fn revisions_before(
    file: &File,
    namespace: &str,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<RevisionHead>, StoreError> {
    let Some(head) = file.index().heads.get(namespace).copied() else { return Ok(Vec::new()) };
    let newest = before.map_or(head, |before| head.min(before.saturating_sub(1)));
    let mut older = (1..=newest).rev();
    let mut found = Vec::new();
    while found.len() < limit {
        let most = POLICIES.min(limit - found.len());
        let keys: Vec<String> =
            older.by_ref().take(most).map(|n| RevisionDoc::key(namespace, n)).collect();
        if keys.is_empty() {
            break;
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        for (key, bytes) in file.read(Kind::Policy, &keys)? {
            found.push(decode::<RevisionHeadDoc>(&key, &bytes)?.record()?);
        }
    }
    Ok(found)
}

pub(super) fn subjects_after(
    file: &File,
    filter: &SubjectFilter,
    mut after: Option<SubjectKey>,
    limit: usize,
) -> Result<Vec<Versioned<Subject>>, StoreError> {
    let mut found = Vec::new();
    while found.len() < limit
        && let Some((first, end)) = filter.between(after.as_ref())
    {
        let (rows, last) = file.page_between(Kind::Subject, &first, &end, SUBJECTS)?;
        for (key, bytes) in rows {
            let row = decode::<SubjectDoc>(&key, &bytes)?.record()?;
            if found.len() < limit && filter.has_plan(&row.value.plan) {
                found.push(row);
            }
        }
        let Some(last) = last else { break };
        after = Some(SubjectKey::from_stored(last));
    }
    Ok(found)
}

/// The reservations that a look at the index finds, in its order.
pub(super) fn reservations(
    file: &File,
    look: impl FnOnce(&Index) -> Vec<Arc<str>>,
) -> Result<Vec<Arc<Reservation>>, StoreError> {
    let rows = found(file, Kind::Reservation, look)?;
    rows.iter()
        .map(|(key, bytes)| Ok(decode::<ReservationDoc>(key, bytes)?.record()?.value))
        .collect()
}

/// The counters that a look at the index finds, in its order.
pub(super) fn counters(
    file: &File,
    look: impl FnOnce(&Index) -> Vec<Arc<str>>,
) -> Result<Vec<Counter>, StoreError> {
    let rows = found(file, Kind::Counter, look)?;
    rows.iter().map(|(key, bytes)| Ok(decode::<CounterDoc>(key, bytes)?.record()?.value)).collect()
}

/// Index and records are of one moment: a record that went in between would make
/// the part look like the last.
fn found(
    file: &File,
    kind: Kind,
    look: impl FnOnce(&Index) -> Vec<Arc<str>>,
) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let places = |index: &Index| index.places(kind, look(index).iter().map(AsRef::as_ref));
    file.at_rest(places, |places, snapshot| snapshot.read(places))
}
