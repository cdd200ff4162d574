//! A counter: what is used and held of one limit, for one key, in one window.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::name::{Dimensions, join_key};
use super::policy::Bound;
use super::time::{Span, Time};
use super::window::Window;

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
    pub used: i64,
    /// Units held, by the instant at which they lapse. Lapsed groups count for
    /// nothing and are dropped by the next change. The grid that
    /// [`expire_time`] rounds to keeps this map small.
    pub holds: BTreeMap<Time, i64>,
    /// The latest instant at which something was decided here: time never runs
    /// back for a counter, whatever the clock does.
    pub as_of: Time,
    /// The fencing token of the last admission.
    pub token: i64,
}

impl Counter {
    /// A counter that nothing was charged to yet.
    pub fn new(id: Arc<CounterId>) -> Self {
        Self { id, used: 0, holds: BTreeMap::new(), as_of: Time::MIN, token: 0 }
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

    /// Whether `amount` more units fit under `bound` at `now`. Sums beyond an
    /// int64 never fit, not even where the bound is unlimited.
    pub fn fits(&self, bound: Bound, amount: i64, now: Time) -> bool {
        let total = self.used.checked_add(self.held(now)).and_then(|sum| sum.checked_add(amount));
        total.is_some_and(|total| total <= bound.ceiling())
    }

    /// Whether `amount` more units could not even be counted.
    pub fn overflows(&self, amount: i64, now: Time) -> bool {
        !self.fits(Bound::Unlimited, amount, now)
    }

    /// The earliest instant after `now` at which `amount` units would fit, if
    /// nothing else happened: when enough holds have lapsed, or when the
    /// window ends. `None` when waiting alone never helps.
    pub fn retry_time(&self, bound: Bound, amount: i64, now: Time) -> Option<Time> {
        let ceiling = bound.ceiling();
        if amount > ceiling {
            return None;
        }
        let end = self.id.window.end();
        let mut left = self.used.saturating_add(self.held(now));
        for (at, units) in self.live(now) {
            left = left.saturating_sub(units);
            if left <= ceiling - amount {
                return Some(end.map_or(at, |end| end.min(at)));
            }
        }
        end
    }

    /// Books an admission that holds `amount` units until `until`, or uses them
    /// at once when that is `None`. Returns its fencing token.
    ///
    /// Call only where [`Counter::fits`] said yes.
    pub fn charge(&mut self, amount: i64, until: Option<Time>, now: Time) -> i64 {
        self.advance(now);
        match until {
            None => self.used = self.used.saturating_add(amount),
            Some(at) => {
                let group = self.holds.entry(at).or_default();
                *group = group.saturating_add(amount);
            }
        }
        self.token = (self.token + 1).max(now.as_millis().saturating_mul(1000));
        self.token
    }

    /// Settles a live hold of `held` units lapsing at `until`: `used` of them
    /// become use, the rest is free.
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
        self.used = self.used.saturating_add(used);
    }

    /// When retention may remove this counter: one of a closed window after
    /// twice the time that reservations are kept, one for ever when it has
    /// been idle as long as that. `None` while something is used of it.
    ///
    /// Idle time counts from the end of a day, so that the stored instant,
    /// which is indexed, changes at most once a day on a busy counter.
    pub fn purge_at(&self, retention: Span) -> Option<Time> {
        match self.id.window {
            Window::Period { end, .. } => Some(end.plus(retention).plus(retention)),
            Window::Lifetime if self.used > 0 => None,
            Window::Lifetime => {
                let last = self.holds.keys().next_back().copied().unwrap_or(self.as_of);
                Some(last.max(self.as_of).round_up(Span::from_days(1)).plus(retention))
            }
        }
    }

    fn advance(&mut self, now: Time) {
        self.as_of = self.as_of.max(now);
        let lapsed_until = self.as_of;
        if self.holds.first_key_value().is_some_and(|(&at, _)| at <= lapsed_until) {
            self.holds.retain(|&at, _| at > lapsed_until);
        }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Time {
        Time::from_millis(millis).unwrap()
    }

    fn counter(window: Window) -> Counter {
        Counter::new(Arc::new(CounterId::new("n", "l", "m", 1, Dimensions::new(), window)))
    }

    proptest! {
        #[test]
        fn expiry_is_on_the_grid_and_at_most_a_32nd_late(now in 0i64..4_000_000_000_000, ttl in 1000i64..=86_400_000) {
            let span = Span::from_millis(ttl);
            let late = expire_time(at(now), span).as_millis() - now - ttl;
            prop_assert!(late >= 0);
            prop_assert!(late < (ttl / 32).max(16));
        }
    }

    #[test]
    fn grid_is_the_largest_power_of_two_not_above_a_32nd() {
        let grid_of = |ttl: Span| {
            let expiry = expire_time(at(1), ttl).as_millis();
            1i64 << expiry.trailing_zeros()
        };
        assert!(grid_of(Span::from_secs(1)) >= 16);
        assert!(grid_of(Span::from_secs(60)) >= 1024);
        assert!(grid_of(Span::from_secs(86_400)) >= 2_097_152);
    }

    #[test]
    fn a_hold_lapses_at_its_instant_in_decisions_and_reads_alike() {
        let mut counter = counter(Window::Lifetime);
        counter.charge(4, Some(at(100)), at(0));
        assert_eq!(counter.held(at(99)), 4);
        assert_eq!(counter.held(at(100)), 0);
        assert!(!counter.fits(Bound::AtMost(4), 1, at(99)));
        assert!(counter.fits(Bound::AtMost(4), 4, at(100)));
    }

    #[test]
    fn time_never_runs_back() {
        let mut counter = counter(Window::Lifetime);
        counter.charge(1, Some(at(500)), at(400));
        counter.charge(1, Some(at(900)), at(100));
        assert_eq!(counter.as_of, at(400));
    }

    #[test]
    fn tokens_grow_even_when_the_clock_stands_still() {
        let mut counter = counter(Window::Lifetime);
        let first = counter.charge(1, None, at(5));
        let second = counter.charge(1, None, at(5));
        assert_eq!((first, second), (5000, 5001));
    }

    #[test]
    fn sums_beyond_int64_never_fit() {
        let mut counter = counter(Window::Lifetime);
        assert!(counter.fits(Bound::AtMost(i64::MAX), i64::MAX, at(0)));
        counter.charge(i64::MAX, Some(at(10)), at(0));
        assert!(!counter.fits(Bound::AtMost(i64::MAX), i64::MAX, at(1)));
        assert!(!counter.fits(Bound::Unlimited, 1, at(1)));
    }

    #[test]
    fn retry_time_is_when_enough_holds_have_lapsed_or_the_window_ends() {
        let mut open = counter(Window::Lifetime);
        open.charge(2, Some(at(100)), at(0));
        open.charge(3, Some(at(200)), at(0));
        assert_eq!(open.retry_time(Bound::AtMost(5), 2, at(1)), Some(at(100)));
        assert_eq!(open.retry_time(Bound::AtMost(5), 3, at(1)), Some(at(200)));
        assert_eq!(open.retry_time(Bound::AtMost(5), 6, at(1)), None);
        open.charge(1, None, at(1));
        assert_eq!(open.retry_time(Bound::AtMost(5), 5, at(1)), None);

        let mut day = counter(Window::Period { start: at(0), end: at(150) });
        day.charge(5, Some(at(200)), at(0));
        assert_eq!(day.retry_time(Bound::AtMost(5), 1, at(1)), Some(at(150)));
    }
}
