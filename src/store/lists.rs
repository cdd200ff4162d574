//! Where reservations and counters stand in listings, for the stores that have
//! no indexes of their own: what MongoDB finds by its indexes, these find here.
//!
//! A list of reservations is a sorted vector: what is new belongs near its end,
//! and an entry has no more than an instant and a shared key. All keys are
//! shared with whoever owns the records.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use super::filter::{CounterFilter, CounterPlace, ReservationFilter, Windows, group};
use crate::domain::counter::{CounterId, series_of};
use crate::domain::name::ReservationKey;
use crate::domain::reservation::{Reservation, Settled};
use crate::domain::time::{Span, Time};
use crate::domain::window::Window;

/// The lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    by_namespace: HashMap<Arc<str>, Created>,
    by_series: HashMap<Arc<str>, Created>,
    by_counter: HashMap<Arc<str>, Takers>,
    /// When those expire that are not settled, as the counters' lists have it.
    open: HashMap<Arc<str>, Time>,
    /// Counters of each limit and generation, by the end of their window.
    counters: HashMap<Arc<str>, Ending>,
    /// The ends of billing periods, as those lists have them: they may be
    /// corrected.
    billed: HashMap<Arc<str>, Time>,
}

/// Counters by the end of their window, then by text.
type Ending = BTreeSet<(Option<Time>, Arc<str>)>;

/// Reservations by when they were created, then by key.
type Created = Vec<(Time, Arc<str>)>;

/// What was charged to one counter.
#[derive(Debug, Default)]
struct Takers {
    all: Vec<Taker>,
    /// Those not settled, by when they expire.
    open: BTreeSet<(Time, Taker)>,
}

/// A reservation by its key, and where its record lies, for the store that says
/// so: the same key may lie elsewhere a moment later.
type Taker = (Arc<str>, u64);

/// What the lists go by of a reservation.
#[derive(Clone, Debug)]
pub(super) struct ReservationFacts {
    pub namespace: String,
    pub create_time: Time,
    pub expire_time: Time,
    pub open: bool,
    /// The texts of the counters that it is charged to.
    pub counters: Vec<String>,
}

/// What the lists go by of a counter.
#[derive(Clone, Debug)]
pub(super) struct CounterFacts {
    group: String,
    end: Option<Time>,
    /// Whether the end may be corrected.
    billed: bool,
}

impl ReservationFacts {
    pub fn of(reservation: &Reservation) -> Self {
        let counters = reservation.charges.iter().map(|charge| charge.counter.text.clone());
        Self {
            namespace: reservation.key.namespace().into_owned(),
            create_time: reservation.create_time,
            expire_time: reservation.expire_time,
            open: matches!(reservation.settled, Settled::Open),
            counters: counters.collect(),
        }
    }
}

impl CounterFacts {
    pub fn of(id: &CounterId) -> Self {
        let billed = matches!(id.window, Window::Billing { .. });
        Self::new(&id.namespace, &id.limit, id.generation, id.window.end(), billed)
    }

    pub fn new(
        namespace: &str,
        limit: &str,
        generation: i64,
        end: Option<Time>,
        billed: bool,
    ) -> Self {
        Self { group: group(namespace, limit, generation), end, billed }
    }
}

impl Lists {
    fn has_reservation(&self, key: &str, facts: &ReservationFacts) -> bool {
        let wanted = (facts.create_time, key);
        let list = self.by_namespace.get(&*facts.namespace);
        list.is_some_and(|list| list.binary_search_by(|entry| place(entry).cmp(&wanted)).is_ok())
    }

    /// A reservation was made, or changed but for what it took and when: one that
    /// was that is forgotten first.
    pub fn put_reservation(&mut self, key: &Arc<str>, lies: u64, facts: &ReservationFacts) {
        let taker = (Arc::clone(key), lies);
        if !self.has_reservation(key, facts) {
            add(&mut self.by_namespace, &facts.namespace, facts.create_time, key);
            let series: BTreeSet<&str> =
                facts.counters.iter().map(|text| series_of(text)).collect();
            for series in series {
                add(&mut self.by_series, series, facts.create_time, key);
            }
            for counter in &facts.counters {
                entry(&mut self.by_counter, counter).all.push(taker.clone());
            }
        }
        let until = facts.open.then_some(facts.expire_time);
        let before = self.open.get(key).copied();
        if before == until {
            return;
        }
        for counter in &facts.counters {
            let Some(takers) = self.by_counter.get_mut(&**counter) else { continue };
            if let Some(before) = before {
                takers.open.remove(&(before, taker.clone()));
            }
            takers.open.extend(until.map(|until| (until, taker.clone())));
        }
        match until {
            Some(until) => self.open.insert(Arc::clone(key), until),
            None => self.open.remove(key),
        };
    }

    /// A reservation has gone, or takes another place: it had these facts.
    pub fn forget_reservation(&mut self, key: &str, facts: &ReservationFacts) {
        let remove = |list: Option<&mut Created>| {
            let Some(list) = list else { return };
            let wanted = (facts.create_time, key);
            if let Ok(at) = list.binary_search_by(|entry| place(entry).cmp(&wanted)) {
                list.remove(at);
            }
        };
        remove(self.by_namespace.get_mut(&*facts.namespace));
        for counter in &facts.counters {
            remove(self.by_series.get_mut(series_of(counter)));
            if let Some(takers) = self.by_counter.get_mut(&**counter) {
                takers.all.retain(|(taker, _)| &**taker != key);
                takers.open.retain(|(_, (taker, _))| &**taker != key);
            }
        }
        self.open.remove(key);
    }

    /// A counter was made or changed.
    pub fn put_counter(&mut self, text: &Arc<str>, facts: &CounterFacts) {
        let list = entry(&mut self.counters, &facts.group);
        if let (true, Some(end)) = (facts.billed, facts.end) {
            let before = self.billed.insert(Arc::clone(text), end);
            if let Some(before) = before.filter(|before| *before != end) {
                list.remove(&(Some(before), Arc::clone(text)));
            }
        }
        list.insert((facts.end, Arc::clone(text)));
    }

    /// Many records have gone.
    pub fn forget(&mut self, reservations: &HashSet<Arc<str>>, counters: &HashSet<Arc<str>>) {
        for lists in [&mut self.by_namespace, &mut self.by_series] {
            lists.retain(|_, list| {
                list.retain(|(_, key)| !reservations.contains(key));
                list.shrink_to(2 * list.len());
                !list.is_empty()
            });
        }
        self.by_counter.retain(|_, takers| {
            takers.all.retain(|(key, _)| !reservations.contains(key));
            takers.all.shrink_to(2 * takers.all.len());
            takers.open.retain(|(_, (key, _))| !reservations.contains(key));
            !takers.all.is_empty()
        });
        self.open.retain(|key, _| !reservations.contains(key));
        self.counters.retain(|_, list| {
            list.retain(|(_, text)| !counters.contains(text));
            !list.is_empty()
        });
        self.billed.retain(|text, _| !counters.contains(text));
    }

    /// The next reservations of a listing, newest first.
    pub fn reservations_before(
        &self,
        filter: &ReservationFilter,
        before: Option<(Time, &ReservationKey)>,
        limit: usize,
    ) -> Vec<Arc<str>> {
        let lists: Vec<&Created> = if filter.series.is_empty() {
            self.by_namespace.get(&*filter.namespace).into_iter().collect()
        } else {
            filter.series.iter().filter_map(|series| self.by_series.get(&**series)).collect()
        };
        let from = (filter.created_from.unwrap_or(Time::MIN), "");
        let until = filter.created_until.map(|until| (until, ""));
        let before = before.map(|(time, key)| (time, key.as_str()));
        let end = until.into_iter().chain(before).min();
        let mut found: Vec<&(Time, Arc<str>)> = Vec::new();
        for list in lists {
            let first = list.partition_point(|entry| place(entry) < from);
            let end = end.map_or(list.len(), |end| list.partition_point(|e| place(e) < end));
            found.extend(list.get(first..end).unwrap_or_default().iter().rev().take(limit));
        }
        // Each is in order; one that is charged to several counters may be in
        // several of them.
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.dedup();
        found.into_iter().take(limit).map(|(_, key)| Arc::clone(key)).collect()
    }

    /// The reservations that are charged to any of these counters, each once;
    /// with `held_after` those that are not settled and expire later, soonest
    /// first.
    pub fn charged(&self, counters: &[Arc<CounterId>], held_after: Option<Time>) -> Vec<Taker> {
        let takers: Vec<&Takers> =
            counters.iter().filter_map(|id| self.by_counter.get(&*id.text)).collect();
        let Some(after) = held_after else {
            let mut keys: Vec<Taker> =
                takers.iter().flat_map(|takers| takers.all.iter().cloned()).collect();
            if takers.len() > 1 {
                keys.sort_unstable();
                keys.dedup();
            }
            return keys;
        };
        let live = |takers: &&Takers| {
            let later = takers.open.iter().rev().take_while(|(until, _)| *until > after);
            later.cloned().collect::<Vec<_>>()
        };
        let mut holds: Vec<(Time, Taker)> = takers.iter().flat_map(live).collect();
        holds.sort_unstable();
        holds.dedup();
        holds.into_iter().map(|(_, taker)| taker).collect()
    }

    /// The next counters of a listing.
    pub fn counters_of(
        &self,
        filter: &CounterFilter,
        after: Option<&CounterPlace>,
        limit: usize,
    ) -> Vec<Arc<str>> {
        let Some(list) = self.counters.get(&*filter.group()) else { return Vec::new() };
        let first = |end| (end, Arc::from(""));
        let later = |at: Time| first(Some(at.plus(Span::from_millis(1))));
        let endless = (first(None), Some(first(Some(Time::MIN))));
        let ranges = match filter.windows {
            Windows::Endless => vec![endless],
            Windows::EndingAt(at) => vec![(first(Some(at)), Some(later(at)))],
            Windows::EndingAfter(at) => vec![endless, (later(at), None)],
        };
        // No text comes between one and the same with a zero byte at its end.
        let next = after.map(|place| (place.end, Arc::from(format!("{}\0", place.text))));
        let mut found = Vec::new();
        for (start, end) in ranges {
            let start = next.clone().into_iter().chain([start]).max().unwrap_or_default();
            if end.as_ref().is_some_and(|end| *end <= start) {
                continue;
            }
            let range = list.range((Included(start), end.map_or(Unbounded, Excluded)));
            found.extend(range.take(limit - found.len()).map(|(_, text)| Arc::clone(text)));
        }
        found
    }
}

fn place((time, key): &(Time, Arc<str>)) -> (Time, &str) {
    (*time, key)
}

/// The list of that name, which is made where there is none.
fn entry<'l, T: Default>(lists: &'l mut HashMap<Arc<str>, T>, name: &str) -> &'l mut T {
    // Not by a copy of the name: most often it is there.
    if !lists.contains_key(name) {
        lists.insert(Arc::from(name), T::default());
    }
    lists.entry(Arc::from(name)).or_default()
}

fn add(lists: &mut HashMap<Arc<str>, Created>, name: &str, time: Time, key: &Arc<str>) {
    let list = entry(lists, name);
    let at = list.partition_point(|entry| place(entry) < (time, key));
    list.insert(at, (time, Arc::clone(key)));
}
