//! The room where Reserves wait, owned by the batch loop.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Lines, Place};
use crate::domain::counter::CounterId;
use crate::domain::decide::Command;
use crate::domain::name::ReservationKey;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Request;
use crate::domain::status::LimitStatus;
use crate::domain::time::{Span, Time};
use crate::engine::Error;
use crate::engine::pulse::Heard;
use crate::engine::queue::Pending;

/// How many of those who wait for a counter are decided when it changes. What
/// is left for more of them is found when these have gone.
const WOKEN: usize = 64;
/// How often the heads of the queues are looked at again, should nobody have
/// told of a change.
const POLL: Duration = Duration::from_millis(500);
/// The same where time is moved by hand, which nobody tells of.
const POLL_MOVED: Duration = Duration::from_millis(50);
/// After a conflict, or where the store did not answer.
const SOON: Duration = Duration::from_millis(25);
/// How many heads are looked at in one go; the others next time.
const HEADS: usize = 256;

/// Those who wait, by the order of their arrival.
pub struct Room {
    lines: Arc<Lines>,
    waiters: BTreeMap<u64, Pending>,
    by_counter: HashMap<String, Queue>,
    by_key: HashMap<ReservationKey, BTreeSet<u64>>,
    ends: BTreeSet<(Instant, u64)>,
    ends_by_clock: BTreeSet<(Time, u64)>,
    /// When they could pass, each by what was known when it was last decided.
    retries: BTreeSet<(Time, u64)>,
    /// Counters of which something has changed.
    woken: VecDeque<String>,
    /// Those of them that only the head is to look at.
    heads: VecDeque<String>,
    keys: HashSet<ReservationKey>,
    next_poll: Instant,
    /// A test clock moves without telling.
    moved_by_hand: bool,
    last_clock: Option<Time>,
    last_look: Instant,
}

/// Those who wait for one counter.
struct Queue {
    namespace: String,
    numbers: BTreeSet<u64>,
}

impl Room {
    pub fn new(lines: Arc<Lines>, moved_by_hand: bool) -> Self {
        Self {
            lines,
            waiters: BTreeMap::new(),
            by_counter: HashMap::new(),
            by_key: HashMap::new(),
            ends: BTreeSet::new(),
            ends_by_clock: BTreeSet::new(),
            retries: BTreeSet::new(),
            woken: VecDeque::new(),
            heads: VecDeque::new(),
            keys: HashSet::new(),
            next_poll: Instant::now(),
            moved_by_hand,
            last_clock: None,
            last_look: Instant::now(),
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Takes in one that was refused for want of quota, at its place in line
    /// or, where it has none yet, at the end. Gives it back where too many wait.
    pub fn take_in(&mut self, mut pending: Pending, refusal: &Refusal) -> Option<Pending> {
        let Refusal::QuotaExceeded { limits, retry_time, now } = refusal else {
            return Some(pending);
        };
        let Some(wait) = &mut pending.wait else { return Some(pending) };
        let counter = |limit: &LimitStatus| Arc::clone(&limit.counter);
        let counters: Vec<_> = limits.iter().map(counter).collect();
        let first = match &mut wait.place {
            Some(place) => place.move_to(counters),
            none => match self.lines.enter(&pending.namespace, counters) {
                Ok((place, first)) => {
                    *none = Some(place);
                    first
                }
                Err(_) => return Some(pending),
            },
        };
        wait.could_pass = retry_time.filter(|at| at > now);
        let number = wait.number();
        if first {
            // What changed before anybody listened was not heard.
            let names = limits.iter().map(|limit| limit.counter.text.clone());
            self.heads.extend(names);
        }
        self.put(number, pending);
        None
    }

    /// Puts one back that could not be decided; the heads are tried again soon.
    /// Gives back one that never stood here.
    pub fn put_back(&mut self, pending: Pending) -> Option<Pending> {
        match &pending.wait {
            Some(wait) if wait.has_a_place() && pending.gone() => None,
            Some(wait) if wait.has_a_place() => {
                let number = wait.number();
                self.put(number, pending);
                self.next_poll = self.next_poll.min(Instant::now() + SOON);
                None
            }
            _ => Some(pending),
        }
    }

    fn put(&mut self, number: u64, pending: Pending) {
        if self.is_empty() {
            self.next_poll = Instant::now() + self.poll();
        }
        if let Some(wait) = &pending.wait {
            self.ends.insert((wait.until, number));
            if let Some(at) = wait.by_clock {
                self.ends_by_clock.insert((at, number));
            }
            if let Some(at) = wait.could_pass {
                self.retries.insert((at, number));
            }
            for counter in wait.place.iter().flat_map(Place::counters) {
                let namespace =
                    || Queue { namespace: pending.namespace.clone(), numbers: BTreeSet::new() };
                let queue = self.by_counter.entry(counter.text.clone()).or_insert_with(namespace);
                queue.numbers.insert(number);
            }
        }
        if let Some(key) = pending.reserves() {
            self.by_key.entry(key.clone()).or_default().insert(number);
        }
        self.waiters.insert(number, pending);
    }

    fn take(&mut self, number: u64) -> Option<Pending> {
        let pending = self.waiters.remove(&number)?;
        if let Some(wait) = &pending.wait {
            self.ends.remove(&(wait.until, number));
            if let Some(at) = wait.by_clock {
                self.ends_by_clock.remove(&(at, number));
            }
            if let Some(at) = wait.could_pass {
                self.retries.remove(&(at, number));
            }
            for counter in wait.place.iter().flat_map(Place::counters) {
                if let Some(queue) = self.by_counter.get_mut(&counter.text) {
                    queue.numbers.remove(&number);
                    if queue.numbers.is_empty() {
                        self.by_counter.remove(&counter.text);
                    }
                }
            }
        }
        if let Some(key) = pending.reserves()
            && let Some(same) = self.by_key.get_mut(key)
        {
            same.remove(&number);
            if same.is_empty() {
                self.by_key.remove(key);
            }
        }
        Some(pending)
    }

    /// A counter was written.
    pub fn counter_changed(&mut self, counter: &CounterId) {
        if self.by_counter.contains_key(&counter.text) {
            self.woken.push_back(counter.text.clone());
        }
    }

    /// A reservation was written: those who wait under the same id hear of it.
    pub fn reservation_changed(&mut self, key: &ReservationKey) {
        if self.by_key.contains_key(key) {
            self.keys.insert(key.clone());
        }
    }

    /// Those whose turn it is to be decided, in the order of their arrival, and
    /// at most so many of them.
    pub fn due(&mut self, clock: Time, most: usize) -> Vec<Pending> {
        self.listen();
        if self.is_empty() {
            self.woken.clear();
            self.heads.clear();
            self.keys.clear();
            return Vec::new();
        }
        let now = Instant::now();
        let mut due = self.out_of_time(now, clock, most);
        for key in std::mem::take(&mut self.keys) {
            due.extend(self.by_key.get(&key).into_iter().flatten());
        }
        self.could_pass(clock);
        if self.next_poll <= now {
            self.look_again(now, clock);
        }
        while due.len() < most
            && let Some(counter) = self.woken.pop_front()
        {
            if let Some(queue) = self.by_counter.get(&counter) {
                due.extend(queue.numbers.iter().take(WOKEN));
            }
        }
        while due.len() < most
            && let Some(counter) = self.heads.pop_front()
        {
            if let Some(queue) = self.by_counter.get(&counter) {
                due.extend(queue.numbers.first());
            }
        }
        due.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Takes up what was heard.
    fn listen(&mut self) {
        let Heard { counters, namespaces, anything, gone } = self.lines.ear().take();
        self.woken.extend(counters);
        if !namespaces.is_empty() {
            let of_these =
                self.by_counter.iter().filter(|(_, q)| namespaces.contains(&q.namespace));
            self.woken.extend(of_these.map(|(counter, _)| counter.clone()));
        }
        if gone {
            self.drop_those_who_have_gone();
        }
        if anything {
            self.heads.extend(self.by_counter.keys().cloned());
        }
        for list in [&mut self.woken, &mut self.heads] {
            let mut seen = HashSet::new();
            list.retain(|counter| seen.insert(counter.clone()));
        }
    }

    fn drop_those_who_have_gone(&mut self) {
        let gone = |(number, pending): (&u64, &Pending)| pending.gone().then_some(*number);
        let gone: Vec<u64> = self.waiters.iter().filter_map(gone).collect();
        for number in gone {
            drop(self.take(number));
        }
        // With the place in line of each those behind it were told.
        self.woken.extend(self.lines.ear().take().counters);
    }

    /// Those who have waited long enough: they get their last chance.
    fn out_of_time(&mut self, now: Instant, clock: Time, most: usize) -> BTreeSet<u64> {
        let over = self.ends.iter().take_while(|(until, _)| *until <= now);
        let mut numbers: BTreeSet<u64> = over.take(most).map(|(_, number)| *number).collect();
        let over = self.ends_by_clock.iter().take_while(|(until, _)| *until <= clock);
        numbers.extend(over.take(most).map(|(_, number)| *number));
        for number in &numbers {
            if let Some(wait) = self.waiters.get_mut(number).and_then(|p| p.wait.as_mut()) {
                wait.over = true;
            }
        }
        numbers
    }

    /// Wakes the counters of those for whom the instant has come.
    fn could_pass(&mut self, clock: Time) {
        while let Some(&(at, number)) = self.retries.first()
            && at <= clock
        {
            self.retries.pop_first();
            let place = self.waiters.get(&number).and_then(|p| p.wait.as_ref()?.place.as_ref());
            for counter in place.into_iter().flat_map(Place::counters) {
                self.woken.push_back(counter.text.clone());
            }
        }
    }

    /// Has the heads looked at, some of them at a time.
    fn look_again(&mut self, now: Instant, clock: Time) {
        self.next_poll = now + self.poll();
        if self.moved_by_hand {
            let moved = self.last_clock.replace(clock) != Some(clock);
            if !moved && now < self.last_look + POLL {
                return;
            }
        }
        self.last_look = now;
        let room = HEADS.saturating_sub(self.heads.len());
        let all = self.by_counter.len();
        let from = if all > room { fastrand::usize(0..all) } else { 0 };
        let round = self.by_counter.keys().cycle().skip(from);
        self.heads.extend(round.take(room.min(all)).cloned());
    }

    fn poll(&self) -> Duration {
        if self.moved_by_hand { POLL_MOVED } else { POLL }
    }

    /// When to look again at the latest; `None` where nobody waits.
    pub fn next_look(&self, clock: Time) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let now = Instant::now();
        if !self.woken.is_empty() || !self.heads.is_empty() || !self.keys.is_empty() {
            return Some(now);
        }
        let pass = self.retries.first().map(|(at, _)| now + duration(at.since(clock)));
        let end = self.ends.first().map(|(until, _)| *until);
        [pass, end, Some(self.next_poll)].into_iter().flatten().min()
    }

    /// The number of the one who has waited longest for this counter.
    pub fn head(&self, counter: &CounterId) -> Option<u64> {
        self.by_counter.get(&counter.text)?.numbers.first().copied()
    }

    /// What somebody asks for who waits under this id.
    pub fn asked_under(&self, key: &ReservationKey) -> Option<&Arc<Request>> {
        let number = self.by_key.get(key)?.first()?;
        match &self.waiters.get(number)?.command {
            Command::Reserve(reserve) => Some(&reserve.request),
            _ => None,
        }
    }

    /// Sends all away.
    pub fn dismiss(&mut self, error: &Error) {
        for (_, pending) in std::mem::take(&mut self.waiters) {
            pending.answer(Err(error.clone()));
        }
        self.by_counter.clear();
        self.by_key.clear();
        self.ends.clear();
        self.ends_by_clock.clear();
        self.retries.clear();
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_millis(span.as_millis().unsigned_abs())
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("waiters", &self.waiters.len()).finish_non_exhaustive()
    }
}
