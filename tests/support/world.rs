//! A world for one case: servers over a store, clients that speak gRPC to them
//! over TCP, a clock that the case may move, and the promises checked at the
//! end.

#![allow(dead_code)]

#[path = "world/calls.rs"]
mod calls;
#[path = "world/leases.rs"]
mod leases;
#[path = "world/lists.rs"]
mod lists;
#[path = "world/operators.rs"]
mod operators;
#[path = "world/paused.rs"]
mod paused;
#[path = "world/promises.rs"]
mod promises;
#[path = "world/refused.rs"]
mod refused;
#[path = "world/rules.rs"]
mod rules;
#[path = "world/subjects.rs"]
mod subjects;
#[path = "world/trail.rs"]
mod trail;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quota_authority::domain::time::{Span, Time};
use quota_authority::engine::Settings;
use quota_authority::server::{Server, StoreAddress, StoreClock};
use quota_authority::store::Store as _;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::embedded::EmbeddedStore;
use quota_authority::store::memory::MemoryStore;
use quota_authority::store::mongo::MongoStore;
use quota_authority::store::{SharedStore, TestClock};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::support;

pub use calls::{Client, Reserve, at_once, dims};
pub use paused::PausedStore;
pub use quota_authority::proto::v1;
pub use refused::{Denied, Refused};
pub use rules::{LimitRule, Rules, limit};
pub use subjects::{Owner, owner, period, user};

/// Where a manual clock stands at first: an instant that lies in the middle of
/// hour, day, week, month and year.
pub const START: &str = "2024-05-15T12:30:00Z";

/// How long anything that was told to stop may take.
const STOPPING: Duration = Duration::from_secs(30);

/// Servers over one store, and what a case does to them.
pub struct World {
    /// A namespace of the case's own.
    pub namespace: String,
    home: Home,
    settings: Settings,
    servers: Vec<Running>,
    clock: Option<Hands>,
    log: calls::Log,
    ids: AtomicUsize,
}

/// What outlives a server.
enum Home {
    /// A store that lives as long as this process.
    Process(SharedStore),
    /// A folder; the store is open while a server runs over it.
    Folder { folder: TempDir, store: Option<SharedStore> },
    /// A database; every server has a connection of its own, as every process
    /// would.
    Database { uri: String, database: String },
}

/// What moves a clock that stands still by itself.
enum Hands {
    /// A clock of this process.
    Own(ManualClock),
    /// The test clock that the servers share through the store.
    Shared,
}

/// The value that is the test clock.
const SHARED: &str = "test_clock";

/// A server at work.
struct Running {
    server: Server,
    store: SharedStore,
    channel: Channel,
}

impl World {
    /// One server over a store in memory, under a clock that stands still.
    pub async fn memory() -> Self {
        let clock = ManualClock::at(instant(START));
        let store = MemoryStore::new(Clock::Manual(clock.clone()));
        let clock = Some(Hands::Own(clock));
        Self::build(Home::Process(Arc::new(store)), clock, Settings::default()).await
    }

    /// One server over an embedded store, under a clock that stands still.
    pub async fn embedded() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = Home::Folder { folder, store: None };
        let clock = Some(Hands::Own(ManualClock::at(instant(START))));
        Self::build(home, clock, Settings::default()).await
    }

    /// One server over a database of its own, under the database's clock.
    pub async fn mongo() -> Self {
        let database = support::mongo().fresh_database();
        let uri = support::mongo().uri_for(&database);
        Self::build(Home::Database { uri, database }, None, Settings::default()).await
    }

    /// One server over a database of its own, under a test clock, which stands
    /// still.
    pub async fn mongo_with_test_clock() -> Self {
        let database = support::mongo().fresh_database();
        let uri = support::mongo().uri_for(&database);
        set_shared(&uri, START).await;
        let home = Home::Database { uri, database };
        Self::build(home, Some(Hands::Shared), Settings::default()).await
    }

    /// One server over this store, which reads its own clock.
    pub async fn over(store: SharedStore, settings: Settings) -> Self {
        Self::build(Home::Process(store), None, settings).await
    }

    async fn build(home: Home, clock: Option<Hands>, settings: Settings) -> Self {
        let mut world = Self {
            namespace: "case".to_owned(),
            home,
            settings,
            servers: Vec::new(),
            clock,
            log: calls::Log::default(),
            ids: AtomicUsize::new(1),
        };
        world.add_server().await;
        world
    }

    /// Starts one more server over the same store.
    pub async fn add_server(&mut self) {
        let store = self.open().await;
        self.add_server_over(store).await;
    }

    /// Starts one more server over a store that leads to the same records.
    pub async fn add_server_over(&mut self, store: SharedStore) {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::over(Arc::clone(&store), listen, self.settings).await;
        let server = server.expect("a server on a free port");
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address));
        let channel = endpoint.expect("an address").connect().await.expect("a connection");
        self.servers.push(Running { server, store, channel });
    }

    async fn open(&mut self) -> SharedStore {
        match &mut self.home {
            Home::Process(store) => Arc::clone(store),
            Home::Database { uri, .. } => {
                let clock = match self.clock {
                    Some(Hands::Shared) => StoreClock::Test(None),
                    _ => StoreClock::Own,
                };
                StoreAddress::MongoDb(uri.clone()).open(clock).await.expect("MongoDB")
            }
            Home::Folder { folder, store } => {
                if let Some(store) = store {
                    return Arc::clone(store);
                }
                let Some(Hands::Own(clock)) = &self.clock else {
                    panic!("an embedded world has a manual clock")
                };
                // A server that has just ended may still hold the file.
                let opened = support::eventually(STOPPING, "the file to be free", async || {
                    EmbeddedStore::open(folder.path(), Clock::Manual(clock.clone())).ok()
                });
                let opened: SharedStore = Arc::new(opened.await);
                *store = Some(Arc::clone(&opened));
                opened
            }
        }
    }

    /// Stops every server, lets go of the store, and starts as many again.
    pub async fn restart(&mut self) {
        let count = self.servers.len();
        self.stop().await;
        for _ in 0..count {
            self.add_server().await;
        }
    }

    /// Starts the servers afresh, with other bounds.
    pub async fn under(&mut self, settings: Settings) {
        self.settings = settings;
        self.restart().await;
    }

    async fn stop(&mut self) {
        for Running { mut server, channel, store } in self.servers.drain(..) {
            drop(channel);
            server.stop();
            let ended = tokio::time::timeout(STOPPING, server.ended()).await;
            ended.expect("the server ends when told to").expect("the server ends in good order");
            drop(store);
        }
        if let Home::Folder { store, .. } = &mut self.home {
            *store = None;
        }
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// A client of the server of that number, counted on round the servers.
    pub fn client(&self, server: usize) -> Client {
        let channel = self.servers[server % self.servers.len()].channel.clone();
        Client::new(self.namespace.clone(), channel, self.log.clone())
    }

    /// Where the server of that number listens.
    pub fn address(&self, server: usize) -> SocketAddr {
        self.servers[server].server.address
    }

    /// A client with a connection of its own, to a server or what stands before
    /// it.
    pub async fn client_at(&self, address: SocketAddr) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        Client::new(self.namespace.clone(), channel, self.log.clone())
    }

    /// An id that nobody has used.
    pub fn fresh(&self) -> String {
        format!("id-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the case can move the clock.
    pub fn manual(&self) -> bool {
        self.clock.is_some()
    }

    /// How often: the full number where a write costs next to nothing, less
    /// where it is a transaction or reaches the disk.
    pub fn rounds(&self, full: usize, fewer: usize) -> usize {
        if matches!(self.home, Home::Process(_)) { full } else { fewer }
    }

    /// The first server's store.
    pub fn store(&self) -> &SharedStore {
        &self.servers[0].store
    }

    /// The store's time.
    pub fn now(&self) -> Time {
        self.servers[0].store.now()
    }

    /// Moves the clock on to this time.
    pub async fn set(&self, time: &str) {
        let time = instant(time);
        assert!(time >= self.now(), "a server's time never runs back: {time}");
        match self.clock.as_ref().expect("a clock to set") {
            Hands::Own(clock) => clock.set(time),
            Hands::Shared => drop(self.shared().set(time).await.expect("the clock is set")),
        }
    }

    fn shared(&self) -> Arc<TestClock> {
        self.servers[0].store.test_clock().expect("a store under a test clock")
    }

    /// Sets the clock, backwards too, and starts the servers afresh: while one
    /// runs, its time never runs back. Clients from before are of no use then.
    pub async fn begin_at(&mut self, time: &str) {
        let count = self.servers.len();
        self.stop().await;
        match (self.clock.as_ref().expect("a clock to set"), &self.home) {
            (Hands::Own(clock), _) => clock.set(instant(time)),
            (Hands::Shared, Home::Database { uri, .. }) => set_shared(uri, time).await,
            (Hands::Shared, _) => panic!("only databases have a shared clock here"),
        }
        for _ in 0..count {
            self.add_server().await;
        }
    }

    /// Lets time pass: by moving the clock, or by watching the store's until it
    /// has moved.
    pub async fn pass(&self, span: Span) {
        match &self.clock {
            Some(Hands::Own(clock)) => return clock.advance(span),
            Some(Hands::Shared) => {
                self.shared().advance(span).await.expect("the clock is moved");
                return;
            }
            None => {}
        }
        let until = self.now().plus(span);
        let patience = Duration::from_millis(span.as_millis().unsigned_abs()) + STOPPING;
        support::eventually(patience, "time to pass", async || (self.now() >= until).then_some(()))
            .await;
    }

    /// What a case calls a second: shorter by `factor` where time is real.
    pub fn second(&self, factor: i64) -> Span {
        Span::from_millis(if self.manual() { 1000 } else { 1000 / factor })
    }

    /// Plays a case, then holds the world to its promises and ends it.
    pub async fn play(mut self, case: impl AsyncFnOnce(&mut Self)) {
        case(&mut self).await;
        self.keeps_its_promises().await;
        self.stop().await;
        if let Home::Database { database, .. } = &self.home {
            let client = support::mongo().client().await;
            client.database(database).drop().await.expect("the database goes");
        }
    }
}

/// Sets the test clock of a database that no server runs on, backwards too,
/// which no server would do.
async fn set_shared(uri: &str, time: &str) {
    let store = MongoStore::connect(uri).await.expect("MongoDB");
    let present = store.value(SHARED).await.expect("the clock, if there is one");
    let swapped = store.swap(SHARED, present, instant(time).as_millis()).await;
    assert_eq!(swapped, Ok(true), "nobody else moves it");
    store.close().await;
}

/// The instant of an RFC 3339 text.
pub fn instant(text: &str) -> Time {
    let timestamp: jiff::Timestamp = text.parse().expect("an RFC 3339 instant");
    Time::from_millis(timestamp.as_millisecond()).expect("an instant within bounds")
}

/// The RFC 3339 text of a protobuf timestamp.
pub fn text(timestamp: Option<&prost_types::Timestamp>) -> String {
    let timestamp = timestamp.expect("a timestamp");
    let nanos = i64::from(timestamp.nanos);
    assert_eq!(nanos % 1_000_000, 0, "whole milliseconds");
    Time::saturating(timestamp.seconds * 1000 + nanos / 1_000_000).to_string()
}

/// Start and end of a window, in RFC 3339.
pub fn bounds(window: Option<&v1::Window>) -> (String, String) {
    let window = window.expect("a window");
    (text(window.start_time.as_ref()), text(window.end_time.as_ref()))
}

/// Two instants, as [`bounds`] gives them.
pub fn pair(start: &str, end: &str) -> (String, String) {
    (start.to_owned(), end.to_owned())
}

/// The starts of two days.
pub fn days(start: &str, end: &str) -> (String, String) {
    (format!("{start}T00:00:00Z"), format!("{end}T00:00:00Z"))
}

/// So many times a span.
pub fn times(span: Span, count: i64) -> Span {
    Span::from_millis(span.as_millis() * count)
}

/// Makes tests of cases, each on the stores that its list names.
macro_rules! cases {
    (
        $(every_store: [$($every:ident),* $(,)?],)?
        $(manual_clock: [$($manual:ident),* $(,)?],)?
        $(mongo_only: [$($mongo:ident),* $(,)?],)?
    ) => {
        mod memory {
            $($(crate::world::case!(memory, $every);)*)?
            $($(crate::world::case!(memory, $manual);)*)?
        }
        mod embedded {
            $($(crate::world::case!(embedded, $every);)*)?
            $($(crate::world::case!(embedded, $manual);)*)?
        }
        mod mongo {
            $($(crate::world::case!(mongo, $every);)*)?
            $($(crate::world::case!(mongo, $mongo);)*)?
            $($(crate::world::case!(mongo_with_test_clock, $manual);)*)?
        }
    };
}

macro_rules! case {
    ($store:ident, $case:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            crate::world::World::$store().await.play(super::$case).await;
        }
    };
}

pub(crate) use {case, cases};
