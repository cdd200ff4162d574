//! What the driver's errors mean for a change set.

use mongodb::error::{
    Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
};

use crate::store::{StoreError, WriteError};

/// MongoDB's code for a violated unique index.
pub(super) const DUPLICATE_KEY: i32 = 11000;
/// Codes that tell that somebody else is writing, or that our session was
/// ended: nothing is written, and trying again may succeed.
const CONFLICTS: [i32; 5] = [
    112,   // WriteConflict
    24,    // LockTimeout
    251,   // NoSuchTransaction
    11601, // Interrupted, by the end of our session
    46,    // LockBusy
];

/// A read that failed.
pub(super) fn unavailable(error: &Error) -> StoreError {
    StoreError::Unavailable(brief(error))
}

/// What an error of a statement inside a transaction means. Nothing of the
/// transaction is written, since nobody commits it any more.
pub(super) fn statement_failed(error: &Error) -> WriteError {
    match code(error) {
        Some(code) if CONFLICTS.contains(&code) => WriteError::Conflict,
        Some(_) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => WriteError::Conflict,
        _ => WriteError::Failed(brief(error)),
    }
}

/// What an error of the commit means. Only an error that the server itself
/// labels as "not committed" is taken for that.
pub(super) fn commit_failed(error: &Error) -> WriteError {
    if error.contains_label(TRANSIENT_TRANSACTION_ERROR)
        && !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT)
    {
        WriteError::Conflict
    } else {
        WriteError::Unknown(brief(error))
    }
}

/// The error without the state of every server, for people.
pub(super) fn brief(error: &Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => {
            format!("{} ({}): {}", command.code_name, command.code, command.message)
        }
        ErrorKind::ServerSelection { message, .. } => message.clone(),
        kind => kind.to_string(),
    }
}

fn code(error: &Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}
