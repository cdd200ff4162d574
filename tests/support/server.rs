//! The real `quotad` as a child process.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use super::poll::eventually;
use super::reaper::{Process, temporary_folder};

const BINARY: &str = env!("CARGO_BIN_EXE_quotad");
/// How long a server may take to listen: it may have to wait for its store.
const START: Duration = Duration::from_mins(1);

/// A `quotad serve`. It dies with the value or the test process; where the
/// test panics, what it logged is printed.
#[derive(Debug)]
pub struct Server {
    process: Process,
    stdout: Output,
    stderr: Output,
    address: Option<SocketAddr>,
    /// The working folder, so that nothing lands in the repository.
    folder: TempDir,
}

impl Server {
    /// Starts `quotad serve` with `args` on a free port, or on the one that
    /// `args` give with `--listen`, and waits until it listens. Relative paths
    /// in `args` start from an empty folder; no `QUOTAD_…` variable reaches the
    /// server but those in `env`.
    ///
    /// # Panics
    ///
    /// Where it ends or does not get there, with its log.
    pub async fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut server = Self::spawn(args, env);
        server.listening(START).await;
        server
    }

    /// [`start`](Self::start) without waiting: for a server that is to refuse,
    /// or that waits for its store.
    pub fn spawn(args: &[&str], env: &[(&str, &str)]) -> Self {
        let folder = temporary_folder();
        let mut command = Command::new(BINARY);
        command.arg("serve");
        if !args.iter().any(|arg| arg.starts_with("--listen")) {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        clean_environment(&mut command, env);
        let mut process = Process::spawn(
            command
                .args(args)
                .current_dir(folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let child = process.child();
        let stdout = Output::of(child.stdout.take().expect("stdout is a pipe"));
        let stderr = Output::of(child.stderr.take().expect("stderr is a pipe"));
        Self { process, stdout, stderr, address: None, folder }
    }

    /// Waits until it logs that it listens.
    ///
    /// # Panics
    ///
    /// Where it ends, or `deadline` passes.
    pub async fn listening(&mut self, deadline: Duration) -> SocketAddr {
        let address = eventually(deadline, "quotad to listen", async || {
            let ended = self.process.ended();
            let address = self.stderr.text().lines().find_map(listening_address);
            assert!(
                address.is_some() || ended.is_none(),
                "quotad ended before it listened: {ended:?}"
            );
            address
        })
        .await;
        self.address = Some(address);
        address
    }

    /// Where it listens.
    ///
    /// # Panics
    ///
    /// Where nobody has waited for that yet.
    pub fn address(&self) -> SocketAddr {
        self.address.expect("the server was awaited with listening()")
    }

    /// The same as a URI.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// A connection to it, which connects again by itself when it breaks.
    ///
    /// # Panics
    ///
    /// As [`address`](Self::address) does, and where it cannot connect.
    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.endpoint()).expect("a sound URI");
        endpoint
            .connect_timeout(Duration::from_secs(10))
            .connect()
            .await
            .unwrap_or_else(|error| panic!("no connection to {}: {error:?}", self.address()))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// `SIGKILL`; back once it is gone.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// `SIGTERM`: it is to finish what it has begun.
    pub fn sigterm(&mut self) {
        self.process.terminate();
    }

    /// `SIGSTOP`: it stands still and its sockets stay open.
    pub fn sigstop(&mut self) {
        self.process.pause();
    }

    /// `SIGCONT`.
    pub fn sigcont(&mut self) {
        self.process.resume();
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Waits until it ends. Everything it logged is in [`log`](Self::log)
    /// then.
    ///
    /// # Panics
    ///
    /// Where `deadline` passes.
    pub async fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let ended = eventually(deadline, "quotad to end", async || self.process.ended()).await;
        self.stdout.finish();
        self.stderr.finish();
        ended
    }

    /// What it has logged so far: its stderr.
    pub fn log(&self) -> String {
        self.stderr.text()
    }

    /// The lines of its log that are JSON, as JSON.
    pub fn log_records(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// What it has printed so far: its stdout.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill9();
        if thread::panicking() {
            self.stderr.finish();
            eprintln!("--- log of quotad {} ---\n{}---", self.process.id(), self.log());
        }
    }
}

/// What one run of `quotad` printed, and how it ended.
#[derive(Clone, Debug)]
pub struct Quotad {
    /// The exit code; -1 after a signal.
    pub code: i32,
    /// Its data.
    pub stdout: String,
    /// Its talk.
    pub stderr: String,
}

/// Runs a command of `quotad` to its end, for example
/// `quotad(&["usage", "--json"], &[])`. No `QUOTAD_…` variable reaches it but
/// those in `env`. Blocks.
pub fn quotad(args: &[&str], env: &[(&str, &str)]) -> Quotad {
    let mut command = Command::new(BINARY);
    clean_environment(&mut command, env);
    let output = command.args(args).stdin(Stdio::null()).output().expect("quotad starts");
    Quotad {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The settings of whoever runs the tests are none of theirs.
fn clean_environment(command: &mut Command, env: &[(&str, &str)]) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUOTAD_") {
            command.env_remove(name);
        }
    }
    command.envs(env.iter().copied());
}

/// The address in the log line that says `listening`.
fn listening_address(line: &str) -> Option<SocketAddr> {
    let record: Value = serde_json::from_str(line).ok()?;
    let field = |name: &str| {
        let inner = record.get("fields").and_then(|fields| fields.get(name));
        inner.or_else(|| record.get(name)).and_then(Value::as_str)
    };
    (field("message")? == "listening").then(|| field("address")?.parse().ok())?
}

/// A pipe that a thread keeps empty, since a full one would stop the child.
#[derive(Debug)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            // Whole lines only, so that nobody parses half a record.
            while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                lock(&sink).append(&mut line);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    /// Reads on to the end: the child must have ended.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}
