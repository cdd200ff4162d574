//! Writing a change set: one transaction, every write under its guard.

use std::time::Duration;

use bson::raw::RawArrayBuf;
use bson::{Document, RawDocumentBuf, cstr};
use mongodb::ClientSession;
use mongodb::error::UNKNOWN_TRANSACTION_COMMIT_RESULT;
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::error::{DUPLICATE_KEY, brief, commit_failed, statement_failed};
use super::sessions::{Purpose, Sessions};
use super::{Collections, failpoint};
use crate::store::document::{
    CounterDoc, CounterUpdate, EventDoc, ReservationDoc, ReservationUpdate, ResourceDoc,
    RevisionDoc, SubjectDoc,
};
use crate::store::{Change, ChangeSet, Extent, Unbinding, WriteError};

/// How long the statements of a transaction may take together.
const STATEMENTS: Duration = Duration::from_secs(5);
/// How long a commit is sent again while its outcome is unknown.
const COMMIT: Duration = Duration::from_secs(4);
/// The most bytes of documents in one command; MongoDB takes messages of
/// 48 MB and documents of 16 MB.
const MAX_COMMAND_BYTES: usize = 16 << 20;

pub(super) async fn write(
    collections: &Collections,
    sessions: &Sessions,
    changes: &ChangeSet,
) -> Result<(), WriteError> {
    let commands = commands(changes)?;
    let expired = || changes.valid_until.is_some_and(|until| Instant::now() > until);
    // Batches and administrators do not wait for each other.
    let purpose = if changes.counters.is_empty() && changes.reservations.is_empty() {
        Purpose::Administration
    } else {
        Purpose::Batches
    };
    let lease = sessions.lease(purpose).await;
    let mut lease = lease.map_err(|error| WriteError::Failed(brief(&error)))?;
    if expired() {
        lease.give_back();
        return Err(WriteError::Conflict);
    }
    let mut transaction = Transaction { collections, session: lease.session() };
    let written = timeout(STATEMENTS, transaction.run(&commands)).await.unwrap_or_else(|_| {
        Err(WriteError::Failed(format!("no answer to a write within {STATEMENTS:?}")))
    });
    if written.is_ok() {
        failpoint::reach(failpoint::BEFORE_COMMIT);
    }
    let outcome = match written {
        Ok(()) if expired() => Err(WriteError::Conflict),
        Ok(()) => transaction.commit().await,
        failed => failed,
    };
    let ended = match &outcome {
        Ok(()) => true,
        // Nobody may abort what may be committed; and where the server did not
        // answer, the driver's abort says nothing about what is open there.
        Err(WriteError::Unknown(_) | WriteError::Failed(_)) => false,
        Err(WriteError::Conflict | WriteError::Exists) => {
            timeout(STATEMENTS, transaction.session.abort_transaction())
                .await
                .is_ok_and(|aborted| aborted.is_ok())
        }
    };
    if ended {
        lease.give_back();
    } else {
        // Its transaction may still be open, with our own documents locked.
        // Ending the session decides what became of it; where that does not
        // work now, the heartbeat goes on trying.
        drop(lease);
        let _ = sessions.end_condemned().await;
    }
    outcome
}

/// One command of a transaction.
struct Command {
    verb: Verb,
    collection: &'static str,
    statements: Vec<RawDocumentBuf>,
    /// What a duplicate key means.
    duplicate: WriteError,
}

#[derive(Clone, Copy)]
enum Verb {
    Insert,
    Update,
    Delete,
    /// A delete that need not find what it removes.
    Free,
}

/// The commands in the order they are sent. Counters come last: they are what
/// others wait for, and the locks on them last until the transaction ends.
fn commands(changes: &ChangeSet) -> Result<Vec<Command>, WriteError> {
    let mut batch = Batch::default();
    let (new, old) = split(&changes.subjects);
    batch.insert("policies", changes.policies.iter().map(RevisionDoc::new), WriteError::Exists)?;
    batch.insert("events", changes.events.iter().map(EventDoc::new), WriteError::Exists)?;
    batch.insert("subjects", new.into_iter().map(SubjectDoc::new), WriteError::Conflict)?;
    batch.update("subjects", old, |change| {
        Ok((change.value.key().as_str().to_owned(), encode(&SubjectDoc::new(change))?))
    })?;
    batch.delete("subjects", changes.removed_subjects.iter().map(|r| (r.key.as_str(), r.expected)));
    batch.free(&changes.removed_resources);
    batch.insert(
        "resources",
        changes.resources.iter().map(ResourceDoc::new),
        WriteError::Exists,
    )?;
    let (new, old) = split(&changes.reservations);
    batch.insert("reservations", new.into_iter().map(ReservationDoc::new), WriteError::Exists)?;
    batch.update("reservations", old, |change| {
        let update = match change.extent {
            Extent::Whole => encode(&ReservationDoc::new(change))?,
            _ => parts(encode(&ReservationUpdate::new(change))?, change.purge_at.is_none()),
        };
        Ok((change.value.key.as_str().to_owned(), update))
    })?;
    let removed = changes.removed_reservations.iter().map(|r| (r.key.as_str(), r.expected));
    batch.delete("reservations", removed);
    let (new, old) = split(&changes.counters);
    batch.insert("counters", new.into_iter().map(CounterDoc::new), WriteError::Conflict)?;
    batch.update("counters", old, |change| {
        let update = parts(encode(&CounterUpdate::new(change))?, change.purge_at.is_none());
        Ok((change.value.id.text.clone(), update))
    })?;
    Ok(batch.commands)
}

/// Records to be made, and records to be changed.
fn split<T>(changes: &[Change<T>]) -> (Vec<&Change<T>>, Vec<&Change<T>>) {
    changes.iter().partition(|change| change.expected.is_none())
}

/// An update of these fields alone. Replacing a whole reservation costs twice
/// as much, since all its indexed fields are looked at again.
fn parts(fields: RawDocumentBuf, keep_for_ever: bool) -> RawDocumentBuf {
    let mut update = RawDocumentBuf::new();
    update.append(cstr!("$set"), fields);
    if keep_for_ever {
        let mut purge_at = RawDocumentBuf::new();
        purge_at.append(cstr!("purge_at"), "");
        update.append(cstr!("$unset"), purge_at);
    }
    update
}

#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
}

impl Batch {
    /// Makes documents; `duplicate` is what it means that one is there.
    fn insert<D: Serialize>(
        &mut self,
        collection: &'static str,
        documents: impl Iterator<Item = D>,
        duplicate: WriteError,
    ) -> Result<(), WriteError> {
        let documents = documents.map(|document| encode(&document)).collect::<Result<_, _>>()?;
        self.add(Verb::Insert, collection, documents, &duplicate);
        Ok(())
    }

    /// Changes documents that have the expected version.
    fn update<'c, T: 'c>(
        &mut self,
        collection: &'static str,
        changes: Vec<&'c Change<T>>,
        update: impl Fn(&Change<T>) -> Result<(String, RawDocumentBuf), WriteError>,
    ) -> Result<(), WriteError> {
        let mut statements = Vec::with_capacity(changes.len());
        for change in changes {
            let (key, update) = update(change)?;
            let mut guard = RawDocumentBuf::new();
            guard.append(cstr!("_id"), key);
            // By `_id` alone MongoDB needs no plan, which halves the cost.
            if !change.proven {
                guard.append(cstr!("version"), change.expected.unwrap_or(-1));
            }
            let mut statement = RawDocumentBuf::new();
            statement.append(cstr!("q"), guard);
            statement.append(cstr!("u"), update);
            statements.push(statement);
        }
        self.add(Verb::Update, collection, statements, &WriteError::Conflict);
        Ok(())
    }

    /// Removes documents that have the expected version.
    fn delete<'k>(
        &mut self,
        collection: &'static str,
        removals: impl Iterator<Item = (&'k str, i64)>,
    ) {
        let statement = |(key, version): (&str, i64)| {
            let mut guard = RawDocumentBuf::new();
            guard.append(cstr!("_id"), key);
            guard.append(cstr!("version"), version);
            deletion(guard)
        };
        let statements = removals.map(statement).collect();
        self.add(Verb::Delete, collection, statements, &WriteError::Conflict);
    }

    /// Removes bindings. Their reservations are guarded; that one of them is
    /// gone already, since retention was quicker, is as good.
    fn free(&mut self, bindings: &[Unbinding]) {
        let statement = |Unbinding { resource, owner }: &Unbinding| {
            let mut guard = RawDocumentBuf::new();
            guard.append(cstr!("_id"), resource.as_str());
            guard.append(cstr!("reservation_id"), owner.id().as_ref());
            deletion(guard)
        };
        let statements = bindings.iter().map(statement).collect();
        self.add(Verb::Free, "resources", statements, &WriteError::Conflict);
    }

    fn add(
        &mut self,
        verb: Verb,
        collection: &'static str,
        statements: Vec<RawDocumentBuf>,
        duplicate: &WriteError,
    ) {
        let mut bytes = usize::MAX;
        for statement in statements {
            let size = statement.as_bytes().len();
            if bytes.saturating_add(size) > MAX_COMMAND_BYTES {
                let duplicate = duplicate.clone();
                self.commands.push(Command { verb, collection, statements: vec![], duplicate });
                bytes = 0;
            }
            bytes += size;
            if let Some(command) = self.commands.last_mut() {
                command.statements.push(statement);
            }
        }
    }
}

struct Transaction<'t> {
    collections: &'t Collections,
    session: &'t mut ClientSession,
}

impl Transaction<'_> {
    async fn run(&mut self, commands: &[Command]) -> Result<(), WriteError> {
        let started = self.session.start_transaction().await;
        started.map_err(|error| WriteError::Failed(brief(&error)))?;
        for command in commands {
            let message = command.message();
            let sent = self.collections.database.run_raw_command(message);
            let reply = sent.session(&mut *self.session).await;
            command.check(&reply.map_err(|error| statement_failed(&error))?)?;
        }
        Ok(())
    }

    /// Commits, and sends the commit again on the same session while it is
    /// unknown whether it took effect: the server answers the second as it did
    /// the first.
    async fn commit(&mut self) -> Result<(), WriteError> {
        let deadline = Instant::now() + COMMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(committed) = timeout(left, self.session.commit_transaction()).await else {
                return Err(WriteError::Unknown(format!(
                    "no answer to a commit within {COMMIT:?}"
                )));
            };
            match committed {
                Ok(()) => return Ok(()),
                Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                    if Instant::now() >= deadline {
                        return Err(commit_failed(&error));
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(commit_failed(&error)),
            }
        }
    }
}

impl Command {
    fn message(&self) -> RawDocumentBuf {
        let (verb, list) = match self.verb {
            Verb::Insert => (cstr!("insert"), cstr!("documents")),
            Verb::Update => (cstr!("update"), cstr!("updates")),
            Verb::Delete | Verb::Free => (cstr!("delete"), cstr!("deletes")),
        };
        let mut statements = RawArrayBuf::new();
        for statement in &self.statements {
            statements.push(statement.clone());
        }
        let mut message = RawDocumentBuf::new();
        message.append(verb, self.collection);
        message.append(list, statements);
        message.append(cstr!("ordered"), true);
        message
    }

    /// Checks that every statement found what its guard expects.
    fn check(&self, reply: &Document) -> Result<(), WriteError> {
        if let Ok([bson::Bson::Document(error), ..]) =
            reply.get_array("writeErrors").map(Vec::as_slice)
        {
            return Err(match error.get_i32("code") {
                Ok(DUPLICATE_KEY) => self.duplicate.clone(),
                _ => {
                    WriteError::Failed(error.get_str("errmsg").unwrap_or("write error").to_owned())
                }
            });
        }
        if matches!(self.verb, Verb::Free) {
            return Ok(());
        }
        let written = reply.get_i32("n").ok().and_then(|n| usize::try_from(n).ok());
        if written == Some(self.statements.len()) { Ok(()) } else { Err(WriteError::Conflict) }
    }
}

fn deletion(guard: RawDocumentBuf) -> RawDocumentBuf {
    let mut statement = RawDocumentBuf::new();
    statement.append(cstr!("q"), guard);
    statement.append(cstr!("limit"), 1);
    statement
}

fn encode<D: Serialize>(document: &D) -> Result<RawDocumentBuf, WriteError> {
    bson::serialize_to_raw_document_buf(document)
        .map_err(|error| WriteError::Failed(error.to_string()))
}
