//! Listings: reservations, and the counters of a limit.
//!
//! A page looks at a bounded number of records, whatever is asked for: it may
//! be short, or empty, and lead on all the same. It goes on behind the last
//! record that was looked at, so that nothing that was there all the time comes
//! twice or is left out, whatever is written meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Engine, Error};
use crate::domain::counter::{Counter, CounterId, series};
use crate::domain::name::{Dimensions, ReservationKey, SubjectKey};
use crate::domain::policy::{Limit, Policy, listed, ruling};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Charge, ItemRequest, Reservation, ReservationState};
use crate::domain::state::Keys;
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;
use crate::domain::window::WindowRule;
use crate::store::{CounterFilter, CounterPlace, ReservationFilter, StoreError, Windows};

/// The most records that one page looks at.
const LOOKED_AT: usize = 5000;
/// The most that are read in one go: a page that is not filled by the first
/// reading, which asks for just as many as the page has, goes on with these.
const PART: usize = 250;
/// The most definitions of a limit that are looked up one by one.
const GENERATIONS: i64 = 20;

/// Which reservations are asked for: those that all of it holds for.
#[derive(Clone, Debug, Default)]
pub struct ReservationQuery {
    /// Of this namespace.
    pub namespace: String,
    /// In one of these states now; empty for any.
    pub states: Vec<ReservationState>,
    /// With an item of this metric,
    pub metric: Option<String>,
    /// charged to this limit,
    pub limit: Option<String>,
    /// that has these dimensions: all three of the same item.
    pub dimensions: Dimensions,
    /// Created at this instant or later.
    pub created_from: Option<Time>,
    /// Created before this instant.
    pub created_until: Option<Time>,
    /// Held until this instant or later.
    pub expiring_from: Option<Time>,
    /// Held until before this instant.
    pub expiring_until: Option<Time>,
}

/// Where a reservation stands in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationPlace {
    /// When it was made.
    pub create_time: Time,
    /// Which it is.
    pub key: ReservationKey,
}

/// Which counters are asked for.
#[derive(Clone, Debug)]
pub struct CountersQuery {
    /// Of this namespace.
    pub namespace: String,
    /// Of this limit, as it is defined now.
    pub limit: String,
    /// In the window that contains this instant; `None` for now.
    pub at: Option<Time>,
    /// Full at least to this share.
    pub min_utilization: f64,
}

/// Where a counter stands in a listing, and of which instant that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersPlace {
    /// The instant whose windows are listed, on all pages.
    pub at: Time,
    /// The place.
    pub counter: CounterPlace,
}

impl Engine {
    /// The next reservations, newest first, before that place. Each is shown to
    /// `take` with the instant at which it is looked at; one that `take` has no
    /// room for ends the page, which may have room for `most`. Gives where the
    /// next page begins; `None` where nothing is left.
    pub async fn reservations(
        &self,
        query: &ReservationQuery,
        before: Option<ReservationPlace>,
        most: usize,
        take: &mut (dyn FnMut(&Reservation, Time) -> bool + Send),
    ) -> Result<Option<ReservationPlace>, Error> {
        self.store.tick().await?;
        let policy = self.policy_of(&query.namespace).await?;
        let filter = query.filter(&policy)?;
        let now = self.now();
        let mut passed = before;
        for size in parts(most) {
            let place = passed.as_ref().map(|place| (place.create_time, &place.key));
            let part = self.store.reservations_before(&filter, place, size).await?;
            let as_of = self.as_of(&part, now).await?;
            for reservation in &part {
                let counters = reservation.charges.iter().map(|charge| &charge.counter);
                let now = counters.filter_map(|id| as_of.get(id)).copied().fold(now, Time::max);
                if query.means(reservation, now) && !take(reservation, now) {
                    return Ok(passed);
                }
                let (create_time, key) = (reservation.create_time, reservation.key.clone());
                passed = Some(ReservationPlace { create_time, key });
            }
            if part.len() < size {
                return Ok(None);
            }
        }
        Ok(passed)
    }

    /// What the counters have seen of time, where that may tell whether a hold
    /// is live: time never runs back for a counter.
    async fn as_of(
        &self,
        reservations: &[Arc<Reservation>],
        now: Time,
    ) -> Result<HashMap<Arc<CounterId>, Time>, StoreError> {
        let held = reservations.iter().filter(|r| r.state(now) == ReservationState::Held);
        let counters = held.flat_map(|r| r.charges.iter().map(|c| (&c.counter.text, &c.counter)));
        let counters: BTreeMap<_, _> = counters.collect();
        if counters.is_empty() {
            return Ok(HashMap::new());
        }
        let counters = counters.into_values().cloned().collect();
        let loaded = self.store.load(&Keys { counters, ..Keys::default() }).await?;
        Ok(loaded
            .counters
            .into_iter()
            .filter_map(|(id, row)| Some((id, row?.value.as_of)))
            .collect())
    }

    /// The next counters of a limit in one window, behind that place. Each is
    /// shown to `take`; one that it has no room for ends the page, which may
    /// have room for `most`. Gives where the next page begins; `None` where
    /// nothing is left.
    pub async fn counters(
        &self,
        query: &CountersQuery,
        after: Option<CountersPlace>,
        most: usize,
        take: &mut (dyn FnMut(&LimitStatus) -> bool + Send),
    ) -> Result<Option<CountersPlace>, Error> {
        self.store.tick().await?;
        let policy = self.policy_of(&query.namespace).await?;
        let limit = limit_of(&policy, &query.limit)?;
        let now = self.now();
        let begun = after.as_ref().map(|place| place.at);
        let at = begun.or(query.at).unwrap_or(now);
        let Some(windows) = windows(&limit.window, at) else { return Ok(None) };
        let (namespace, generation) = (query.namespace.clone(), limit.generation);
        let filter = CounterFilter { namespace, limit: query.limit.clone(), generation, windows };
        let mut passed = after.map(|place| place.counter);
        for size in parts(most) {
            let part = self.store.counters_of(&filter, passed.as_ref(), size).await?;
            let subjects = self.ruling(&policy, limit, &part).await?;
            let subject = |key: &SubjectKey| subjects.get(key)?.as_ref();
            for counter in &part {
                let status = listed(&policy, limit, counter, subject, at, now);
                let status = status.filter(|s| s.utilization() >= query.min_utilization);
                if status.is_some_and(|status| !take(&status)) {
                    return Ok(passed.map(|counter| CountersPlace { at, counter }));
                }
                let (end, text) = (counter.id.window.end(), counter.id.text.clone());
                passed = Some(CounterPlace { end, text });
            }
            if part.len() < size {
                return Ok(None);
            }
        }
        Ok(passed.map(|counter| CountersPlace { at, counter }))
    }

    /// The subjects that rule these counters, read at once.
    async fn ruling(
        &self,
        policy: &Policy,
        limit: &Limit,
        counters: &[Counter],
    ) -> Result<HashMap<SubjectKey, Option<crate::domain::subject::Subject>>, StoreError> {
        let subjects: BTreeSet<SubjectKey> =
            counters.iter().flat_map(|counter| ruling(policy, limit, &counter.id)).collect();
        if subjects.is_empty() {
            return Ok(HashMap::new());
        }
        let keys = Keys { subjects: subjects.into_iter().collect(), ..Keys::default() };
        let loaded = self.store.load(&keys).await?.subjects;
        Ok(loaded.into_iter().map(|(key, row)| (key, row.map(|row| row.value))).collect())
    }

    async fn policy_of(&self, namespace: &str) -> Result<Arc<Policy>, Error> {
        let none = || Refusal::NamespaceNotFound { namespace: namespace.to_owned() };
        Ok(self.catalog.policy(namespace).await?.ok_or_else(none)?)
    }
}

/// How many records are read at each step of a page of that size.
fn parts(most: usize) -> impl Iterator<Item = usize> {
    // One more than the page has tells whether another follows.
    let first = (most + 1).min(PART);
    std::iter::once(first).chain(std::iter::repeat_n(PART, LOOKED_AT / PART - 1))
}

fn limit_of<'p>(policy: &'p Policy, name: &str) -> Result<&'p Limit, Refusal> {
    policy.present_limit(name).ok_or_else(|| Refusal::LimitNotFound { limit: name.to_owned() })
}

/// The windows that contain an instant, by when they end; `None` where there is
/// none. Only its subject tells when a billing period ends.
fn windows(rule: &WindowRule, at: Time) -> Option<Windows> {
    match rule {
        WindowRule::Lifetime | WindowRule::Rolling(_) => Some(Windows::Endless),
        WindowRule::Billing { .. } => Some(Windows::EndingAfter(at)),
        WindowRule::Calendar(_) | WindowRule::Fixed(_) => {
            Some(Windows::EndingAt(rule.containing(at, None)?.end()?))
        }
    }
}

impl ReservationQuery {
    /// What the store is asked for: all that may be meant, and as little else
    /// as it can tell apart.
    fn filter(&self, policy: &Policy) -> Result<ReservationFilter, Refusal> {
        let metrics = &policy.source.spec.metrics;
        if let Some(metric) = self.metric.as_ref().filter(|metric| !metrics.contains_key(*metric)) {
            return Err(Refusal::MetricNotFound { metric: metric.clone() });
        }
        let limit = self.limit.as_ref().map(|name| limit_of(policy, name)).transpose()?;
        let series = limit.and_then(|limit| self.series(limit)).unwrap_or_default();
        let (created_from, created_until) = (self.created_from, self.created_until);
        let namespace = self.namespace.clone();
        Ok(ReservationFilter { namespace, series, created_from, created_until })
    }

    /// The series of a limit, in all its definitions so far, that the dimensions
    /// name; `None` where they do not name one.
    fn series(&self, limit: &Limit) -> Option<Vec<String>> {
        let key: BTreeSet<&String> = limit.spec.per.iter().collect();
        let values: Option<Vec<&str>> =
            key.into_iter().map(|name| self.dimensions.get(name).map(String::as_str)).collect();
        let values = values.filter(|_| limit.generation <= GENERATIONS)?;
        let of = |generation| series(&self.namespace, &limit.spec.name, generation, &values);
        Some((1..=limit.generation).map(of).collect())
    }

    fn means(&self, reservation: &Reservation, now: Time) -> bool {
        let within = |time: Time, from: Option<Time>, until: Option<Time>| {
            from.is_none_or(|from| time >= from) && until.is_none_or(|until| time < until)
        };
        let expires = || {
            let bounded = self.expiring_from.is_some() || self.expiring_until.is_some();
            let held = reservation.request.as_ref().is_some_and(|request| !request.commit);
            let time = reservation.expire_time;
            !bounded || (held && within(time, self.expiring_from, self.expiring_until))
        };
        (self.states.is_empty() || self.states.contains(&reservation.state(now)))
            && within(reservation.create_time, self.created_from, self.created_until)
            && expires()
            && self.means_an_item(reservation)
    }

    fn means_an_item(&self, reservation: &Reservation) -> bool {
        if self.metric.is_none() && self.limit.is_none() && self.dimensions.is_empty() {
            return true;
        }
        let charged = |n: usize| {
            let to = |limit: &String| {
                let mut charges = reservation.charges.iter();
                charges.any(|c: &Charge| c.counter.limit == *limit && c.items.contains(&n))
            };
            self.limit.as_ref().is_none_or(to)
        };
        let mut items = reservation.items().iter().enumerate();
        items.any(|(n, item): (usize, &ItemRequest)| {
            self.metric.as_ref().is_none_or(|metric| item.metric == *metric)
                && self.dimensions.iter().all(|(k, v)| item.dimensions.get(k) == Some(v))
                && charged(n)
        })
    }
}
