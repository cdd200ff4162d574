//! Events and refusals as they are asked for: newest first.

use crate::domain::event::{Event, RefusalRecord};
use crate::domain::time::Time;

/// How many refusals a store keeps that has no better measure.
pub(super) const REFUSALS_KEPT: usize = 10_000;

/// Which events or refusals are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailFilter {
    /// Of this namespace.
    pub namespace: String,
    /// Of this subject, as `kind/id`: events that concern it, refusals that name
    /// it in an item. `None` for any.
    pub subject: Option<String>,
    /// Of this reservation; `None` for any and for none.
    pub reservation_id: Option<String>,
    /// At this instant or later.
    pub from: Option<Time>,
    /// Before this instant.
    pub until: Option<Time>,
}

/// Where an event or a refusal lies in its listing: the later one is first, and
/// of the same millisecond the one with the greater id. An empty id comes
/// before all others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrailPlace {
    /// When it happened.
    pub time: Time,
    /// The store's own name for it.
    pub id: String,
}

/// An event or a refusal as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<T> {
    /// The store's own name for it.
    pub id: String,
    /// The event or the refusal.
    pub value: T,
}

impl TrailFilter {
    /// Whether this event is asked for.
    pub(super) fn wants_event(&self, event: &Event) -> bool {
        self.lies(&event.namespace, event.time, &event.reservation_id)
            && self.subject.as_ref().is_none_or(|subject| *subject == event.subject)
    }

    /// Whether this refusal is asked for.
    pub(super) fn wants_refusal(&self, refused: &RefusalRecord) -> bool {
        self.lies(&refused.namespace, refused.time, &refused.reservation_id)
            && self.subject.as_ref().is_none_or(|subject| refused.names(subject))
    }

    fn lies(&self, namespace: &str, time: Time, reservation_id: &str) -> bool {
        namespace == self.namespace
            && self.from.is_none_or(|from| time >= from)
            && self.until.is_none_or(|until| time < until)
            && self.reservation_id.as_ref().is_none_or(|id| id == reservation_id)
    }
}

/// The number of a record as an id: in the order of the numbers.
pub(super) fn numbered(number: u64) -> String {
    format!("{number:020}")
}

/// The next ones of what a store has in memory: newest first, before that place.
pub(super) fn newest<'t, T: Clone + 't>(
    all: impl Iterator<Item = (u64, &'t T)>,
    time: impl Fn(&T) -> Time,
    before: Option<&TrailPlace>,
    limit: usize,
) -> Vec<Kept<T>> {
    let placed = all.map(|(number, value)| {
        let place = TrailPlace { time: time(value), id: numbered(number) };
        (place, value)
    });
    let mut found: Vec<_> =
        placed.filter(|(place, _)| before.is_none_or(|before| place < before)).collect();
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    found.truncate(limit);
    found.into_iter().map(|(place, value)| Kept { id: place.id, value: value.clone() }).collect()
}
