//! A replica set of a test's own: to kill, pause, step down and trip.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Document, doc};
use futures_util::future::join_all;
use mongodb::Client;

use super::mongod::Mongod;
use super::poll::eventually;
use super::shared::with_database;

/// How long an election, and the initial sync of the members, may take.
const SETTLE: Duration = Duration::from_mins(1);
/// How long one member may take to say what it is. A paused one never does.
const HELLO: Duration = Duration::from_secs(1);

/// A replica set `rs0` on this machine. Elections are quicker than by default
/// (a dead primary is replaced in about 3 s, a paused one in about 6 s), else it is a set as in
/// production.
#[derive(Debug)]
pub struct ReplicaSet {
    members: Vec<Mongod>,
}

impl ReplicaSet {
    /// Starts a set and waits until it has a primary and every other member is
    /// a secondary. `params` are server parameters, each `name=value`.
    ///
    /// # Panics
    ///
    /// Without a `mongod`, or where the set does not come up.
    pub async fn start(members: usize, params: &[&str]) -> Self {
        let members: Vec<_> = (0..members).map(|_| Mongod::spawn_member(params)).collect();
        join_all(members.iter().map(Mongod::ready)).await;
        let set = Self { members };
        set.initiate().await;
        set
    }

    async fn initiate(&self) {
        let hosts: Vec<_> = (0_i32..)
            .zip(&self.members)
            .map(|(id, member)| doc! { "_id": id, "host": member.address().to_string() })
            .collect();
        let config = doc! {
            "_id": "rs0",
            "members": hosts,
            "settings": {
                "electionTimeoutMillis": 3000,
                "heartbeatIntervalMillis": 500,
                "heartbeatTimeoutSecs": 2,
            },
        };
        let client = self.members[0].client().await;
        let answer = client.database("admin").run_command(doc! { "replSetInitiate": config }).await;
        answer.expect("a fresh set can be initiated");
        eventually(SETTLE, "every member to be primary or secondary", async || {
            let says = self.hello().await;
            let count = |role| says.iter().filter(|(_, it)| is(it, role)).count();
            let (primaries, secondaries) = (count("isWritablePrimary"), count("secondary"));
            (primaries == 1 && primaries + secondaries == self.members.len()).then_some(())
        })
        .await;
    }

    /// A connection string that names every member.
    pub fn uri(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|it| it.address().to_string()).collect();
        format!("mongodb://{}/?replicaSet=rs0", hosts.join(","))
    }

    /// [`uri`](Self::uri) with a default database.
    pub fn uri_for(&self, database: &str) -> String {
        with_database(&self.uri(), database)
    }

    /// A client of the set. It belongs to the runtime it was made on.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(self.uri()).await.expect("a sound connection string")
    }

    /// One member, counted from 0.
    pub fn member(&self, index: usize) -> &Mongod {
        &self.members[index]
    }

    /// Starts a killed member again, with its data, and waits until it is a
    /// secondary (or primary); it may still be catching up.
    ///
    /// # Panics
    ///
    /// Where it still runs, or does not come up.
    pub async fn restart(&self, index: usize) {
        self.members[index].restart().await;
        eventually(SETTLE, "the member to be back", async || {
            let says = self.hello().await;
            let (_, it) = says.iter().find(|(member, _)| *member == index)?;
            (is(it, "secondary") || is(it, "isWritablePrimary")).then_some(())
        })
        .await;
    }

    /// The member that is primary, waiting for one where there is none. Of two
    /// that say so, as after a pause, it is the one elected last.
    ///
    /// # Panics
    ///
    /// Where there is none within a minute.
    pub async fn primary(&self) -> usize {
        self.primary_where(|_| true).await
    }

    /// The member that is primary, waiting until it is another than `old`.
    ///
    /// # Panics
    ///
    /// Where there is none within a minute.
    pub async fn primary_other_than(&self, old: usize) -> usize {
        self.primary_where(|index| index != old).await
    }

    async fn primary_where(&self, wanted: impl Fn(usize) -> bool) -> usize {
        eventually(SETTLE, "a primary", async || {
            let primaries = self.hello().await.into_iter().filter_map(|(index, says)| {
                is(&says, "isWritablePrimary").then(|| (election(&says), index))
            });
            primaries.max().map(|(_, index)| index).filter(|index| wanted(*index))
        })
        .await
    }

    /// Makes the primary step down, as soon as another member can take over; it
    /// does not stand for election again for that many seconds (at least 2).
    /// The next primary may not be elected yet when this returns; in a set of
    /// one it is the same member after that time.
    ///
    /// # Panics
    ///
    /// Where no member can take over within a minute.
    pub async fn step_down(&self, seconds: u32) {
        let alone = self.members.len() == 1;
        let command = doc! {
            "replSetStepDown": seconds,
            "secondaryCatchUpPeriodSecs": i32::from(!alone),
            "force": alone,
        };
        eventually(SETTLE, "the primary to step down", async || {
            self.members[self.primary().await].run(command.clone()).await.ok()
        })
        .await;
    }

    /// Sets a fail point on the primary; `fail_point` is the whole command,
    /// `{ configureFailPoint: …, mode: …, data: … }`. A `failCommand` may name
    /// in its data the `appName` of the clients to hit; those of this module
    /// are `quotad-test-support`.
    ///
    /// # Panics
    ///
    /// Where the primary does not know it.
    pub async fn configure_fail_point(&self, fail_point: Document) {
        self.on_primary(fail_point).await;
    }

    /// Clears a fail point on every member that answers, for the primary may
    /// be another by now.
    ///
    /// # Panics
    ///
    /// Where a member does not know it.
    pub async fn fail_point_off(&self, name: &str) {
        for (index, _) in self.hello().await {
            let off = doc! { "configureFailPoint": name, "mode": "off" };
            self.members[index].run(off).await.expect("a fail point can be cleared");
        }
    }

    async fn on_primary(&self, command: Document) {
        let primary = &self.members[self.primary().await];
        let name = command.keys().next().cloned().unwrap_or_default();
        if let Err(error) = primary.run(command).await {
            panic!("{name} on {}: {error}", primary.address());
        }
    }

    /// What each member that answers says about itself.
    async fn hello(&self) -> Vec<(usize, Document)> {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.is_running());
        let asked = running.map(async |(index, member)| {
            let says = tokio::time::timeout(HELLO, member.run(doc! { "hello": 1 })).await;
            Some((index, says.ok()?.ok()?))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

/// Whether a member's `hello` claims that role.
fn is(says: &Document, role: &str) -> bool {
    says.get_bool(role).unwrap_or(false)
}

/// Grows with every election; a secondary has none.
fn election(says: &Document) -> Option<ObjectId> {
    says.get_object_id("electionId").ok()
}
