//! The feeds, each from one change stream: over the database for policies and
//! subjects, over the counters where somebody waits for one.
//!
//! They only tell what a majority has. When one breaks it is opened again where
//! it broke off, or, where the server does not know that place any more, at
//! the present.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, ResumeToken};
use mongodb::error::{Error, ErrorKind, Result};
use mongodb::{Collection, Database};
use tokio::time::timeout;
use tracing::debug;

use super::error::brief;
use crate::domain::name::{SubjectKey, split_key};
use crate::store::feed::{Changed, CounterChanged, CounterFeed, Feed};

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
    let follower = Follower::new(move |place| {
        let database = database.clone();
        let watch = async move {
            let watch = database.watch().pipeline(pipeline()).max_await_time(AWAIT);
            watch.resume_after(place).await
        };
        watch.boxed()
    });
    let next = async |mut follower: Follower| {
        loop {
            if let Told::Event(event) = follower.next().await
                && let Some(changed) = changed(&event)
            {
                return Some((changed, follower));
            }
        }
    };
    stream::unfold(follower, next).boxed()
}

/// Follows the changes of counters.
pub(super) fn follow_counters(counters: Collection<RawDocumentBuf>) -> CounterFeed {
    let counters = counters.clone_with_type::<Document>();
    let follower = Follower::new(move |place| {
        let counters = counters.clone();
        let watch = async move {
            let watch = counters.watch().pipeline(names_only()).max_await_time(AWAIT);
            watch.resume_after(place).await
        };
        watch.boxed()
    });
    let next = async |mut follower: Follower| {
        loop {
            let changed = match follower.next().await {
                Told::Opened => Some(CounterChanged::Any),
                Told::Event(event) => id(&event).map(|id| CounterChanged::One(id.to_owned())),
            };
            if let Some(changed) = changed {
                return Some((changed, follower));
            }
        }
    };
    stream::unfold(follower, next).boxed()
}

type Stream = ChangeStream<ChangeStreamEvent<Document>>;
type Open = dyn Fn(Option<ResumeToken>) -> BoxFuture<'static, Result<Stream>> + Send + Sync;

struct Follower {
    open: Box<Open>,
    stream: Option<Stream>,
    /// After which event to go on.
    place: Option<ResumeToken>,
    pause: Duration,
}

/// What a follower finds.
enum Told {
    /// The stream was opened, perhaps again.
    Opened,
    /// Something has changed.
    Event(Box<ChangeStreamEvent<Document>>),
}

impl Follower {
    fn new<O>(open: O) -> Self
    where
        O: Fn(Option<ResumeToken>) -> BoxFuture<'static, Result<Stream>> + Send + Sync + 'static,
    {
        Self { open: Box::new(open), stream: None, place: None, pause: PAUSE }
    }

    async fn next(&mut self) -> Told {
        loop {
            match self.event().await {
                // One that opens and then breaks each time is no better.
                Ok(Some(Told::Opened)) => return Told::Opened,
                Ok(event) => {
                    self.pause = PAUSE;
                    if let Some(event) = event {
                        return event;
                    }
                }
                Err(error) => {
                    debug!(error = brief(&error), "a change feed has broken off");
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
    async fn event(&mut self) -> Result<Option<Told>> {
        let late = |_| Error::custom("no answer");
        let Some(stream) = &mut self.stream else {
            let opened =
                timeout(PATIENCE, (self.open)(self.place.clone())).await.map_err(late)??;
            self.stream = Some(opened);
            return Ok(Some(Told::Opened));
        };
        let event = timeout(PATIENCE, stream.next_if_any()).await.map_err(late)??;
        self.place = stream.resume_token().or(self.place.take());
        if event.is_none() && !stream.is_alive() {
            // The database was dropped: there is nothing to go on after.
            self.place = None;
            return Err(Error::custom("it was closed by the server"));
        }
        Ok(event.map(|event| Told::Event(Box::new(event))))
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
        project(),
    ]
}

/// That a document has changed, and which: not how, and nothing else.
fn names_only() -> [Document; 1] {
    [project()]
}

fn project() -> Document {
    doc! { "$project": { "operationType": 1, "ns": 1, "documentKey": 1 } }
}

fn id(event: &ChangeStreamEvent<Document>) -> Option<&str> {
    event.document_key.as_ref()?.get("_id").and_then(Bson::as_str)
}

fn changed(event: &ChangeStreamEvent<Document>) -> Option<Changed> {
    let key = id(event)?;
    match event.ns.as_ref()?.coll.as_deref()? {
        "policies" => split_key(key).into_iter().next().map(Changed::Policy),
        "subjects" => Some(Changed::Subject(SubjectKey::from_stored(key))),
        _ => None,
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(command) if LOST.contains(&command.code))
}
