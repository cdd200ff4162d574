//! The MongoDB that the tests of one binary share.

use std::env;
use std::sync::OnceLock;
use std::thread;

use bson::doc;
use bson::oid::ObjectId;
use mongodb::Client;

use super::replica_set::ReplicaSet;

/// Names a server to use as it is.
const URI: &str = "QUOTAD_TEST_MONGODB_URI";

/// A replica set for everybody: each test works in a database of its own, and
/// none may disturb the server. For that there is [`ReplicaSet::start`].
#[derive(Debug)]
pub struct SharedMongo {
    uri: String,
    /// `None` where the server is not ours.
    set: Option<ReplicaSet>,
}

/// The shared server of this test binary: the one `QUOTAD_TEST_MONGODB_URI`
/// names, else a set of one member, started by the first test that asks.
/// Blocks while it starts.
///
/// # Panics
///
/// Where there is none. A test that would rather skip itself asks
/// [`SharedMongo::to_be_had`] first.
pub fn mongo() -> &'static SharedMongo {
    static SHARED: OnceLock<SharedMongo> = OnceLock::new();
    SHARED.get_or_init(|| {
        // A thread of its own: the caller may be inside a runtime, where none
        // can be entered.
        let started = thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(SharedMongo::start())
        });
        started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl SharedMongo {
    /// Whether [`mongo`] has anything to work with.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn to_be_had() -> Result<(), &'static str> {
        match given() {
            Some(_) => Ok(()),
            None => super::mongod::mongod_binary().map(|_| ()),
        }
    }

    async fn start() -> Self {
        let Some(uri) = given() else {
            let set = ReplicaSet::start(1, &[]).await;
            return Self { uri: set.uri(), set: Some(set) };
        };
        let client = Client::with_uri_str(&uri).await;
        let client = client.unwrap_or_else(|error| panic!("{URI}: {error}"));
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
        let hello = hello.unwrap_or_else(|error| panic!("{URI}: {error}"));
        let transactions =
            hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|it| it == "isdbgrid");
        assert!(transactions, "{URI} names a standalone server: it needs a replica set");
        Self { uri, set: None }
    }

    /// Its connection string.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Its connection string with a default database.
    pub fn uri_for(&self, database: &str) -> String {
        with_database(&self.uri, database)
    }

    /// The name of a database that nobody else uses.
    pub fn fresh_database(&self) -> String {
        format!("quotad_test_{}", ObjectId::new().to_hex())
    }

    /// A client. It belongs to the runtime it was made on: each test has its
    /// own, so each test makes one.
    pub async fn client(&self) -> Client {
        Client::with_uri_str(&self.uri).await.expect("a sound connection string")
    }

    /// The set behind it, to look at; `None` where the server is not ours.
    pub fn replica_set(&self) -> Option<&ReplicaSet> {
        self.set.as_ref()
    }
}

fn given() -> Option<String> {
    env::var(URI).ok().filter(|uri| !uri.is_empty())
}

/// A connection string with its default database set to `database`.
pub fn with_database(uri: &str, database: &str) -> String {
    let hosts = uri.find("://").map_or(0, |scheme| scheme + 3);
    let (uri, options) = uri.split_once('?').map_or((uri, ""), |(uri, options)| (uri, options));
    let end = uri[hosts..].find('/').map_or(uri.len(), |slash| hosts + slash);
    let question = if options.is_empty() { "" } else { "?" };
    format!("{}/{database}{question}{options}", &uri[..end])
}
