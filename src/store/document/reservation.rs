//! Reservations as documents.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{BoundDoc, Pair, WindowDoc, damaged, date, map, pairs, time};
use crate::domain::counter::CounterId;
use crate::domain::name::ReservationKey;
use crate::domain::reservation::{
    Charge, HistoryEntry, HistoryEvent, ItemRequest, Request, Reservation, Settled,
};
use crate::domain::time::{Span, Time};
use crate::store::{Change, Extent, StoreError, Versioned};

/// A reservation.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReservationDoc {
    /// [`ReservationKey`].
    #[serde(rename = "_id")]
    pub id: String,
    version: i64,
    namespace: String,
    reservation_id: String,
    /// `held`, `committed` or `released`. That a hold has expired is never
    /// written: it is held and past its `expire_time`.
    state: StateWord,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestDoc>,
    charges: Vec<ChargeDoc>,
    create_time: bson::DateTime,
    expire_time: bson::DateTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_time: Option<bson::DateTime>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    committed: Vec<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    history: Vec<HistoryDoc>,
    policy_revision: i64,
    principal: String,
    /// When retention may remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<bson::DateTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateWord {
    Held,
    Committed,
    Released,
}

#[derive(Debug, Serialize, Deserialize)]
struct RequestDoc {
    items: Vec<ItemDoc>,
    ttl_ms: i64,
    commit: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    labels: Vec<Pair>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    adjustment: bool,
}

/// An item of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ItemDoc {
    metric: String,
    amount: i64,
    dimensions: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChargeDoc {
    /// [`CounterId::text`]; indexed.
    counter: String,
    /// [`CounterId::series`]; indexed, to list what was taken of a limit for a
    /// key in whichever windows.
    series: String,
    limit: String,
    metric: String,
    generation: i64,
    key: Vec<Pair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowDoc>,
    items: Vec<i64>,
    fencing_token: i64,
    max: BoundDoc,
    enforced: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taken: Vec<TakenDoc>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TakenDoc {
    bucket: bson::DateTime,
    units: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct HistoryDoc {
    time: bson::DateTime,
    event: EventWord,
    amounts: Vec<i64>,
    principal: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    refund_id: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unfreed: Vec<UnfreedDoc>,
    #[serde(default = "once", skip_serializing_if = "is_once")]
    times: i64,
}

/// Units that a refund did not free on one of the charges.
#[derive(Debug, Serialize, Deserialize)]
struct UnfreedDoc {
    charge: i64,
    units: i64,
}

fn once() -> i64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde asks for it
fn is_once(times: &i64) -> bool {
    *times == 1
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventWord {
    Reserved,
    Committed,
    Released,
    Extended,
    Refunded,
    Adjusted,
}

/// What changes of a reservation once it exists, for a store that can change
/// parts of a document: what was asked for and what was taken never do.
#[derive(Debug, Serialize)]
pub struct ReservationUpdate {
    version: i64,
    state: StateWord,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_time: Option<bson::DateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purge_at: Option<bson::DateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_time: Option<bson::DateTime>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    committed: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    history: Vec<HistoryDoc>,
}

impl ReservationUpdate {
    /// The update of a change.
    pub fn new(change: &Change<Arc<Reservation>>) -> Self {
        let reservation = &change.value;
        let (state, settle_time, committed, resources) = settled(&reservation.settled);
        // Indexed: sent only where it differs, to spare the look at the index.
        let moved = |time: Option<Time>| time.filter(|_| change.extent != Extent::Usual).map(date);
        Self {
            version: change.version,
            state,
            expire_time: moved(Some(reservation.expire_time)),
            purge_at: moved(change.purge_at),
            settle_time: settle_time.map(date),
            committed,
            resources,
            history: reservation.history.iter().filter_map(HistoryDoc::new).collect(),
        }
    }
}

impl ReservationDoc {
    /// The document of a change.
    pub fn new(change: &Change<Arc<Reservation>>) -> Self {
        let reservation = &change.value;
        let (state, settle_time, committed, resources) = settled(&reservation.settled);
        Self {
            id: reservation.key.as_str().to_owned(),
            version: change.version,
            namespace: reservation.key.namespace().into_owned(),
            reservation_id: reservation.key.id().into_owned(),
            state,
            request: reservation.request.as_deref().map(RequestDoc::new),
            charges: reservation.charges.iter().map(ChargeDoc::new).collect(),
            create_time: date(reservation.create_time),
            expire_time: date(reservation.expire_time),
            settle_time: settle_time.map(date),
            committed,
            resources,
            history: reservation.history.iter().filter_map(HistoryDoc::new).collect(),
            policy_revision: reservation.policy_revision,
            principal: reservation.principal.clone(),
            purge_at: change.purge_at.map(date),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<Versioned<Arc<Reservation>>, StoreError> {
        let key = self.id.clone();
        self.convert().map_err(|message| damaged(&key, message))
    }

    fn convert(self) -> Result<Versioned<Arc<Reservation>>, String> {
        let key = ReservationKey::new(&self.namespace, &self.reservation_id);
        if key.as_str() != self.id {
            return Err(format!("its fields say that it is {key}"));
        }
        let settled_at = || self.settle_time.ok_or("it is settled, but lacks settle_time");
        let items = self.request.as_ref().map_or(0, |request| request.items.len());
        let settled = match self.state {
            StateWord::Held => Settled::Open,
            StateWord::Released => Settled::Released { at: time(settled_at()?)? },
            StateWord::Committed if self.committed.len() != items => {
                return Err(format!("{} amounts, but {items} items", self.committed.len()));
            }
            StateWord::Committed => Settled::Committed {
                at: time(settled_at()?)?,
                amounts: self.committed,
                resources: self.resources,
            },
        };
        let charges: Result<Arc<[_]>, _> =
            self.charges.into_iter().map(|charge| charge.charge(&self.namespace, items)).collect();
        let history: Result<Vec<_>, _> = self.history.into_iter().map(HistoryDoc::entry).collect();
        let value = Reservation {
            key,
            request: self.request.map(|request| Arc::new(request.request())),
            charges: charges?,
            create_time: time(self.create_time)?,
            expire_time: time(self.expire_time)?,
            settled,
            history: history?,
            policy_revision: self.policy_revision,
            principal: self.principal,
            purge_at: self.purge_at.map(time).transpose()?,
        };
        Ok(Versioned { version: self.version, value: Arc::new(value) })
    }
}

fn settled(settled: &Settled) -> (StateWord, Option<Time>, Vec<i64>, Vec<String>) {
    match settled {
        Settled::Open => (StateWord::Held, None, vec![], vec![]),
        Settled::Released { at } => (StateWord::Released, Some(*at), vec![], vec![]),
        Settled::Committed { at, amounts, resources } => {
            (StateWord::Committed, Some(*at), amounts.clone(), resources.clone())
        }
    }
}

impl RequestDoc {
    fn new(request: &Request) -> Self {
        Self {
            items: request.items.iter().map(ItemDoc::new).collect(),
            ttl_ms: request.ttl.as_millis(),
            commit: request.commit,
            resources: request.resources.clone(),
            labels: pairs(&request.labels),
            adjustment: request.adjustment,
        }
    }

    fn request(self) -> Request {
        Request {
            items: self.items.into_iter().map(ItemDoc::item).collect(),
            ttl: Span::from_millis(self.ttl_ms),
            commit: self.commit,
            resources: self.resources,
            labels: map(self.labels),
            adjustment: self.adjustment,
        }
    }
}

impl ItemDoc {
    /// The document of an item.
    pub fn new(item: &ItemRequest) -> Self {
        let ItemRequest { metric, amount, dimensions } = item;
        Self { metric: metric.clone(), amount: *amount, dimensions: pairs(dimensions) }
    }

    /// The item.
    pub fn item(self) -> ItemRequest {
        let Self { metric, amount, dimensions } = self;
        ItemRequest { metric, amount, dimensions: map(dimensions) }
    }
}

impl ChargeDoc {
    fn new(charge: &Charge) -> Self {
        let id = &charge.counter;
        Self {
            counter: id.text.clone(),
            series: id.series().to_owned(),
            limit: id.limit.clone(),
            metric: id.metric.clone(),
            generation: id.generation,
            key: pairs(&id.key),
            window: WindowDoc::new(&id.window),
            // Positions of at most 64 items.
            items: charge.items.iter().filter_map(|&n| i64::try_from(n).ok()).collect(),
            fencing_token: charge.token,
            max: charge.bound.into(),
            enforced: charge.enforced,
            taken: charge
                .taken
                .iter()
                .map(|&(bucket, units)| TakenDoc { bucket: date(bucket), units })
                .collect(),
        }
    }

    fn charge(self, namespace: &str, items: usize) -> Result<Charge, String> {
        let window = WindowDoc::window(self.window)?;
        let (limit, metric, key) = (&self.limit, &self.metric, map(self.key));
        let id = CounterId::new(namespace, limit, metric, self.generation, key, window);
        if id.text != self.counter || id.series() != self.series {
            return Err(format!("a charge says {}, its fields say {}", self.counter, id.text));
        }
        let position = |n: i64| match usize::try_from(n) {
            Ok(n) if n < items => Ok(n),
            _ => Err(format!("a charge counts item {n} of {items}")),
        };
        Ok(Charge {
            counter: Arc::new(id),
            items: self.items.into_iter().map(position).collect::<Result<_, _>>()?,
            token: self.fencing_token,
            bound: self.max.into(),
            enforced: self.enforced,
            taken: self
                .taken
                .into_iter()
                .map(|taken| Ok((time(taken.bucket)?, taken.units)))
                .collect::<Result<_, String>>()?,
        })
    }
}

impl HistoryDoc {
    fn new(entry: &HistoryEntry) -> Option<Self> {
        let event = match entry.event {
            HistoryEvent::Reserved => EventWord::Reserved,
            HistoryEvent::Committed => EventWord::Committed,
            HistoryEvent::Released => EventWord::Released,
            HistoryEvent::Extended => EventWord::Extended,
            HistoryEvent::Refunded => EventWord::Refunded,
            HistoryEvent::Adjusted => EventWord::Adjusted,
            HistoryEvent::Expired => return None,
        };
        Some(Self {
            time: date(entry.time),
            event,
            amounts: entry.amounts.clone(),
            principal: entry.principal.clone(),
            reason: entry.reason.clone(),
            refund_id: entry.refund_id.clone(),
            // Positions of at most 256 charges.
            unfreed: entry
                .unfreed
                .iter()
                .filter_map(|&(n, units)| {
                    Some(UnfreedDoc { charge: i64::try_from(n).ok()?, units })
                })
                .collect(),
            times: entry.times,
        })
    }

    fn entry(self) -> Result<HistoryEntry, String> {
        Ok(HistoryEntry {
            time: time(self.time)?,
            event: match self.event {
                EventWord::Reserved => HistoryEvent::Reserved,
                EventWord::Committed => HistoryEvent::Committed,
                EventWord::Released => HistoryEvent::Released,
                EventWord::Extended => HistoryEvent::Extended,
                EventWord::Refunded => HistoryEvent::Refunded,
                EventWord::Adjusted => HistoryEvent::Adjusted,
            },
            amounts: self.amounts,
            principal: self.principal,
            reason: self.reason,
            refund_id: self.refund_id,
            unfreed: self
                .unfreed
                .into_iter()
                .filter_map(|doc| Some((usize::try_from(doc.charge).ok()?, doc.units)))
                .collect(),
            times: self.times,
        })
    }
}
