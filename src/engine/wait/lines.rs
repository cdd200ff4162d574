//! Who stands in line for which counter, as the whole process sees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::counter::CounterId;
use crate::domain::decide::Line;
use crate::domain::status::LimitStatus;
use crate::engine::pulse::{Ear, Listener, Pulse};
use crate::engine::{Error, Settings};

/// How many wait for each counter. It listens to what happens to those.
#[derive(Debug)]
pub struct Lines {
    most: usize,
    most_per_namespace: usize,
    /// How many wait in all: most often nobody does.
    total: AtomicUsize,
    ear: Arc<Ear>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    listener: Listener,
    counters: HashMap<String, usize>,
    namespaces: HashMap<String, usize>,
    last: u64,
}

impl Lines {
    pub fn new(pulse: &Arc<Pulse>, settings: &Settings) -> Arc<Self> {
        let listener = pulse.listen();
        let ear = Arc::clone(listener.ear());
        let (counters, namespaces) = (HashMap::new(), HashMap::new());
        Arc::new(Self {
            most: settings.waiters,
            most_per_namespace: settings.waiters_per_namespace,
            total: AtomicUsize::new(0),
            ear,
            state: Mutex::new(State { listener, counters, namespaces, last: 0 }),
        })
    }

    /// What those who wait are told.
    pub fn ear(&self) -> &Arc<Ear> {
        &self.ear
    }

    /// Somebody new waits, behind all others; and whether he is the first to
    /// wait for one of these counters.
    pub fn enter(
        self: &Arc<Self>,
        namespace: &str,
        counters: Vec<Arc<CounterId>>,
    ) -> Result<(Place, bool), Error> {
        let mut state = self.state();
        let in_namespace = state.namespaces.get(namespace).copied().unwrap_or(0);
        let total = self.total.load(Ordering::Relaxed);
        if total >= self.most || in_namespace >= self.most_per_namespace {
            return Err(Error::Overloaded);
        }
        self.total.store(total + 1, Ordering::Relaxed);
        state.namespaces.insert(namespace.to_owned(), in_namespace + 1);
        if in_namespace == 0 {
            state.listener.want_namespace(namespace);
        }
        state.last += 1;
        let number = state.last;
        let first = state.join(&counters);
        let (lines, namespace) = (Arc::clone(self), namespace.to_owned());
        Ok((Place { lines, number, namespace, counters }, first))
    }

    /// Fills in how many wait.
    pub fn count<'l>(&self, limits: impl IntoIterator<Item = &'l mut LimitStatus>) {
        if self.total.load(Ordering::Relaxed) == 0 {
            return;
        }
        let state = self.state();
        for limit in limits {
            limit.waiting = state.counters.get(&limit.counter.text).copied().unwrap_or(0);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// To one who only looks, all who wait are before him.
impl Line for Lines {
    fn stands(&self, counter: &CounterId) -> bool {
        self.total.load(Ordering::Relaxed) > 0 && self.state().counters.contains_key(&counter.text)
    }
}

impl State {
    fn join(&mut self, counters: &[Arc<CounterId>]) -> bool {
        let mut first = false;
        for counter in counters {
            *self.counters.entry(counter.text.clone()).or_default() += 1;
            first |= self.listener.want_counter(&counter.text);
            self.listener.tell_others(&counter.text);
        }
        first
    }

    fn leave(&mut self, counters: &[Arc<CounterId>]) {
        for counter in counters {
            if let Some(count) = self.counters.get_mut(&counter.text) {
                *count -= 1;
                if *count == 0 {
                    self.counters.remove(&counter.text);
                    self.listener.forget_counter(&counter.text);
                }
                self.listener.tell_others(&counter.text);
            }
        }
    }
}

/// A place in line. However it is given up, those behind it are tried.
#[derive(Debug)]
pub struct Place {
    lines: Arc<Lines>,
    number: u64,
    namespace: String,
    /// What it waits for.
    counters: Vec<Arc<CounterId>>,
}

impl Place {
    /// Its number in the order of arrival.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn counters(&self) -> &[Arc<CounterId>] {
        &self.counters
    }

    /// It waits for these counters now; true when nobody waited for one of
    /// them before.
    pub fn move_to(&mut self, counters: Vec<Arc<CounterId>>) -> bool {
        if self.counters == counters {
            return false;
        }
        let left = std::mem::replace(&mut self.counters, counters);
        let mut state = self.lines.state();
        let first = state.join(&self.counters);
        state.leave(&left);
        drop(state);
        self.tell(&left);
        first
    }

    fn tell(&self, left: &[Arc<CounterId>]) {
        let names = left.iter().map(|counter| counter.text.clone());
        self.lines.ear.hear(|heard| heard.counters.extend(names));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.lines.state();
        self.lines.total.fetch_sub(1, Ordering::Relaxed);
        state.leave(&self.counters);
        if let Some(count) = state.namespaces.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                state.namespaces.remove(&self.namespace);
                state.listener.forget_namespace(&self.namespace);
            }
        }
        drop(state);
        self.tell(&self.counters);
    }
}
