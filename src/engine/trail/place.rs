//! Where entries of the trail lie, and the newest of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::domain::name::{ReservationKey, join_key, split_key};
use crate::domain::time::{Span, Time};
use crate::domain::trail::TrailEntry;
use crate::store::TrailPlace;

/// The most bytes of entries that are gathered for one page, about.
const MAX_BYTES: usize = 8 << 20;

/// Where a page of the trail begins: what the page before it ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailMark {
    pub(super) order: Order,
    pub(super) place: Place,
}

/// In which order the steps of reservations are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Each at its own time.
    Exact,
    /// Those of one reservation together, at the time of its creation.
    Grouped,
}

/// The place of an entry. The trail begins with the greatest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub time: Time,
    pub source: Source,
    /// The key of a reservation, or the id that the store gave.
    pub key: String,
    /// The position in a reservation's history.
    pub step: usize,
}

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Event,
    Reservation,
    Refusal,
}

impl TrailMark {
    /// The mark that [`TrailMark::to_text`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: [String; 5] = split_key(text).try_into().ok()?;
        let [order, time, source, step, key] = parts;
        let order = match order.as_str() {
            "exact" => Order::Exact,
            "grouped" => Order::Grouped,
            _ => return None,
        };
        let source = match source.as_str() {
            "event" => Source::Event,
            "reservation" => Source::Reservation,
            "refusal" => Source::Refusal,
            _ => return None,
        };
        let time = Time::from_millis(time.parse().ok()?)?;
        Some(Self { order, place: Place { time, source, key, step: step.parse().ok()? } })
    }

    /// The mark as text.
    pub fn to_text(&self) -> String {
        let Place { time, source, key, step } = &self.place;
        let order = match self.order {
            Order::Exact => "exact",
            Order::Grouped => "grouped",
        };
        let source = match source {
            Source::Event => "event",
            Source::Reservation => "reservation",
            Source::Refusal => "refusal",
        };
        join_key([order, &time.as_millis().to_string(), source, &step.to_string(), key])
    }
}

impl Place {
    /// The place of a step of a reservation.
    pub fn of_step(time: Time, key: &ReservationKey, step: usize) -> Self {
        Self { time, source: Source::Reservation, key: key.as_str().to_owned(), step }
    }

    /// The place of an event or a refusal.
    pub fn of_stored(source: Source, time: Time, id: &str) -> Self {
        Self { time, source, key: id.to_owned(), step: 0 }
    }

    /// Before which place a listing of `source` goes on after this one.
    pub fn within(&self, source: Source) -> TrailPlace {
        let (time, id) = match source.cmp(&self.source) {
            // All of this instant are still to come: an empty id is before all.
            Ordering::Less => (self.time.plus(Span::from_millis(1)), ""),
            Ordering::Equal => (self.time, self.key.as_str()),
            Ordering::Greater => (self.time, ""),
        };
        TrailPlace { time, id: id.to_owned() }
    }
}

/// The newest entries, as many as a page needs.
#[derive(Clone)]
pub(super) struct Newest {
    after: Option<Place>,
    limit: usize,
    entries: BTreeMap<Place, TrailEntry>,
    bytes: usize,
}

impl Newest {
    /// Nothing yet; `limit` entries that come after a place are wanted.
    pub fn new(after: Option<Place>, limit: usize) -> Self {
        Self { after, limit: limit.max(1), entries: BTreeMap::new(), bytes: 0 }
    }

    /// After which place entries are wanted.
    pub fn after(&self) -> Option<&Place> {
        self.after.as_ref()
    }

    /// Whether an entry of that place is not wanted.
    pub fn rejects(&self, place: &Place) -> bool {
        self.after.as_ref().is_some_and(|after| place >= after) || self.is_beyond(place)
    }

    /// Whether neither an entry of that place is wanted nor any after it.
    pub fn is_beyond(&self, place: &Place) -> bool {
        self.entries.len() >= self.limit
            && self.entries.first_key_value().is_some_and(|(last, _)| place < last)
    }

    /// Takes an entry in, if it is wanted.
    pub fn offer(&mut self, place: Place, entry: TrailEntry) {
        if self.rejects(&place) {
            return;
        }
        self.bytes += entry.weight();
        self.entries.insert(place, entry);
        while self.entries.len() > self.limit || (self.bytes > MAX_BYTES && self.entries.len() > 1)
        {
            let Some((_, dropped)) = self.entries.pop_first() else { return };
            self.bytes -= dropped.weight();
            // What was given up for want of space begins the next page.
            self.limit = self.limit.min(self.entries.len());
        }
    }

    /// The entries, in the order of the trail, and where the next page begins
    /// if there are fewer than `asked`. Everything was looked at down to `floor`;
    /// `None` where there is nothing beyond.
    pub fn into_page(
        mut self,
        floor: Option<Place>,
        asked: usize,
    ) -> (Vec<(Place, TrailEntry)>, Option<Place>) {
        if let Some(floor) = &floor {
            self.entries = self.entries.split_off(floor);
        }
        let full = self.entries.len() >= self.limit;
        let last = self.entries.first_key_value().map(|(place, _)| place.clone());
        let next = if full { last } else { floor };
        let entries: Vec<_> = self.entries.into_iter().rev().collect();
        let next = next.filter(|_| entries.len() < asked);
        (entries, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::{Event, EventKind};
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        let source =
            prop_oneof![Just(Source::Event), Just(Source::Reservation), Just(Source::Refusal)];
        (0..4i64, source, "[a-b/%]{0,2}", 0..3usize).prop_map(|(millis, source, key, step)| Place {
            time: Time::saturating(millis),
            source,
            key,
            step: if source == Source::Reservation { step } else { 0 },
        })
    }

    fn entry(bytes: usize) -> TrailEntry {
        let time = Time::default();
        let mut event = Event::new("n", EventKind::SubjectPut, "", time);
        event.reason = "x".repeat(bytes);
        event.into()
    }

    proptest! {
        #[test]
        fn marks_read_back(place in place(), grouped in any::<bool>()) {
            let order = if grouped { Order::Grouped } else { Order::Exact };
            let mark = TrailMark { order, place };
            prop_assert_eq!(TrailMark::parse(&mark.to_text()), Some(mark));
        }

        #[test]
        fn a_listing_of_a_source_goes_on_where_the_trail_does(one in place(), other in place()) {
            // What comes after a place is exactly what its source lists then.
            let listed = TrailPlace { time: other.time, id: other.key.clone() }
                < one.within(other.source);
            if one.source != other.source || one.key != other.key {
                prop_assert_eq!(listed, other < one);
            }
        }

        #[test]
        fn pages_have_all_in_order(
            places in proptest::collection::btree_set(place(), 0..20),
            limit in 1..5usize,
        ) {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let mut newest = Newest::new(after.clone(), limit);
                for place in &places {
                    newest.offer(place.clone(), entry(0));
                }
                let (page, _) = newest.into_page(None, limit);
                let Some((last, _)) = page.last() else { break };
                after = Some(last.clone());
                found.extend(page.into_iter().map(|(place, _)| place));
            }
            prop_assert_eq!(found, places.into_iter().rev().collect::<Vec<_>>());
        }
    }

    #[test]
    fn marks_of_somebody_else_are_none() {
        for text in ["", "exact", "exact/1/event/0", "exact/x/event/0/k", "other/1/event/0/k"] {
            assert_eq!(TrailMark::parse(text), None, "{text}");
        }
    }

    #[test]
    fn large_entries_make_pages_short_and_the_next_goes_on_behind_them() {
        let at = |millis| Place::of_stored(Source::Event, Time::saturating(millis), "");
        let mut newest = Newest::new(None, 10);
        for millis in [1, 5, 3, 4, 2] {
            newest.offer(at(millis), entry(MAX_BYTES / 3));
        }
        let (page, next) = newest.into_page(None, 10);
        let places: Vec<Place> = page.into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, [at(5), at(4)]);
        assert_eq!(next, Some(at(4)));
        let mut newest = Newest::new(None, 10);
        newest.offer(at(1), entry(2 * MAX_BYTES));
        let (page, next) = newest.into_page(None, 10);
        assert_eq!((page.len(), next), (1, None), "one at least");
    }

    #[test]
    fn nothing_is_shown_of_what_was_not_looked_at() {
        let at = |millis| Place::of_stored(Source::Event, Time::saturating(millis), "");
        let gathered = || {
            let mut newest = Newest::new(None, 3);
            for millis in [1, 4, 5] {
                newest.offer(at(millis), entry(0));
            }
            newest
        };
        let (page, next) = gathered().into_page(Some(at(4)), 3);
        assert_eq!((page.len(), next), (2, Some(at(4))));
        let (page, next) = gathered().into_page(Some(at(9)), 3);
        assert_eq!((page.len(), next), (0, Some(at(9))));
        let (page, next) = gathered().into_page(None, 3);
        assert_eq!((page.len(), next), (3, None), "a full page tells by itself");
    }
}
