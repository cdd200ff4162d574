//! An answer on its way to its caller.
//!
//! Whoever waits may be gone by the time he is served: his connection broke, or
//! he gave up. A grant that reaches nobody is undone, so that it holds up no
//! other until it expires, and its id is free again. Unless somebody else was
//! told of the reservation meanwhile, by the same id sent again to this server:
//! then it is his.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::domain::decide::{Answer, Command, Undo};
use crate::domain::name::ReservationKey;
use crate::engine::Error;
use crate::engine::queue::{Pending, Queue};
use crate::engine::ticket::Ticket;

/// An answer that must be accepted, or it is undone.
pub struct Delivery {
    outcome: Option<Result<Answer, Error>>,
    grant: Option<Grant>,
}

/// What was granted to somebody who waited.
struct Grant {
    queue: Arc<Queue>,
    /// His own.
    caller: Arc<Ticket>,
    /// Of the command that undoes it, should it come to that.
    ticket: Arc<Ticket>,
    undo: Undo,
}

impl Delivery {
    /// An answer that stands whether or not it arrives.
    pub fn plain(outcome: Result<Answer, Error>) -> Self {
        Self { outcome: Some(outcome), grant: None }
    }

    /// A grant to one who has waited, or might have.
    pub fn granted(
        answer: Answer,
        caller: Arc<Ticket>,
        queue: &Arc<Queue>,
        grants: &mut Grants,
    ) -> Self {
        let (ticket, key) = (Arc::<Ticket>::default(), answer.reservation.key.clone());
        grants.remember(&key, &ticket);
        let tokens = answer.reservation.charges.iter().map(|charge| charge.token).collect();
        let undo = Undo { key, tokens };
        let grant = Grant { queue: Arc::clone(queue), caller, ticket, undo };
        Self { outcome: Some(Ok(answer)), grant: Some(grant) }
    }

    /// The caller has it.
    pub fn accept(mut self) -> Result<Answer, Error> {
        let gone = || Error::Internal("an answer was accepted twice".to_owned());
        self.outcome.take().unwrap_or_else(|| Err(gone()))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            return;
        }
        // One who was told to ask for the outcome will find it.
        if let Some(grant) = self.grant.take().filter(|grant| !grant.caller.kept()) {
            let Grant { queue, ticket, undo, .. } = grant;
            queue.push_own(Pending::own(Command::Undo(undo), ticket));
        }
    }
}

/// Grants that may yet be undone.
#[derive(Default)]
pub struct Grants {
    undos: HashMap<ReservationKey, Weak<Ticket>>,
    /// When to look for those that are settled.
    full: usize,
}

impl Grants {
    fn remember(&mut self, key: &ReservationKey, undo: &Arc<Ticket>) {
        const FEW: usize = 64;
        if self.undos.len() >= self.full.max(FEW) {
            self.undos.retain(|_, undo| undo.strong_count() > 0);
            self.full = self.undos.len() * 2;
        }
        self.undos.insert(key.clone(), Arc::downgrade(undo));
    }

    /// Somebody was told of the reservation: it stays.
    pub fn told(&mut self, key: &ReservationKey) {
        if self.undos.is_empty() {
            return;
        }
        if let Some(undo) = self.undos.remove(key).and_then(|undo| undo.upgrade()) {
            undo.leave();
        }
    }
}
