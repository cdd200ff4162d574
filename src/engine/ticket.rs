//! What a caller may know of his command at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const WAITING: u8 = 0;
const WRITING: u8 = 1;
const CANCELLED: u8 = 2;
const KEPT: u8 = 3;

/// Whether a command can still be taken back.
#[derive(Debug, Default)]
pub(super) struct Ticket(AtomicU8);

impl Ticket {
    /// The command is about to be written; false when its caller has gone.
    /// A command whose outcome is unknown stays in writing.
    pub fn begin(&self) -> bool {
        match self.0.compare_exchange(WAITING, WRITING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(present) => matches!(present, WRITING | KEPT),
        }
    }

    /// The write certainly had no effect.
    pub fn back_to_waiting(&self) {
        let _ = self.0.compare_exchange(WRITING, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether the caller has gone.
    pub fn cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }

    /// The caller was told, while the command was being written, that its
    /// outcome is unknown: whatever comes of it stays, for he will ask.
    fn keep(&self) {
        let _ = self.0.compare_exchange(WRITING, KEPT, Ordering::AcqRel, Ordering::Acquire);
    }

    /// What it would take back is somebody's now: it is not to be tried again,
    /// whatever came of it so far.
    pub fn leave(&self) {
        self.0.store(KEPT, Ordering::Release);
    }

    /// Whether the caller was told to ask.
    pub fn kept(&self) -> bool {
        self.0.load(Ordering::Acquire) == KEPT
    }

    /// Takes the command back; false when it is being written.
    pub fn cancel(&self) -> bool {
        self.0
            .compare_exchange(WAITING, CANCELLED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok_and(|_| true)
    }

    /// A guard that takes the command back when the caller goes.
    pub fn cancel_on_drop(self: Arc<Self>) -> Abandoned {
        Abandoned(self)
    }
}

/// Takes a command back when dropped, if that is still possible.
pub(super) struct Abandoned(Arc<Ticket>);

impl Abandoned {
    /// Takes the command back now; false when it is being written.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// The caller is told that the outcome is unknown.
    pub fn keep(&self) {
        self.0.keep();
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
