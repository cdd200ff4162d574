//! The trail (I8): the histories of reservations, the events and the refusals,
//! told as one, newest first.
//!
//! A reservation's history lies in the reservation, and no index leads to its
//! steps by time: that would be an index on what changes at commit. Where there
//! are few reservations all of them are read and their steps told in the order
//! of time. Where there are many, the steps of each are told together, at the
//! time of its creation, by which there is an index. Which of the two it is, is
//! decided on the first page and holds for all.
//!
//! Either way an entry's place never changes: a page goes on where the one
//! before it ended, and what is written meanwhile moves nothing.

mod place;
mod recorder;

pub use place::TrailMark;
pub(super) use recorder::Recorder;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Engine, Error};
use crate::domain::event::{RefusalRecord, names_subject};
use crate::domain::name::ReservationKey;
use crate::domain::policy::{Policy, subject_name};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Reservation, Settled};
use crate::domain::state::Keys;
use crate::domain::time::{Span, Time};
use crate::domain::trail::{TrailEntry, steps};
use crate::store::{Kept, ReservationFilter, StoreError, TrailFilter, TrailPlace};
use place::{Newest, Order, Place, Source};

/// How many records are read in one go.
const PART: usize = 500;

/// Which entries of the trail are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailQuery {
    /// Of this namespace.
    pub namespace: String,
    /// Of this subject, as `kind/id`; `None` for any.
    pub subject: Option<String>,
    /// Of this reservation; `None` for any and for none.
    pub reservation_id: Option<String>,
    /// Of this limit; `None` for any and for none.
    pub limit: Option<String>,
    /// At this instant or later.
    pub from: Option<Time>,
    /// Before this instant.
    pub until: Option<Time>,
}

/// A page of the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailPage {
    /// The entries, newest first, each with the mark of a page that begins
    /// after it.
    pub entries: Vec<(TrailMark, TrailEntry)>,
    /// Where the next page begins, if this one has fewer entries than were
    /// asked for and is not the last.
    pub next: Option<TrailMark>,
}

impl Engine {
    /// The next `limit` entries of the trail, or fewer. See the contract for
    /// their order.
    ///
    /// # Errors
    ///
    /// [`Error`]: the namespace has no policy.
    pub async fn trail(
        &self,
        query: &TrailQuery,
        after: Option<&TrailMark>,
        limit: usize,
    ) -> Result<TrailPage, Error> {
        self.store.tick().await?;
        let namespace = &query.namespace;
        let policy = self.catalog.policy(namespace).await?;
        let policy =
            policy.ok_or_else(|| Refusal::NamespaceNotFound { namespace: namespace.clone() })?;
        let after = after.cloned();
        let order = after.as_ref().map(|mark| mark.order);
        let newest = Newest::new(after.map(|mark| mark.place), limit);
        let mut search = Search { engine: self, query, policy: &policy, now: self.now(), newest };
        let (order, floor) = search.reservations(order).await?;
        let floors =
            [floor, search.stored(Source::Event).await?, search.stored(Source::Refusal).await?];
        let floor = floors.into_iter().flatten().max();
        let (entries, next) = search.newest.into_page(floor, limit);
        let mark = |place| TrailMark { order, place };
        Ok(TrailPage {
            entries: entries.into_iter().map(|(place, entry)| (mark(place), entry)).collect(),
            next: next.map(mark),
        })
    }

    /// Keeps a refusal for a while, if there is room: nobody waits for it, and
    /// where there is none its record is not even made.
    pub fn note_refusal(&self, record: impl FnOnce() -> Option<RefusalRecord>) {
        self.recorder.note(record);
    }
}

/// The making of a page.
struct Search<'s> {
    engine: &'s Engine,
    query: &'s TrailQuery,
    policy: &'s Policy,
    now: Time,
    newest: Newest,
}

impl Search<'_> {
    /// Gathers steps of reservations, in that order or else in the one that
    /// suits. Gives the order, and how far down reservations were looked at if
    /// that is not to the end.
    async fn reservations(
        &mut self,
        order: Option<Order>,
    ) -> Result<(Order, Option<Place>), StoreError> {
        if let Some(id) = &self.query.reservation_id {
            let key = ReservationKey::new(&self.query.namespace, id);
            if let Some(found) = self.reservation(&key).await? {
                self.tell(&found, Order::Exact);
            }
            return Ok((Order::Exact, None));
        }
        if order != Some(Order::Grouped) {
            let begun = self.newest.clone();
            let most = if order.is_none() { self.engine.settings.trail } else { usize::MAX };
            if self.exactly(most).await? {
                return Ok((Order::Exact, None));
            }
            self.newest = begun;
        }
        Ok((Order::Grouped, self.grouped().await?))
    }

    /// Gathers the steps of all reservations; false where there are more than
    /// `most`.
    async fn exactly(&mut self, most: usize) -> Result<bool, StoreError> {
        // One that was made after the place where the page begins has nothing
        // that comes after it.
        let begin = self.newest.after().map(|place| place.time.plus(Span::from_millis(1)));
        let created_until = self.query.until.into_iter().chain(begin).min();
        let mut before: Option<(Time, ReservationKey)> = None;
        let mut seen = 0;
        loop {
            let found = self.older(created_until, before.as_ref()).await?;
            seen += found.len();
            if seen > most {
                return Ok(false);
            }
            for reservation in &found {
                self.tell(reservation, Order::Exact);
            }
            match found.last() {
                Some(last) if found.len() == PART => {
                    before = Some((last.create_time, last.key.clone()));
                }
                _ => return Ok(true),
            }
        }
    }

    /// Gathers reservation by reservation, the newest first.
    async fn grouped(&mut self) -> Result<Option<Place>, StoreError> {
        let mut before = None;
        if let Some(place) = self.newest.after().cloned() {
            let listed = place.within(Source::Reservation);
            let key = ReservationKey::from_stored(listed.id);
            // Of the one that the page before ended with, steps may be left.
            if place.source == Source::Reservation
                && let Some(found) = self.reservation(&key).await?
                && found.create_time == place.time
            {
                self.tell(&found, Order::Grouped);
            }
            before = Some((listed.time, key));
        }
        let mut seen = 0;
        loop {
            let found = self.older(self.query.until, before.as_ref()).await?;
            for reservation in &found {
                let (time, key) = (reservation.create_time, &reservation.key);
                if self.newest.is_beyond(&Place::of_step(time, key, usize::MAX)) {
                    return Ok(None);
                }
                self.tell(reservation, Order::Grouped);
                seen += 1;
                if seen >= self.engine.settings.trail {
                    return Ok(Some(Place::of_step(time, key, 0)));
                }
            }
            match found.last() {
                Some(last) if found.len() == PART => {
                    before = Some((last.create_time, last.key.clone()));
                }
                _ => return Ok(None),
            }
        }
    }

    async fn older(
        &self,
        created_until: Option<Time>,
        before: Option<&(Time, ReservationKey)>,
    ) -> Result<Vec<Arc<Reservation>>, StoreError> {
        let namespace = self.query.namespace.clone();
        let filter = ReservationFilter { namespace, created_until, ..ReservationFilter::default() };
        let before = before.map(|(time, key)| (*time, key));
        self.engine.store.reservations_before(&filter, before, PART).await
    }

    async fn reservation(
        &self,
        key: &ReservationKey,
    ) -> Result<Option<Arc<Reservation>>, StoreError> {
        let keys = Keys { reservations: vec![key.clone()], ..Keys::default() };
        let found = self.engine.store.load(&keys).await?.reservations.remove(key);
        Ok(found.flatten().map(|row| row.value))
    }

    /// Offers the steps of a reservation.
    fn tell(&mut self, reservation: &Reservation, order: Order) {
        let place = |time, step| {
            let at = if order == Order::Exact { time } else { reservation.create_time };
            Place::of_step(at, &reservation.key, step)
        };
        let latest = place(latest(reservation), usize::MAX);
        if self.newest.is_beyond(&latest) || !self.wants(reservation) {
            return;
        }
        let mut subject = None;
        for (step, mut entry) in steps(reservation, self.now).into_iter().enumerate() {
            let place = place(entry.time, step);
            if !self.lies_within(entry.time) || self.newest.rejects(&place) {
                continue;
            }
            let of = || subject_of(self.policy, reservation);
            entry.subject.clone_from(subject.get_or_insert_with(of));
            self.newest.offer(place, entry);
        }
    }

    fn wants(&self, reservation: &Reservation) -> bool {
        let TrailQuery { subject, limit, .. } = self.query;
        let charged = |limit: &String| {
            reservation.charges.iter().any(|charge| charge.counter.limit == *limit)
        };
        limit.as_ref().is_none_or(charged)
            && subject.as_ref().is_none_or(|subject| names_subject(reservation.items(), subject))
    }

    fn lies_within(&self, time: Time) -> bool {
        self.query.from.is_none_or(|from| time >= from)
            && self.query.until.is_none_or(|until| time < until)
    }

    /// Gathers events or refusals; gives how far down they were looked at if that
    /// is not to the end.
    async fn stored(&mut self, source: Source) -> Result<Option<Place>, StoreError> {
        let mut before = self.newest.after().map(|place| place.within(source));
        let mut seen = 0;
        loop {
            let found = self.part(source, before.as_ref()).await?;
            let complete = found.len() < PART;
            for (id, entry) in found {
                let place = Place::of_stored(source, entry.time, &id);
                if self.newest.is_beyond(&place) {
                    return Ok(None);
                }
                before = Some(place.within(source));
                self.offer(place.clone(), entry);
                seen += 1;
                if seen >= self.engine.settings.trail {
                    return Ok(Some(place));
                }
            }
            if complete {
                return Ok(None);
            }
        }
    }

    /// The next of them, each with the store's own name for it.
    async fn part(
        &self,
        source: Source,
        before: Option<&TrailPlace>,
    ) -> Result<Vec<(String, TrailEntry)>, StoreError> {
        let (store, filter) = (&self.engine.store, self.filter());
        Ok(match source {
            Source::Event => named(store.events_before(&filter, before, PART).await?),
            Source::Refusal => named(store.refusals_before(&filter, before, PART).await?),
            // They lie in the reservations.
            Source::Reservation => Vec::new(),
        })
    }

    fn filter(&self) -> TrailFilter {
        let TrailQuery { namespace, subject, reservation_id, from, until, .. } = self.query.clone();
        TrailFilter { namespace, subject, reservation_id, from, until }
    }

    /// Offers an event or a refusal, if it is about the limit.
    fn offer(&mut self, place: Place, mut entry: TrailEntry) {
        let about = |limit: &String| {
            entry.limits.iter().any(|status| status.counter.limit == *limit)
                || entry.details.get("limit") == Some(limit)
        };
        if self.newest.rejects(&place) || !self.query.limit.as_ref().is_none_or(about) {
            return;
        }
        if entry.subject.is_empty() {
            let named = entry.limits.iter().filter_map(|status| {
                let id = &status.counter;
                let limit = self.policy.limit(&id.limit, id.generation)?;
                self.policy.subject(limit, &id.key)
            });
            entry.subject = only(named.map(|key| subject_name(&key)));
        }
        self.newest.offer(place, entry);
    }
}

/// No step of the reservation is later, whether it has been told yet or not.
fn latest(reservation: &Reservation) -> Time {
    let settled = reservation.history.iter().map(|entry| entry.time).max();
    let expiry = (reservation.settled == Settled::Open).then_some(reservation.expire_time);
    settled.into_iter().chain(expiry).max().unwrap_or(reservation.create_time)
}

/// The subject whose plan ruled, where that is one.
fn subject_of(policy: &Policy, reservation: &Reservation) -> String {
    let items = reservation.items();
    let named = reservation.charges.iter().flat_map(|charge| {
        let limit = policy.limit(&charge.counter.limit, charge.counter.generation);
        let items = charge.items.iter().filter_map(|&item| items.get(item));
        items.filter_map(move |item| policy.subject(limit?, &item.dimensions))
    });
    only(named.map(|key| subject_name(&key)))
}

/// The name, where there is only one; empty otherwise.
fn only(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.collect();
    if names.len() == 1 { names.into_iter().next().unwrap_or_default() } else { String::new() }
}

fn named<T: Into<TrailEntry>>(kept: Vec<Kept<T>>) -> Vec<(String, TrailEntry)> {
    kept.into_iter().map(|kept| (kept.id, kept.value.into())).collect()
}
