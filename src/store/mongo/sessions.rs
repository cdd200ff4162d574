//! Sessions, and the heartbeat that keeps their transactions from outliving
//! their server.
//!
//! A server that is killed or paused in the middle of a transaction leaves its
//! documents locked, by default for more than a minute. So every server keeps
//! a heartbeat with the ids of its sessions, and the others end the sessions of
//! one whose heart has stopped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::error::Result;
use mongodb::{Client, ClientSession, Collection, Database};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use super::clock::TrackedClock;
use super::error::brief;

/// Between two heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// Without a heartbeat for this long a server is taken for stopped. Taking a
/// slow one for stopped is harmless: its transaction fails and is tried again.
const STOPPED_MS: i64 = 2000;
/// A server that has not got a heartbeat through for this long registers its
/// sessions anew before it uses them: others may have struck it off.
const STALE: Duration = Duration::from_millis(1500);
/// Transactions under way at once, for each purpose.
const SESSIONS: usize = 2;

/// What a transaction is for. Each has sessions of its own, so that a bulk
/// import of subjects does not hold up a Reserve.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Reservations and counters.
    Batches,
    /// Policies and subjects.
    Administration,
}
/// How long a heartbeat may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// This server's sessions.
pub(super) struct Sessions {
    client: Client,
    servers: Collection<Document>,
    admin: Database,
    server: String,
    permits: [Semaphore; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<ClientSession>,
    /// Ids of all sessions that may have a transaction, as the heartbeat
    /// writes them.
    ids: Vec<Bson>,
    /// Those of them whose transaction could not be ended in good order: it
    /// may still be open on the server, with its documents locked.
    condemned: Vec<Bson>,
    last_beat: Option<Instant>,
}

/// A session for one transaction.
pub(super) struct Lease<'s> {
    sessions: &'s Sessions,
    /// Always there until it is given back.
    session: Option<ClientSession>,
    _permit: tokio::sync::SemaphorePermit<'s>,
}

impl Sessions {
    /// Opens the sessions and registers them by a first heartbeat.
    pub async fn start(client: Client, database: Database) -> Result<Self> {
        let sessions = Self {
            servers: database.collection("servers"),
            admin: client.database("admin"),
            server: Uuid::now_v7().to_string(),
            permits: [Semaphore::new(SESSIONS), Semaphore::new(SESSIONS)],
            state: Mutex::default(),
            client,
        };
        for _ in 0..2 * SESSIONS {
            sessions.open().await?;
        }
        sessions.beat().await?;
        Ok(sessions)
    }

    /// A session that is registered and not used by anybody else.
    pub async fn lease(&self, purpose: Purpose) -> Result<Lease<'_>> {
        let closed = |_| mongodb::error::Error::custom("the store is closed");
        let permit = self.permits[purpose as usize].acquire().await.map_err(closed)?;
        let mut fresh = self.state().last_beat.is_some_and(|beat| beat.elapsed() < STALE);
        if self.state().idle.is_empty() {
            self.open().await?;
            fresh = false;
        }
        if !fresh {
            self.beat().await?;
        }
        let session = self.state().idle.pop();
        let lost = || mongodb::error::Error::custom("no session is idle");
        let session = Some(session.ok_or_else(lost)?);
        Ok(Lease { sessions: self, session, _permit: permit })
    }

    /// Beats for ever, ends the sessions of servers that stopped, and keeps
    /// the clock right.
    pub async fn beat_forever(self: Arc<Self>, clock: Arc<TrackedClock>) {
        let mut ticks = tokio::time::interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut well = true;
        loop {
            ticks.tick().await;
            let beaten = async {
                self.beat().await?;
                self.end_condemned().await?;
                self.end_orphans().await?;
                clock.sync(&self.admin).await
            };
            let late = |_| Err(mongodb::error::Error::custom("a heartbeat timed out"));
            match timeout(2 * PATIENCE, beaten).await.unwrap_or_else(late) {
                Ok(()) if well => {}
                Ok(()) => {
                    well = true;
                    info!("MongoDB answers again");
                }
                Err(ref error) if well => {
                    well = false;
                    warn!(error = brief(error), "MongoDB does not answer");
                }
                Err(_) => {}
            }
        }
    }

    /// Takes this server off the list: its sessions are at rest.
    pub async fn sign_off(&self) {
        self.permits.iter().for_each(Semaphore::close);
        let gone = self.servers.delete_one(doc! { "_id": &self.server });
        // Nothing is lost where this fails: another server strikes it off.
        let _ = timeout(PATIENCE, async { gone.await }).await;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<()> {
        let session = self.client.start_session().await?;
        let mut state = self.state();
        if let Some(id) = session.id().get("id") {
            state.ids.push(id.clone());
        }
        state.idle.push(session);
        Ok(())
    }

    async fn beat(&self) -> Result<()> {
        let ids = self.state().ids.clone();
        let update = doc! {
            "$set": { "sessions": ids, "process": i64::from(std::process::id()) },
            "$currentDate": { "beat": true },
        };
        let sent = Instant::now();
        let update = self.servers.update_one(doc! { "_id": &self.server }, update).upsert(true);
        let late = |_| mongodb::error::Error::custom("a heartbeat timed out");
        timeout(PATIENCE, async { update.await }).await.map_err(late)??;
        self.state().last_beat = Some(sent);
        Ok(())
    }

    /// Ends our own sessions whose transactions may still be open. After that
    /// their outcome is decided, and their documents are free.
    pub async fn end_condemned(&self) -> Result<()> {
        let condemned = self.state().condemned.clone();
        if condemned.is_empty() {
            return Ok(());
        }
        self.kill(&condemned).await?;
        let mut state = self.state();
        state.condemned.retain(|id| !condemned.contains(id));
        state.ids.retain(|id| !condemned.contains(id));
        Ok(())
    }

    async fn kill(&self, ids: &[Bson]) -> Result<()> {
        let sessions: Vec<Document> = ids.iter().map(|id| doc! { "id": id.clone() }).collect();
        let late = |_| mongodb::error::Error::custom("the end of a session timed out");
        let kill = self.admin.run_command(doc! { "killSessions": sessions });
        timeout(PATIENCE, async { kill.await }).await.map_err(late)??;
        Ok(())
    }

    /// Ends the sessions of servers whose heart has stopped, by the database's
    /// own clock.
    async fn end_orphans(&self) -> Result<()> {
        let stopped = doc! {
            "_id": { "$ne": &self.server },
            "sessions.0": { "$exists": true },
            "$expr": { "$lt": ["$beat", { "$subtract": ["$$NOW", STOPPED_MS] }] },
        };
        let found: Vec<Document> = self.servers.find(stopped).await?.try_collect().await?;
        for server in found {
            let sessions: Vec<Bson> = server
                .get_array("sessions")
                .into_iter()
                .flatten()
                .filter(|id| matches!(id, Bson::Binary(_)))
                .cloned()
                .collect();
            warn!(
                server = server.get_str("_id").unwrap_or_default(),
                "another server has stopped; ending its transactions"
            );
            self.kill(&sessions).await?;
            // Unless its heart beats again meanwhile, it need not be ended twice.
            let same = doc! { "_id": server.get("_id"), "beat": server.get("beat") };
            self.servers.update_one(same, doc! { "$set": { "sessions": [] } }).await?;
        }
        Ok(())
    }
}

impl Lease<'_> {
    /// The session.
    pub fn session(&mut self) -> &mut ClientSession {
        // The option is only emptied by `give_back`, which ends the lease's use.
        self.session.as_mut().expect("a lease has its session until it is given back")
    }

    /// The session is in good order and can serve the next transaction.
    pub fn give_back(&mut self) {
        if let Some(session) = self.session.take() {
            self.sessions.state().idle.push(session);
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.session.take().and_then(|session| session.id().get("id").cloned()) {
            self.sessions.state().condemned.push(id);
        }
    }
}
