//! Reconcile: the committed resources of a limit against those that exist.
//!
//! What exists is told in pieces, in any order. Whatever of a piece is not
//! committed is told at once; what is committed and does not exist, when all
//! pieces are there. Of the names only a digest is kept, so that millions fit.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::{Engine, Error};
use crate::domain::counter::{CounterId, series};
use crate::domain::decide::{Adjust, Command, FindBy, Refund};
use crate::domain::name::{Dimensions, ReservationKey, ResourceKey};
use crate::domain::policy::{Limit, Policy};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{Reservation, Settled};
use crate::domain::state::Keys;
use crate::domain::time::Time;
use crate::store::{Charged, ReservationFilter};

/// The most resources that may be told to exist: some 16 bytes are kept of each.
pub const MAX_LIVE: usize = 5_000_000;
/// How many records are read in one go.
const PAGE: usize = 500;
/// How many refunds or bookings are under way at once.
const TOGETHER: usize = 64;

/// What is to be compared, and what to do about the difference.
#[derive(Clone, Debug)]
pub struct ReconcileQuery {
    /// The namespace.
    pub namespace: String,
    /// The limit.
    pub limit: String,
    /// Only this counter of it.
    pub key: Option<Dimensions>,
    /// Refund what is committed and does not exist.
    pub refund_leaked: bool,
    /// Book what exists and is not committed.
    pub book_missing: bool,
    /// Why.
    pub reason: String,
    /// Who asks.
    pub principal: String,
    /// When the list was taken; `None` for now.
    pub as_of: Option<Time>,
}

/// A resource that is on one side only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discrepancy {
    /// The resource.
    pub resource: String,
    /// Committed and does not exist; otherwise it exists and is not committed.
    pub leaked: bool,
    /// The reservation it belongs to, if any.
    pub reservation_id: String,
    /// Whether it was refunded or booked.
    pub mended: bool,
}

/// A comparison under way.
pub struct Reconciliation {
    engine: Arc<Engine>,
    query: ReconcileQuery,
    policy: Arc<Policy>,
    as_of: Time,
    hashers: [RandomState; 2],
    live: HashSet<(u64, u64)>,
    /// What those who hold units of the counter are about to commit.
    planned: HashSet<String>,
    /// The last reservation that was looked at for what is leaked.
    place: Option<(Time, ReservationKey)>,
    /// One of the few that may go on at once.
    _turn: OwnedSemaphorePermit,
}

impl Engine {
    /// Begins to compare.
    ///
    /// # Errors
    ///
    /// There is no such namespace or limit, or the key does not fit it.
    pub async fn reconcile(
        self: Arc<Self>,
        mut query: ReconcileQuery,
    ) -> Result<Reconciliation, Error> {
        let turn = Arc::clone(&self.thorough).try_acquire_owned();
        let turn = turn.map_err(|_| Error::Overloaded)?;
        self.store.tick().await?;
        let policy = self.catalog.policy(&query.namespace).await?;
        let namespace = || query.namespace.clone();
        let policy = policy.ok_or_else(|| Refusal::NamespaceNotFound { namespace: namespace() })?;
        let limit = policy
            .present_limit(&query.limit)
            .ok_or_else(|| Refusal::LimitNotFound { limit: query.limit.clone() })?;
        if limit.spec.per.is_empty() {
            // The only counter that it has.
            query.key.get_or_insert_default();
        }
        match &query.key {
            Some(key) => limit.check_key(key)?,
            None if query.book_missing => {
                let message = "must be given with book_missing: the limit counts by something";
                return Err(Refusal::invalid("key", message).into());
            }
            None => {}
        }
        let as_of = query.as_of.unwrap_or_else(|| self.now());
        let mut reconciliation = Reconciliation {
            engine: self,
            as_of,
            hashers: [RandomState::new(), RandomState::new()],
            live: HashSet::new(),
            planned: HashSet::new(),
            place: None,
            _turn: turn,
            query,
            policy: Arc::clone(&policy),
        };
        if reconciliation.query.book_missing {
            reconciliation.note_planned().await?;
        }
        Ok(reconciliation)
    }
}

impl Reconciliation {
    /// These exist. Gives those of them that are not committed.
    ///
    /// # Errors
    ///
    /// There are too many, or the store does not answer.
    pub async fn exist(&mut self, names: Vec<String>) -> Result<Vec<Discrepancy>, Error> {
        let mut found = Vec::new();
        let fresh: Vec<String> = names.into_iter().filter(|name| self.remember(name)).collect();
        if self.live.len() > MAX_LIVE {
            let message = format!("are more than {MAX_LIVE} in all; compare key by key");
            return Err(Refusal::invalid("resources", message).into());
        }
        for names in fresh.chunks(PAGE) {
            found.extend(self.missing(names).await?);
        }
        Ok(found)
    }

    /// All that exist were told: the next of those that are committed and do not
    /// exist; `None` when there are no more.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn leaked(&mut self) -> Result<Option<Vec<Discrepancy>>, Error> {
        let before = self.place.as_ref().map(|(time, key)| (*time, key));
        let page = self.engine.store.reservations_before(&self.filter(), before, PAGE).await?;
        let Some(last) = page.last() else { return Ok(None) };
        self.place = Some((last.create_time, last.key.clone()));
        let leaking: Vec<_> = page.iter().filter_map(|found| self.leaks(found)).collect();
        let mut found = Vec::new();
        for leaking in leaking.chunks(TOGETHER) {
            let told = leaking.iter().map(|(reservation, gone)| self.tell(reservation, gone));
            found.extend(join_all(told).await.into_iter().flatten());
        }
        Ok(Some(found))
    }

    fn limit(&self) -> Option<&Limit> {
        self.policy.present_limit(&self.query.limit)
    }

    /// The reservations among which those of the limit are.
    fn filter(&self) -> ReservationFilter {
        let namespace = self.query.namespace.clone();
        let series = match (&self.query.key, self.limit()) {
            (Some(key), Some(limit)) => {
                let values: Vec<&str> = key.values().map(String::as_str).collect();
                let of = |generation| series(&namespace, &self.query.limit, generation, &values);
                (1..=limit.generation).map(of).collect()
            }
            _ => Vec::new(),
        };
        ReservationFilter { namespace, series, created_until: None, created_from: None }
    }

    /// Whether the name was not told before.
    fn remember(&mut self, name: &str) -> bool {
        let digest = self.digest(name);
        self.live.insert(digest)
    }

    fn digest(&self, name: &str) -> (u64, u64) {
        (self.hashers[0].hash_one(name), self.hashers[1].hash_one(name))
    }

    /// Whether a reservation has units of the limit that are in use.
    fn uses(&self, reservation: &Reservation) -> bool {
        let ours = |counter: &CounterId| {
            counter.limit == self.query.limit
                && self.query.key.as_ref().is_none_or(|key| *key == counter.key)
        };
        reservation.left().iter().any(|left| *left > 0)
            && reservation.charges.iter().any(|charge| ours(&charge.counter))
    }

    async fn missing(&self, names: &[String]) -> Result<Vec<Discrepancy>, Error> {
        let namespace = &self.query.namespace;
        let key = |name: &String| ResourceKey::new(namespace, name);
        let keys = Keys { resources: names.iter().map(key).collect(), ..Keys::default() };
        let bound = self.engine.store.load(&keys).await?.resources;
        let owners: HashSet<_> = bound.values().flatten().cloned().collect();
        let keys = Keys { reservations: owners.into_iter().collect(), ..Keys::default() };
        let owners = self.engine.store.load(&keys).await?.reservations;
        let mut missing = Vec::new();
        for name in names {
            let owner = bound.get(&key(name)).and_then(Option::as_ref);
            let reservation = owner.and_then(|owner| owners.get(owner)).and_then(Option::as_ref);
            if reservation.is_some_and(|row| self.uses(&row.value)) || self.planned.contains(name) {
                continue;
            }
            missing.push(Discrepancy {
                resource: name.clone(),
                leaked: false,
                reservation_id: owner.map(|owner| owner.id().into_owned()).unwrap_or_default(),
                mended: false,
            });
        }
        if self.query.book_missing {
            for part in missing.chunks_mut(TOGETHER) {
                let free = part.iter_mut().filter(|missing| missing.reservation_id.is_empty());
                join_all(free.map(|missing| self.book(missing))).await;
            }
        }
        Ok(missing)
    }

    /// Books one unit for a resource that exists.
    async fn book(&self, missing: &mut Discrepancy) {
        let id = format!("reconcile-{}", uuid::Uuid::now_v7());
        let adjust = Command::Adjust(Adjust {
            key: ReservationKey::new(&self.query.namespace, &id),
            limit: self.query.limit.clone(),
            counter: self.query.key.clone().unwrap_or_default(),
            delta: 1,
            resources: vec![missing.resource.clone()],
            reason: self.query.reason.clone(),
            principal: self.query.principal.clone(),
        });
        match self.engine.submit(adjust, None).await {
            Ok(_) => (missing.reservation_id, missing.mended) = (id, true),
            Err(error) => debug!(%error, resource = missing.resource, "could not be booked"),
        }
    }

    /// The reservation and those of its resources that do not exist, where some
    /// do not. What was committed after the list was taken may exist.
    fn leaks(&self, reservation: &Arc<Reservation>) -> Option<(Arc<Reservation>, Vec<String>)> {
        let Settled::Committed { at, resources, .. } = &reservation.settled else { return None };
        if *at > self.as_of || !self.uses(reservation) {
            return None;
        }
        let gone = |name: &&String| !self.live.contains(&self.digest(name));
        let gone: Vec<String> = resources.iter().filter(gone).cloned().collect();
        (!gone.is_empty()).then(|| (Arc::clone(reservation), gone))
    }

    /// Refunds the reservation where none of its resources exists: of one that
    /// has some left nobody knows which units are whose.
    async fn tell(&self, reservation: &Reservation, gone: &[String]) -> Vec<Discrepancy> {
        let all = match &reservation.settled {
            Settled::Committed { resources, .. } => resources.len(),
            _ => 0,
        };
        let mut mended = false;
        if self.query.refund_leaked && gone.len() == all {
            let refund = Command::Refund(Refund {
                find_by: FindBy::Id(reservation.key.clone()),
                refund_id: format!("reconcile-{}", uuid::Uuid::now_v7()),
                amounts: Vec::new(),
                reason: self.query.reason.clone(),
                principal: self.query.principal.clone(),
            });
            match self.engine.submit(refund, None).await {
                Ok(_) => mended = true,
                Err(error) => debug!(%error, id = %reservation.key, "could not be refunded"),
            }
        }
        let discrepancy = |resource: &String| Discrepancy {
            resource: resource.clone(),
            leaked: true,
            reservation_id: reservation.key.id().into_owned(),
            mended,
        };
        gone.iter().map(discrepancy).collect()
    }

    /// The counters of a series that hold something: one for each window of late.
    async fn holding(&self, series: &str, now: Time) -> Result<Vec<Arc<CounterId>>, Error> {
        let prefix = format!("{series}/");
        let (mut after, mut found) = (prefix.clone(), Vec::new());
        loop {
            let page = self.engine.counters_within(&prefix, &after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after.clone_from(&last.id.text);
            let holding = page.iter().filter(|counter| counter.held(now) > 0);
            found.extend(holding.map(|counter| Arc::clone(&counter.id)));
        }
    }

    /// Notes what those are about to commit who hold units of the counter, as
    /// far as they said when reserving: it exists already, maybe, and is not to
    /// be booked beside them.
    async fn note_planned(&mut self) -> Result<(), Error> {
        let filter = self.filter();
        let now = self.engine.now();
        let mut counters = Vec::new();
        for series in &filter.series {
            counters.extend(self.holding(series, now).await?);
        }
        for counters in counters.chunks(TOGETHER) {
            let mut planned = HashSet::new();
            let mut visit = |charged| {
                match charged {
                    Charged::Counters(_) => planned.clear(),
                    Charged::Reservation(reservation) => {
                        let request = reservation.request.as_ref();
                        planned.extend(request.into_iter().flat_map(|r| r.resources.clone()));
                    }
                }
                ControlFlow::Continue(())
            };
            self.engine.store.charged(counters, Some(now), &mut visit).await?;
            self.planned.extend(planned);
        }
        Ok(())
    }
}
