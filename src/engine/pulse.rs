//! Who wants to hear that something has changed, and is told.
//!
//! A listener names counters and namespaces. It is told of a counter that was
//! written, by this process or (where the store has a feed) by another, and of
//! a namespace whose rules have changed. It may be told for nothing, and now
//! and then something is left out: whoever must not miss a change also looks
//! again by himself.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::Notify;

use crate::store::{CounterChanged, SharedStore};

/// A feed that nobody has listened to for this long is closed.
const LINGER: Duration = Duration::from_secs(30);

/// Tells listeners of what has changed.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// How many things are listened for. Whoever publishes looks here first, so
    /// that it costs nothing where nobody listens.
    wanted: AtomicUsize,
    /// Somebody listens.
    begun: Notify,
    /// The server is going: nobody is to be kept waiting any more.
    closing: AtomicBool,
    ears: Mutex<Ears>,
}

#[derive(Debug, Default)]
struct Ears {
    last: u64,
    all: HashMap<u64, Arc<Ear>>,
    by_counter: HashMap<String, Vec<Arc<Ear>>>,
    by_namespace: HashMap<String, Vec<Arc<Ear>>>,
}

/// Where a listener is told.
#[derive(Debug, Default)]
pub(super) struct Ear {
    number: u64,
    heard: Mutex<Heard>,
    rung: Notify,
}

/// What a listener was told since it last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Counters, by [`CounterId::text`](crate::domain::counter::CounterId).
    pub counters: HashSet<String>,
    /// Namespaces whose rules have changed.
    pub namespaces: HashSet<String>,
    /// Anything may have changed.
    pub anything: bool,
    /// Somebody who waited has gone.
    pub gone: bool,
}

impl Ear {
    /// Waits until there is something to hear.
    pub async fn rung(&self) {
        self.rung.notified().await;
    }

    /// What there was to hear.
    pub fn take(&self) -> Heard {
        std::mem::take(&mut *lock(&self.heard))
    }

    /// Tells this listener alone.
    pub fn hear(&self, tell: impl FnOnce(&mut Heard)) {
        tell(&mut lock(&self.heard));
        self.rung.notify_one();
    }
}

impl Pulse {
    /// A counter was written.
    pub fn counter_changed(&self, counter: &str) {
        // Listeners are numbered from 1 on.
        self.tell_all_but(0, counter);
    }

    fn tell_all_but(&self, number: u64, counter: &str) {
        if self.wanted.load(Ordering::Acquire) == 0 {
            return;
        }
        let ears = self.ears();
        let listening = ears.by_counter.get(counter).into_iter().flatten();
        for ear in listening.filter(|ear| ear.number != number) {
            ear.hear(|heard| {
                heard.counters.insert(counter.to_owned());
            });
        }
    }

    /// The policy of a namespace, or a subject in it, has changed.
    pub fn rules_changed(&self, namespace: &str) {
        if self.wanted.load(Ordering::Acquire) == 0 {
            return;
        }
        for ear in self.ears().by_namespace.get(namespace).into_iter().flatten() {
            ear.hear(|heard| {
                heard.namespaces.insert(namespace.to_owned());
            });
        }
    }

    /// Anything may have changed.
    fn anything_changed(&self) {
        for ear in self.ears().all.values() {
            ear.hear(|heard| heard.anything = true);
        }
    }

    /// The server is going: all who listen are told.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.anything_changed();
    }

    /// Whether the server is going.
    pub fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// A new listener, which wants to hear nothing yet.
    pub fn listen(self: &Arc<Self>) -> Listener {
        let mut ears = self.ears();
        ears.last += 1;
        let ear = Arc::new(Ear { number: ears.last, ..Ear::default() });
        ears.all.insert(ear.number, Arc::clone(&ear));
        drop(ears);
        let (counters, namespaces) = (HashSet::new(), HashSet::new());
        Listener { pulse: Arc::clone(self), ear, counters, namespaces }
    }

    /// Passes on what the store tells, for ever, while somebody listens.
    pub async fn follow(self: Arc<Self>, store: SharedStore) {
        loop {
            self.wanted_by_somebody().await;
            let mut changes = store.counter_changes();
            let mut deserted = std::pin::pin!(self.deserted());
            loop {
                tokio::select! {
                    () = &mut deserted => break,
                    change = changes.next() => match change {
                        Some(CounterChanged::One(counter)) => self.counter_changed(&counter),
                        Some(CounterChanged::Any) => self.anything_changed(),
                        // A feed never ends; one that does is asked no more.
                        None => std::future::pending().await,
                    },
                }
            }
        }
    }

    async fn wanted_by_somebody(&self) {
        loop {
            let begun = self.begun.notified();
            if self.wanted.load(Ordering::Acquire) > 0 {
                return;
            }
            begun.await;
        }
    }

    /// Waits until nobody has listened for a while.
    async fn deserted(&self) {
        const LOOKS: u32 = 6;
        let mut quiet = 0;
        while quiet < LOOKS {
            tokio::time::sleep(LINGER / LOOKS).await;
            quiet = if self.wanted.load(Ordering::Acquire) == 0 { quiet + 1 } else { 0 };
        }
    }

    fn more(&self) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.begun.notify_one();
    }

    fn less(&self) {
        self.wanted.fetch_sub(1, Ordering::AcqRel);
    }

    fn ears(&self) -> MutexGuard<'_, Ears> {
        lock(&self.ears)
    }
}

/// Somebody who listens, until he is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pulse: Arc<Pulse>,
    ear: Arc<Ear>,
    counters: HashSet<String>,
    namespaces: HashSet<String>,
}

impl Listener {
    /// Where it is told.
    pub fn ear(&self) -> &Arc<Ear> {
        &self.ear
    }

    /// Tells the other listeners that something about this counter has changed.
    pub fn tell_others(&self, counter: &str) {
        self.pulse.tell_all_but(self.ear.number, counter);
    }

    /// Wants to hear of this counter; false when it did already.
    pub fn want_counter(&mut self, counter: &str) -> bool {
        let new = self.counters.insert(counter.to_owned());
        if new {
            let ear = Arc::clone(&self.ear);
            self.pulse.ears().by_counter.entry(counter.to_owned()).or_default().push(ear);
            self.pulse.more();
        }
        new
    }

    /// Wants to hear of this counter no more.
    pub fn forget_counter(&mut self, counter: &str) {
        if self.counters.remove(counter) {
            withdraw(&mut self.pulse.ears().by_counter, counter, self.ear.number);
            self.pulse.less();
        }
    }

    /// Wants to hear of the rules of this namespace.
    pub fn want_namespace(&mut self, namespace: &str) {
        if self.namespaces.insert(namespace.to_owned()) {
            let ear = Arc::clone(&self.ear);
            self.pulse.ears().by_namespace.entry(namespace.to_owned()).or_default().push(ear);
            self.pulse.more();
        }
    }

    /// Wants to hear of the rules of this namespace no more.
    pub fn forget_namespace(&mut self, namespace: &str) {
        if self.namespaces.remove(namespace) {
            withdraw(&mut self.pulse.ears().by_namespace, namespace, self.ear.number);
            self.pulse.less();
        }
    }

    /// Wants to hear of these counters and of no others; true when it did not
    /// want to hear of all of them before.
    pub fn want_only(&mut self, counters: &HashSet<String>) -> bool {
        let others: Vec<String> = self.counters.difference(counters).cloned().collect();
        for counter in others {
            self.forget_counter(&counter);
        }
        let mut new = false;
        for counter in counters {
            new |= self.want_counter(counter);
        }
        new
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut ears = self.pulse.ears();
        ears.all.remove(&self.ear.number);
        for counter in &self.counters {
            withdraw(&mut ears.by_counter, counter, self.ear.number);
            self.pulse.less();
        }
        for namespace in &self.namespaces {
            withdraw(&mut ears.by_namespace, namespace, self.ear.number);
            self.pulse.less();
        }
    }
}

fn withdraw<K: Eq + Hash + std::borrow::Borrow<str>>(
    ears: &mut HashMap<K, Vec<Arc<Ear>>>,
    name: &str,
    number: u64,
) {
    if let Some(listening) = ears.get_mut(name) {
        listening.retain(|ear| ear.number != number);
        if listening.is_empty() {
            ears.remove(name);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &Listener) -> (Vec<String>, Vec<String>, bool) {
        let Heard { counters, namespaces, anything, .. } = listener.ear().take();
        (counters.into_iter().collect(), namespaces.into_iter().collect(), anything)
    }

    #[tokio::test]
    async fn a_listener_is_told_of_what_it_wants_and_of_nothing_else() {
        let pulse = Arc::new(Pulse::default());
        let (mut one, mut other) = (pulse.listen(), pulse.listen());
        assert!(one.want_counter("a"));
        assert!(!one.want_counter("a"), "it does already");
        other.want_namespace("n");
        for counter in ["a", "b"] {
            pulse.counter_changed(counter);
        }
        pulse.rules_changed("n");
        one.ear().rung().await;
        assert_eq!(heard(&one), (vec!["a".to_owned()], vec![], false));
        other.ear().rung().await;
        assert_eq!(heard(&other), (vec![], vec!["n".to_owned()], false));
        assert!(one.want_only(&HashSet::from(["b".to_owned()])));
        for counter in ["a", "b"] {
            pulse.counter_changed(counter);
        }
        assert_eq!(heard(&one), (vec!["b".to_owned()], vec![], false));
        pulse.close();
        assert_eq!(heard(&one), (vec![], vec![], true));
        assert!(pulse.closing());
    }

    #[test]
    fn those_who_have_gone_are_forgotten() {
        let pulse = Arc::new(Pulse::default());
        let mut listener = pulse.listen();
        listener.want_counter("a");
        listener.want_counter("b");
        listener.want_namespace("n");
        listener.forget_counter("b");
        assert_eq!(pulse.wanted.load(Ordering::Relaxed), 2);
        drop(listener);
        assert_eq!(pulse.wanted.load(Ordering::Relaxed), 0);
        let ears = pulse.ears();
        assert!(ears.all.is_empty() && ears.by_counter.is_empty() && ears.by_namespace.is_empty());
    }
}
