//! A counter: what is used and held of one limit, for one key, in one window.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::name::{Dimensions, join_key};
use super::policy::Bound;
use super::time::{Span, Time};
use super::window::Window;

/// By how much the end of a billing period may be put off and what was used of
/// it be sure to count: a year's subscription, and some days to tell of it.
const PUT_OFF: Span = Span::from_days(400);

/// Which counter: limit and its generation, key, window.
///
/// Compared and hashed by `text` alone, which is made from all the parts that
/// distinguish counters.
#[derive(Clone, Debug)]
pub struct CounterId {
    /// The parts as one string: namespace, limit, generation, the values of
    /// the key in the order of its dimensions, and the window.
    pub text: String,
    /// The namespace.
    pub namespace: String,
    /// The limit's name.
    pub limit: String,
    /// The limit's metric.
    pub metric: String,
    /// Which definition of the limit; rises when it starts fresh counters.
    pub generation: i64,
    /// The values of the limit's `per` dimensions.
    pub key: Dimensions,
    /// The window that is counted.
    pub window: Window,
}

impl CounterId {
    /// The counter of `limit` in `generation` for `key` in `window`.
    pub fn new(
        namespace: &str,
        limit: &str,
        metric: &str,
        generation: i64,
        key: Dimensions,
        window: Window,
    ) -> Self {
        let (count, span) = (generation.to_string(), window.id());
        let mut parts = vec![namespace, limit, &count];
        parts.extend(key.values().map(String::as_str));
        parts.push(&span);
        Self {
            text: join_key(parts),
            namespace: namespace.to_owned(),
            limit: limit.to_owned(),
            metric: metric.to_owned(),
            generation,
            key,
            window,
        }
    }

    /// The counters of the same limit, generation and key in all windows: the
    /// text without its window.
    pub fn series(&self) -> &str {
        series_of(&self.text)
    }
}

/// The series of the counter with this text.
pub fn series_of(text: &str) -> &str {
    // No part has a slash of its own, and the window is the last.
    text.rsplit_once('/').map_or(text, |(series, _)| series)
}

/// The series of a limit's counters for a key of these values, in the order of
/// the names of its dimensions.
pub fn series(namespace: &str, limit: &str, generation: i64, values: &[&str]) -> String {
    let generation = generation.to_string();
    let mut parts = vec![namespace, limit, &generation];
    parts.extend(values);
    join_key(parts)
}

impl PartialEq for CounterId {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for CounterId {}

impl Hash for CounterId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// What is used and held. Units: whatever the metric counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Which counter this is.
    pub id: Arc<CounterId>,
    /// Units committed and not refunded.
    pub used: Used,
    /// Units held, by the instant at which they lapse. Lapsed groups count for
    /// nothing and are dropped by the next change. The grid that
    /// [`expire_time`] rounds to keeps this map small.
    pub holds: BTreeMap<Time, i64>,
    /// The latest instant at which something was decided here: time never runs
    /// back for a counter, whatever the clock does.
    pub as_of: Time,
    /// The fencing token of the last admission.
    pub token: i64,
    /// The earliest end that its billing period had, where that was put off
    /// since: what was admitted before may be removed by retention after that.
    pub first_end: Option<Time>,
}

/// Units committed and not refunded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Used {
    /// In a window that stands still: all of them together.
    Total(i64),
    /// In one that moves on: by the start of the bucket that they were counted
    /// in. Buckets that have left the window count for nothing and are dropped
    /// by the next change, so there are never many more than the window has.
    Recent(BTreeMap<Time, Bucket>),
}

/// Units that return together, when the last of them leaves the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// How many.
    pub units: i64,
    /// When the last of them were counted.
    pub last: Time,
}

impl Counter {
    /// A counter that nothing was charged to yet.
    pub fn new(id: Arc<CounterId>) -> Self {
        let used = match id.window {
            Window::Rolling(_) => Used::Recent(BTreeMap::new()),
            _ => Used::Total(0),
        };
        Self { id, used, holds: BTreeMap::new(), as_of: Time::MIN, token: 0, first_end: None }
    }

    /// Units that are used at `now`.
    pub fn used(&self, now: Time) -> i64 {
        match &self.used {
            Used::Total(units) => *units,
            Used::Recent(_) => self
                .recent()
                .filter(|(leaves, _)| *leaves > now)
                .fold(0, |sum, (_, units)| sum.saturating_add(units)),
        }
    }

    /// Units of holds that are live at `now`.
    pub fn held(&self, now: Time) -> i64 {
        self.live(now).fold(0, |sum, (_, units)| sum.saturating_add(units))
    }

    /// Live holds by the instant at which they lapse, soonest first. A hold
    /// lapses *at* its instant, not after it.
    pub fn live(&self, now: Time) -> impl DoubleEndedIterator<Item = (Time, i64)> + '_ {
        self.holds
            .range((std::ops::Bound::Excluded(now), std::ops::Bound::Unbounded))
            .map(|(&at, &units)| (at, units))
    }

    /// The first instant after `now` at which units return by themselves: a hold
    /// lapses, or what is used leaves a window that moves on.
    pub fn next_return(&self, now: Time) -> Option<Time> {
        let left = self.recent().map(|(at, _)| at).filter(|at| *at > now).min();
        left.into_iter().chain(self.live(now).next().map(|(at, _)| at)).min()
    }

    /// Whether `amount` more units fit under `bound` at `now`. Sums beyond an
    /// int64 never fit, not even where the bound is unlimited.
    pub fn fits(&self, bound: Bound, amount: i64, now: Time) -> bool {
        let taken = self.used(now).checked_add(self.held(now));
        let total = taken.and_then(|sum| sum.checked_add(amount));
        total.is_some_and(|total| total <= bound.ceiling())
    }

    /// Whether `amount` more units could not even be counted.
    pub fn overflows(&self, amount: i64, now: Time) -> bool {
        !self.fits(Bound::Unlimited, amount, now)
    }

    /// The earliest instant, `from` or later, at which `amount` units fit
    /// under `bound` if nothing else happens: when enough holds have lapsed
    /// and enough of what is used has left a window that moves on. `None` when
    /// waiting alone never helps. Whether the window ends before is not looked
    /// at here.
    pub fn first_fit(&self, bound: Bound, amount: i64, from: Time) -> Option<Time> {
        let room = bound.ceiling().checked_sub(amount).filter(|room| *room >= 0)?;
        let mut left = self.used(from).saturating_add(self.held(from));
        if left <= room {
            return Some(from);
        }
        let mut returning: Vec<(Time, i64)> = self.recent().chain(self.live(from)).collect();
        returning.sort_unstable();
        for (at, units) in returning.into_iter().filter(|(at, _)| *at > from) {
            left = left.saturating_sub(units);
            if left <= room {
                return Some(at);
            }
        }
        None
    }

    /// Books an admission that holds `amount` units until `until`, or uses them
    /// at once when that is `None`, under the counter's present name. Returns
    /// its fencing token.
    ///
    /// Call only where [`Counter::fits`] said yes.
    pub fn charge(
        &mut self,
        id: &Arc<CounterId>,
        amount: i64,
        until: Option<Time>,
        now: Time,
    ) -> i64 {
        self.advance(now);
        // The bounds of a billing period may have been corrected since.
        if self.id.window != id.window {
            let ends = [self.first_end, self.id.window.end()];
            let earliest = ends.into_iter().flatten().min();
            self.first_end = earliest.filter(|first| Some(*first) < id.window.end());
            self.id = Arc::clone(id);
        }
        match until {
            None => self.count(amount),
            Some(at) => {
                let group = self.holds.entry(at).or_default();
                *group = group.saturating_add(amount);
            }
        }
        self.token = (self.token + 1).max(now.as_millis().saturating_mul(1000));
        self.token
    }

    /// Settles a live hold of `held` units lapsing at `until`: `used` of them
    /// become use as of now, the rest is free.
    pub fn settle(&mut self, held: i64, until: Time, used: i64, now: Time) {
        self.advance(now);
        if let Some(group) = self.holds.get_mut(&until) {
            // A group can only be too small where the stored document was
            // changed by hand; audit reports that, and no counter goes negative.
            *group = group.saturating_sub(held).max(0);
            if *group == 0 {
                self.holds.remove(&until);
            }
        }
        self.count(used);
    }

    /// Puts off when a live hold of `held` units lapses, from `from` to `to`.
    pub fn extend(&mut self, held: i64, from: Time, to: Time, now: Time) {
        self.settle(held, from, 0, now);
        let group = self.holds.entry(to).or_default();
        *group = group.saturating_add(held);
    }

    /// Gives back units that were counted as used at `at`. What has left a window
    /// that moves on frees nothing. Never goes below 0: returns how many of the
    /// units an operator had taken away before, so that they free nothing either.
    pub fn refund(&mut self, units: i64, at: Time, now: Time) -> i64 {
        self.advance(now);
        match (&mut self.used, &self.id.window) {
            (Used::Total(total), _) => {
                let freed = units.min(*total);
                *total -= freed;
                units - freed
            }
            (Used::Recent(buckets), Window::Rolling(rolling)) => {
                let start = rolling.bucket_of(at);
                let Some(bucket) = buckets.get_mut(&start) else {
                    let may_count = start.plus(rolling.bucket).plus(rolling.length) > self.as_of;
                    return if may_count { units } else { 0 };
                };
                let freed = units.min(bucket.units);
                bucket.units -= freed;
                if bucket.units == 0 {
                    buckets.remove(&start);
                }
                units - freed
            }
            (Used::Recent(_), _) => 0,
        }
    }

    /// Counts `delta` units by hand: more where it is above 0, fewer where it is
    /// below. A window that moves on gives back what would leave it first;
    /// returns from which buckets, by their starts.
    ///
    /// Call only where neither the sum overflows nor fewer than no units are
    /// left.
    pub fn adjust(&mut self, delta: i64, now: Time) -> Vec<(Time, i64)> {
        self.advance(now);
        if delta > 0 || matches!(self.used, Used::Total(_)) {
            self.count(delta);
            return Vec::new();
        }
        let Used::Recent(buckets) = &mut self.used else { return Vec::new() };
        let (mut left, mut taken) = (delta.saturating_neg(), Vec::new());
        for (start, bucket) in buckets.iter_mut() {
            let units = bucket.units.min(left);
            bucket.units -= units;
            left -= units;
            if units > 0 {
                taken.push((*start, units));
            }
        }
        buckets.retain(|_, bucket| bucket.units > 0);
        taken
    }

    /// When retention may remove this counter: one of a closed window after
    /// twice the time that reservations are kept, one for ever when it has
    /// been idle as long as that. `None` while something is used of it for
    /// ever. One of a billing period is kept for longer than a year, since the
    /// period's end may yet be put off, which no counter hears of: used up, it
    /// would be gone in the middle of it, and the quota be fresh.
    ///
    /// Idle time counts from the end of a day, so that the stored instant,
    /// which is indexed, changes at most once a day on a busy counter.
    pub fn purge_at(&self, retention: Span) -> Option<Time> {
        let last = self.holds.keys().next_back().copied().unwrap_or(self.as_of);
        let idle = last.max(self.as_of);
        let by_day = |time: Time| time.round_up(Span::from_days(1));
        // A hold that is put off again and again outlives any window.
        let closed = |end: Time| if idle > end { by_day(idle) } else { end };
        match &self.id.window {
            Window::Period { end, .. } => Some(closed(*end).plus(retention).plus(retention)),
            Window::Billing { end, .. } => {
                Some(closed(*end).plus(retention).plus(retention.max(PUT_OFF)))
            }
            Window::Lifetime if self.used(self.as_of) > 0 => None,
            Window::Lifetime => Some(by_day(idle).plus(retention)),
            window @ Window::Rolling(_) => {
                let left = window.counts_until(idle).unwrap_or(idle);
                Some(by_day(left).plus(retention).plus(retention))
            }
        }
    }

    /// Whether it counts fewer than no units anywhere.
    pub fn has_negative(&self) -> bool {
        let used = match &self.used {
            Used::Total(units) => *units < 0,
            Used::Recent(buckets) => buckets.values().any(|bucket| bucket.units < 0),
        };
        used || self.holds.values().any(|units| *units < 0)
    }

    fn advance(&mut self, now: Time) {
        self.as_of = self.as_of.max(now);
        let now = self.as_of;
        if self.holds.first_key_value().is_some_and(|(&at, _)| at <= now) {
            self.holds.retain(|&at, _| at > now);
        }
        if let (Used::Recent(buckets), Window::Rolling(rolling)) = (&mut self.used, &self.id.window)
        {
            buckets.retain(|_, bucket| bucket.last.plus(rolling.length) > now);
        }
    }

    /// Counts units as used, as of [`Counter::as_of`].
    fn count(&mut self, units: i64) {
        match (&mut self.used, &self.id.window) {
            (Used::Total(total), _) => *total = total.saturating_add(units),
            (Used::Recent(buckets), Window::Rolling(rolling)) if units > 0 => {
                let bucket = buckets.entry(rolling.bucket_of(self.as_of)).or_default();
                bucket.units = bucket.units.saturating_add(units);
                bucket.last = self.as_of;
            }
            (Used::Recent(_), _) => {}
        }
    }

    /// What is used of a window that moves on, by the instant at which it
    /// leaves it.
    fn recent(&self) -> impl Iterator<Item = (Time, i64)> + '_ {
        let (buckets, length) = match (&self.used, &self.id.window) {
            (Used::Recent(buckets), Window::Rolling(rolling)) => (Some(buckets), rolling.length),
            _ => (None, Span::ZERO),
        };
        let leaves = move |bucket: &Bucket| (bucket.last.plus(length), bucket.units);
        buckets.into_iter().flat_map(|buckets| buckets.values()).map(leaves)
    }
}

/// When a hold made at `now` with this `ttl` lapses: rounded up to a grid of
/// 2^k ms aligned to the epoch, the largest not above ttl/32 and at least
/// 16 ms. So a counter has at most some 64 groups for each doubling of the
/// ttl, and a hold lasts at most 1/32 longer than asked (16 ms when short).
pub fn expire_time(now: Time, ttl: Span) -> Time {
    let most = (ttl.as_millis() / 32).max(16);
    let step = 1 << (i64::BITS - 1 - most.leading_zeros());
    now.plus(ttl).round_up(Span::from_millis(step))
}

#[cfg(test)]
mod tests;
