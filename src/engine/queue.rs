//! Where commands wait: bounded, in order of arrival within a namespace, fair
//! between namespaces.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use tokio::sync::{Notify, oneshot};

use super::ticket::Ticket;
use super::{Error, Settings};
use crate::domain::decide::{Answer, Command};

/// A command and the caller who waits for its answer.
pub(super) struct Pending {
    pub command: Command,
    pub namespace: String,
    pub ticket: Arc<Ticket>,
    answer: oneshot::Sender<Result<Answer, Error>>,
    /// An earlier attempt to write it had an unknown outcome: if it now turns
    /// out to have taken effect, this is still the caller's first answer.
    pub attempted: bool,
    /// How often it was put back because its writes kept conflicting.
    conflicts: u32,
}

impl Pending {
    pub fn new(
        command: Command,
        ticket: Arc<Ticket>,
        answer: oneshot::Sender<Result<Answer, Error>>,
    ) -> Self {
        let namespace = command.key().namespace().into_owned();
        Self { command, namespace, ticket, answer, attempted: false, conflicts: 0 }
    }

    /// Answers the caller; one who has gone does not mind.
    pub fn answer(self, outcome: Result<Answer, Error>) {
        let _ = self.answer.send(outcome);
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
        let mut passed = 0;
        while batch.len() < most && passed < self.turns.len() {
            let Some(namespace) = self.turns.pop_front() else { break };
            let Some(lane) = self.by_namespace.get_mut(&namespace) else { continue };
            let ready = lane.not_before.is_none_or(|at| at <= now);
            if !ready || (lane.alone && !batch.is_empty()) {
                self.turns.push_back(namespace);
                passed += 1;
                continue;
            }
            passed = 0;
            let alone = std::mem::take(&mut lane.alone);
            let share = if alone { most } else { 1 };
            let taken = lane.commands.len().min(share);
            self.waiting -= taken;
            batch.extend(lane.commands.drain(..taken).filter(|p| !p.ticket.cancelled()));
            if lane.commands.is_empty() {
                self.by_namespace.remove(&namespace);
            } else {
                lane.not_before = None;
                self.turns.push_back(namespace);
            }
            if alone {
                break;
            }
        }
        batch
    }

    fn next_ready(&self) -> Option<Instant> {
        self.by_namespace.values().filter_map(|lane| lane.not_before).min()
    }
}
