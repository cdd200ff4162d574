//! What a caller may know of his command at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const WAITING: u8 = 0;
const WRITING: u8 = 1;
const CANCELLED: u8 = 2;

/// Whether a command can still be taken back.
#[derive(Debug, Default)]
pub(super) struct Ticket(AtomicU8);

impl Ticket {
    /// The command is about to be written; false when its caller has gone.
    /// A command whose outcome is unknown stays in writing.
    pub fn begin(&self) -> bool {
        match self.0.compare_exchange(WAITING, WRITING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(present) => present == WRITING,
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

    /// Takes the command back; false when it is being written.
    fn cancel(&self) -> bool {
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
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
