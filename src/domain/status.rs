//! Where one counter stands under its limit: what every answer reports.

use std::sync::Arc;

use super::counter::{Counter, CounterId};
use super::policy::Bound;
use super::time::Time;

/// Where one counter of one limit stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Which counter.
    pub counter: Arc<CounterId>,
    /// From when to when it counts; `None` for ever.
    pub window: Option<(Time, Time)>,
    /// What the limit allows.
    pub bound: Bound,
    /// Units committed and not refunded.
    pub used: i64,
    /// Units of live holds.
    pub held: i64,
    /// Units that were asked for; 0 where none were.
    pub requested: i64,
    /// Whether those do not fit.
    pub exceeded: bool,
    /// Whether the limit refuses, or only counts.
    pub enforced: bool,
    /// The earliest instant at which an exceeded request could pass; `None`
    /// when waiting alone never helps.
    pub retry_time: Option<Time>,
    /// How many Reserves wait for it on this server. No rule knows: the engine
    /// fills it in.
    pub waiting: usize,
}

impl LimitStatus {
    /// The status of `counter` at `now`, with nothing asked of it.
    pub fn at_rest(counter: &Counter, bound: Bound, enforced: bool, now: Time) -> Self {
        Self {
            counter: Arc::clone(&counter.id),
            window: counter.id.window.span(now),
            bound,
            used: counter.used(now),
            held: counter.held(now),
            requested: 0,
            exceeded: false,
            enforced,
            retry_time: None,
            waiting: 0,
        }
    }

    /// The same under the counter's present name: the bounds of a billing period
    /// may have been corrected since something was last charged to it.
    pub fn named(self, id: &Arc<CounterId>, now: Time) -> Self {
        Self { counter: Arc::clone(id), window: id.window.span(now), ..self }
    }

    /// Whether more is used and held than the limit allows.
    pub fn is_over(&self) -> bool {
        self.used.saturating_add(self.held) > self.bound.ceiling()
    }

    /// Whether what was asked for can never fit: it is more than the limit
    /// allows, and nothing is known that will raise that.
    pub fn never_fits(&self) -> bool {
        let short = self.enforced && self.exceeded && self.requested > self.bound.ceiling();
        short && self.retry_time.is_none()
    }

    /// How full it is: used and held by what is allowed. 1 where nothing is
    /// allowed, 0 where everything is.
    #[allow(clippy::cast_precision_loss, reason = "a share, which nothing is counted by")]
    pub fn utilization(&self) -> f64 {
        match self.bound {
            Bound::Unlimited => 0.0,
            Bound::AtMost(max) if max <= 0 => 1.0,
            Bound::AtMost(max) => self.used.saturating_add(self.held) as f64 / max as f64,
        }
    }

    /// About how many bytes it has.
    pub fn weight(&self) -> usize {
        let CounterId { limit, metric, key, .. } = &*self.counter;
        128 + limit.len() + metric.len() + super::event::map_weight(key)
    }

    /// max(0, max − used − held); `None` when unlimited.
    pub fn available(&self) -> Option<i64> {
        match self.bound {
            Bound::Unlimited => None,
            Bound::AtMost(max) => {
                Some(max.saturating_sub(self.used).saturating_sub(self.held).max(0))
            }
        }
    }
}

/// Sorts failing limits, most binding first: those that can never pass, then
/// those that can pass latest.
pub fn most_binding_first(limits: &mut [LimitStatus]) {
    limits.sort_by_key(|limit| std::cmp::Reverse(limit.retry_time.unwrap_or(Time::MAX)));
}
