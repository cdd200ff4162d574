//! Where commands wait: bounded, in order of arrival within a namespace, fair
//! between namespaces.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::ticket::Ticket;
use super::wait::{Delivery, Grants, Wait};
use super::{Error, Settings};
use crate::domain::decide::{Answer, Command};
use crate::domain::name::{Dimensions, ReservationKey};

/// The most bytes of requests in one batch, so that its transaction stays one
/// that a small database can hold.
const MAX_BATCH_BYTES: usize = 2 << 20;
/// The most commands of a namespace that must be alone: if it was the size of
/// its transaction that did not fit, a smaller one will.
const MAX_ALONE: usize = 64;

/// A command and the caller who waits for its answer.
pub(super) struct Pending {
    pub command: Command,
    pub namespace: String,
    pub ticket: Arc<Ticket>,
    answer: oneshot::Sender<Delivery>,
    /// How it waits for room, if it does.
    pub wait: Option<Wait>,
    /// A command of this process itself: nobody hears what becomes of it, and
    /// it is tried until that is certain.
    pub own: bool,
    /// An earlier attempt to write it had an unknown outcome: if it now turns
    /// out to have taken effect, this is still the caller's first answer.
    pub attempted: bool,
    /// About how many bytes its request has.
    bytes: usize,
    /// How often it was put back because its writes kept conflicting.
    conflicts: u32,
}

impl Pending {
    pub fn new(command: Command, ticket: Arc<Ticket>, answer: oneshot::Sender<Delivery>) -> Self {
        let namespace = command.namespace().into_owned();
        let bytes = bytes(&command);
        Self {
            command,
            namespace,
            ticket,
            answer,
            wait: None,
            own: false,
            attempted: false,
            bytes,
            conflicts: 0,
        }
    }

    /// A Reserve that may wait.
    pub fn waiting(self, wait: Option<Wait>) -> Self {
        Self { wait, ..self }
    }

    /// A command of this process itself.
    pub fn own(command: Command, ticket: Arc<Ticket>) -> Self {
        Self { own: true, ..Self::new(command, ticket, oneshot::channel().0) }
    }

    /// Whether its caller has gone, and nothing was begun for him. He may have
    /// gone while it was being written, which could not be taken back then, and
    /// came to nothing.
    pub fn gone(&self) -> bool {
        let unheard = !self.own && !self.attempted && self.answer.is_closed();
        self.taken_back() || unheard
    }

    /// Whether it is not to be done any more.
    fn taken_back(&self) -> bool {
        self.ticket.cancelled() || (self.own && self.ticket.kept())
    }

    /// Answers the caller; one who has gone does not mind.
    pub fn answer(self, outcome: Result<Answer, Error>) {
        let _ = self.answer.send(Delivery::plain(outcome));
    }

    /// Answers a caller whose command took effect. Where that is a grant and he
    /// might have waited for it, it is undone if he has gone.
    pub fn done(self, answer: Answer, queue: &Arc<Queue>, grants: &mut Grants) {
        let granted = self.wait.is_some() && !answer.replayed && !self.attempted;
        let delivery = if granted {
            Delivery::granted(answer, self.ticket, queue, grants)
        } else {
            // Somebody is told of the reservation: nobody else's going undoes it.
            grants.told(&answer.reservation.key);
            Delivery::plain(Ok(answer))
        };
        let _ = self.answer.send(delivery);
    }

    /// The id that it would reserve under.
    pub fn reserves(&self) -> Option<&ReservationKey> {
        match &self.command {
            Command::Reserve(reserve) => Some(&reserve.key),
            _ => None,
        }
    }

    /// Whether it may go on waiting, however it was refused.
    pub fn may_stay(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| !wait.over) && !self.attempted && !self.ticket.kept()
    }
}

/// Commands by namespace.
pub(super) struct Queue {
    total: usize,
    per_namespace: usize,
    lanes: Mutex<Lanes>,
    arrived: Notify,
}

#[derive(Default)]
struct Lanes {
    by_namespace: HashMap<String, Lane>,
    /// Namespaces with commands, in the order of their turns.
    turns: VecDeque<String>,
    waiting: usize,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    commands: VecDeque<Pending>,
    /// Since its commands kept conflicting it gets batches of its own, so that
    /// it holds up nobody else.
    alone: bool,
    not_before: Option<Instant>,
}

impl Queue {
    pub fn new(settings: &Settings) -> Self {
        Self {
            total: settings.queue,
            per_namespace: settings.queue_per_namespace,
            lanes: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Adds a command at the end of its namespace's lane.
    pub fn push(&self, pending: Pending) -> Result<(), Error> {
        let mut lanes = self.lanes();
        if lanes.closed {
            return Err(Error::Unavailable("the server is shutting down".to_owned()));
        }
        let in_lane = lanes.by_namespace.get(&pending.namespace).map_or(0, |l| l.commands.len());
        if lanes.waiting >= self.total || in_lane >= self.per_namespace {
            return Err(Error::Overloaded);
        }
        lanes.add(pending);
        drop(lanes);
        self.arrived.notify_one();
        Ok(())
    }

    /// Adds a command of this process itself, which is always taken.
    pub fn push_own(&self, pending: Pending) {
        self.lanes().add(pending);
        self.arrived.notify_one();
    }

    /// Puts commands of one namespace back at the head of its lane, to be
    /// tried by themselves a little later.
    pub fn put_back(&self, namespace: &str, commands: Vec<Pending>) {
        let mut lanes = self.lanes();
        lanes.waiting += commands.len();
        if !lanes.turns.iter().any(|turn| turn == namespace) {
            lanes.turns.push_back(namespace.to_owned());
        }
        let lane = lanes.by_namespace.entry(namespace.to_owned()).or_default();
        let mut conflicts = 0;
        for mut pending in commands.into_iter().rev() {
            pending.conflicts += 1;
            conflicts = conflicts.max(pending.conflicts);
            lane.commands.push_front(pending);
        }
        lane.alone = true;
        let pause = Duration::from_millis(4 << conflicts.min(5));
        lane.not_before = Some(Instant::now() + pause.mul_f64(0.5 + fastrand::f64()));
        drop(lanes);
        self.arrived.notify_one();
    }

    /// The next commands to decide, at most `most`; `None` once the queue is
    /// closed and empty.
    pub async fn next(&self, most: usize) -> Option<Vec<Pending>> {
        loop {
            let arrived = self.arrived.notified();
            let wake = {
                let mut lanes = self.lanes();
                let batch = lanes.take(most, Instant::now());
                if !batch.is_empty() {
                    return Some(batch);
                }
                if lanes.closed && lanes.waiting == 0 {
                    return None;
                }
                lanes.next_ready()
            };
            match wake {
                None => arrived.await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, arrived).await;
                }
            }
        }
    }

    /// The next commands that are there already.
    pub fn take(&self, most: usize) -> Vec<Pending> {
        self.lanes().take(most, Instant::now())
    }

    /// Takes no more commands.
    pub fn close(&self) {
        self.lanes().closed = true;
        self.arrived.notify_one();
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    fn add(&mut self, pending: Pending) {
        self.waiting += 1;
        if let Some(lane) = self.by_namespace.get_mut(&pending.namespace) {
            lane.commands.push_back(pending);
            return;
        }
        let namespace = pending.namespace.clone();
        self.turns.push_back(namespace.clone());
        let commands = VecDeque::from([pending]);
        self.by_namespace.insert(namespace, Lane { commands, ..Lane::default() });
    }

    /// One command of each namespace in turn, until the batch is full; or all
    /// of one namespace that must be alone.
    fn take(&mut self, most: usize, now: Instant) -> Vec<Pending> {
        let mut batch = Vec::new();
        let (mut passed, mut bytes) = (0, 0);
        let mut next_alone = None;
        while batch.len() < most && bytes < MAX_BATCH_BYTES && passed < self.turns.len() {
            let Some(namespace) = self.turns.pop_front() else { break };
            let Some(lane) = self.by_namespace.get_mut(&namespace) else { continue };
            let ready = lane.not_before.is_none_or(|at| at <= now);
            if ready && lane.alone && !batch.is_empty() && next_alone.is_none() {
                // Its turn is the first of the next batch, or it might never
                // come: others fill every batch.
                next_alone = Some(namespace);
                continue;
            }
            if !ready || (lane.alone && !batch.is_empty()) {
                self.turns.push_back(namespace);
                passed += 1;
                continue;
            }
            passed = 0;
            let alone = std::mem::take(&mut lane.alone);
            let share = if alone { most.min(MAX_ALONE) } else { 1 };
            let taken = lane.commands.len().min(share);
            self.waiting -= taken;
            for pending in lane.commands.drain(..taken).filter(|p| !p.taken_back()) {
                bytes += pending.bytes;
                batch.push(pending);
            }
            if lane.commands.is_empty() {
                self.by_namespace.remove(&namespace);
            } else {
                lane.not_before = None;
                self.turns.push_back(namespace);
            }
            if alone && !batch.is_empty() {
                break;
            }
        }
        if let Some(namespace) = next_alone {
            self.turns.push_front(namespace);
        }
        batch
    }

    fn next_ready(&self) -> Option<Instant> {
        self.by_namespace.values().filter_map(|lane| lane.not_before).min()
    }
}

fn bytes(command: &Command) -> usize {
    let reserve = match command {
        Command::Reserve(reserve) => reserve,
        Command::Commit(commit) => {
            return 256 + commit.resources.iter().map(String::len).sum::<usize>();
        }
        Command::Refund(_) | Command::Adjust(_) => return 1024,
        Command::Release(_) | Command::Extend(_) | Command::Undo(_) => return 256,
    };
    let map = |map: &Dimensions| map.iter().map(|(k, v)| k.len() + v.len() + 16).sum::<usize>();
    let request = &reserve.request;
    let items: usize = request.items.iter().map(|item| 64 + map(&item.dimensions)).sum();
    let resources: usize = request.resources.iter().map(String::len).sum();
    256 + items + resources + map(&request.labels)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::domain::decide::Release;
    use crate::domain::name::ReservationKey;

    fn pending(namespace: &str, id: &str) -> Pending {
        let command = Command::Release(Release {
            key: ReservationKey::new(namespace, id),
            reason: String::new(),
            allow_missing: false,
            principal: String::new(),
        });
        Pending::new(command, Arc::default(), oneshot::channel().0)
    }

    fn queue(total: usize, per_namespace: usize) -> Queue {
        Queue::new(&Settings {
            queue: total,
            queue_per_namespace: per_namespace,
            ..Settings::default()
        })
    }

    fn ids(batch: &[Pending]) -> Vec<String> {
        let id = |pending: &Pending| match &pending.command {
            Command::Release(release) => release.key.to_string(),
            other => unreachable!("{other:?}"),
        };
        batch.iter().map(id).collect()
    }

    #[tokio::test]
    async fn a_flood_in_one_namespace_leaves_the_others_their_turns() {
        let queue = queue(1000, 1000);
        for n in 0..10 {
            queue.push(pending("flood", &n.to_string())).unwrap();
        }
        queue.push(pending("a", "1")).unwrap();
        queue.push(pending("b", "1")).unwrap();
        let batch = queue.next(4).await.unwrap();
        assert_eq!(ids(&batch), ["flood/0", "a/1", "b/1", "flood/1"]);
        assert_eq!(ids(&queue.next(3).await.unwrap()), ["flood/2", "flood/3", "flood/4"]);
    }

    #[tokio::test]
    async fn queues_are_bounded_in_all_and_for_each_namespace() {
        let queue = queue(3, 2);
        queue.push(pending("a", "1")).unwrap();
        queue.push(pending("a", "2")).unwrap();
        assert_eq!(queue.push(pending("a", "3")), Err(Error::Overloaded));
        queue.push(pending("b", "1")).unwrap();
        assert_eq!(queue.push(pending("c", "1")), Err(Error::Overloaded));
        queue.next(10).await.unwrap();
        queue.push(pending("a", "3")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_keeps_conflicting_is_tried_alone_in_its_order_and_holds_up_nobody() {
        let queue = queue(1000, 1000);
        queue.push(pending("a", "3")).unwrap();
        queue.put_back("a", vec![pending("a", "1"), pending("a", "2")]);
        queue.push(pending("b", "1")).unwrap();
        assert_eq!(ids(&queue.next(10).await.unwrap()), ["b/1"], "a is not ready yet");
        assert_eq!(ids(&queue.next(10).await.unwrap()), ["a/1", "a/2", "a/3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_must_be_alone_gets_its_turn_however_full_the_others_are() {
        let queue = queue(1000, 1000);
        for n in 0..100 {
            queue.push(pending("c", &n.to_string())).unwrap();
            queue.push(pending("b", &n.to_string())).unwrap();
        }
        queue.put_back("a", vec![pending("a", "1")]);
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut batches = Vec::new();
        for _ in 0..3 {
            batches.push(ids(&queue.next(4).await.unwrap()));
        }
        assert!(batches.contains(&vec!["a/1".to_owned()]), "{batches:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_callers_who_have_gone_are_not_forgotten() {
        let queue = queue(1000, 1000);
        let commands: Vec<_> = (0..=MAX_ALONE).map(|n| pending("a", &n.to_string())).collect();
        for gone in &commands[..MAX_ALONE] {
            drop(Arc::clone(&gone.ticket).cancel_on_drop());
        }
        queue.put_back("a", commands);
        assert_eq!(ids(&queue.next(512).await.unwrap()), [format!("a/{MAX_ALONE}")]);
    }

    #[tokio::test]
    async fn commands_of_callers_who_have_gone_are_not_taken() {
        let queue = queue(10, 10);
        let gone = pending("a", "1");
        drop(Arc::clone(&gone.ticket).cancel_on_drop());
        queue.push(gone).unwrap();
        queue.push(pending("a", "2")).unwrap();
        assert_eq!(ids(&queue.next(10).await.unwrap()), ["a/2"]);
    }

    #[tokio::test]
    async fn a_closed_queue_gives_what_it_has_and_takes_no_more() {
        let queue = queue(10, 10);
        queue.push(pending("a", "1")).unwrap();
        queue.close();
        assert!(matches!(queue.push(pending("a", "2")), Err(Error::Unavailable(_))));
        assert_eq!(ids(&queue.next(10).await.unwrap()), ["a/1"]);
        assert!(queue.next(10).await.is_none());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_an_arrival() {
        let queue = Arc::new(queue(10, 10));
        let taken = Arc::new(AtomicUsize::new(0));
        let reader = tokio::spawn({
            let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
            async move {
                while let Some(batch) = queue.next(10).await {
                    taken.fetch_add(batch.len(), Ordering::Relaxed);
                }
            }
        });
        for n in 0..100 {
            while queue.push(pending("a", &n.to_string())).is_err() {
                tokio::task::yield_now().await;
            }
        }
        queue.close();
        reader.await.unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 100);
    }
}
