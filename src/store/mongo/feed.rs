//! The feed, from one change stream over the database.
//!
//! It only tells what a majority has. When it breaks it is opened again where
//! it broke off, or, where the server does not know that place any more, at
//! the present.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::StreamExt as _;
use futures_util::stream;
use mongodb::Database;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, ResumeToken};
use mongodb::error::{Error, ErrorKind, Result};
use tokio::time::timeout;
use tracing::debug;

use super::error::brief;
use crate::domain::name::{SubjectKey, split_key};
use crate::store::feed::{Changed, Feed};

/// How long the server waits for a change before it answers that there is none.
const AWAIT: Duration = Duration::from_secs(1);
/// How long it may take to answer. A primary that is paused never does, and
/// the driver has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before a broken stream is opened again; twice as long after each failure.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_AT_MOST: Duration = Duration::from_secs(5);
/// Codes that tell that a stream cannot go on where it broke off.
const LOST: [i32; 3] = [
    286, // ChangeStreamHistoryLost
    280, // ChangeStreamFatalError
    260, // InvalidResumeToken
];

/// Follows the changes of policies and subjects.
pub(super) fn follow(database: Database) -> Feed {
    let follower = Follower { database, stream: None, place: None, pause: PAUSE };
    let next = async |mut follower: Follower| {
        let changed = follower.next().await;
        Some((changed, follower))
    };
    stream::unfold(follower, next).boxed()
}

struct Follower {
    database: Database,
    stream: Option<ChangeStream<ChangeStreamEvent<Document>>>,
    /// After which event to go on.
    place: Option<ResumeToken>,
    pause: Duration,
}

impl Follower {
    async fn next(&mut self) -> Changed {
        loop {
            match self.event().await {
                Ok(event) => {
                    self.pause = PAUSE;
                    if let Some(changed) = event.and_then(|event| changed(&event)) {
                        return changed;
                    }
                }
                Err(error) => {
                    debug!(error = brief(&error), "the change feed has broken off");
                    self.stream = None;
                    if is_lost(&error) {
                        self.place = None;
                    }
                    tokio::time::sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(PAUSE_AT_MOST);
                }
            }
        }
    }

    /// The next event, if there is one within a while.
    async fn event(&mut self) -> Result<Option<ChangeStreamEvent<Document>>> {
        let late = |_| Error::custom("no answer");
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed => {
                let open = self.database.watch().pipeline(pipeline()).max_await_time(AWAIT);
                let open = open.resume_after(self.place.clone());
                let opened = timeout(PATIENCE, async { open.await }).await.map_err(late)??;
                closed.insert(opened)
            }
        };
        let event = timeout(PATIENCE, stream.next_if_any()).await.map_err(late)??;
        self.place = stream.resume_token().or(self.place.take());
        if event.is_none() && !stream.is_alive() {
            // The database was dropped: there is nothing to go on after.
            self.place = None;
            return Err(Error::custom("it was closed by the server"));
        }
        Ok(event)
    }
}

/// Only what the feed tells, and of that no more than its name: the documents
/// stay where they are.
fn pipeline() -> [Document; 2] {
    let kinds = ["insert", "update", "replace", "delete"];
    [
        doc! { "$match": {
            "ns.coll": { "$in": ["policies", "subjects"] },
            "operationType": { "$in": kinds.as_slice() },
        } },
        doc! { "$project": { "operationType": 1, "ns": 1, "documentKey": 1 } },
    ]
}

fn changed(event: &ChangeStreamEvent<Document>) -> Option<Changed> {
    let key = event.document_key.as_ref()?.get("_id").and_then(Bson::as_str)?;
    match event.ns.as_ref()?.coll.as_deref()? {
        "policies" => split_key(key).into_iter().next().map(Changed::Policy),
        "subjects" => Some(Changed::Subject(SubjectKey::from_stored(key))),
        _ => None,
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(command) if LOST.contains(&command.code))
}
