//! Nothing that a test starts outlives it.
//!
//! `Drop` is not enough: statics are never dropped, and a test process that is
//! killed drops nothing. So each test process keeps one small shell beside it,
//! tells it through a pipe what runs, and the shell kills that, and removes the
//! process's folder, once the pipe closes, which no end of a process avoids.
//! (`PR_SET_PDEATHSIG` would do half of this, but needs `unsafe`.)

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::poll::eventually_blocking;

const SCRIPT: &str = r#"
running=' '
while read -r change pid; do
    case $change in
        +) running="$running$pid " ;;
        -) running="${running%% $pid *} ${running#* $pid }" ;;
    esac
done
for pid in $running; do kill -9 "$pid"; done
rm -rf -- "$1"
"#;

struct Reaper {
    shell: Mutex<Child>,
    folder: PathBuf,
}

impl Reaper {
    fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("quotad-test-")
            .tempdir()
            .expect("a temporary folder")
            .keep();
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "reaper"])
            .arg(&folder)
            .stdin(Stdio::piped())
            // A pipe of the test runner held open here would keep it waiting.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is sent to the tests' process group must not hit the reaper.
            .process_group(0)
            .spawn()
            .expect("sh starts");
        Self { shell: Mutex::new(shell), folder }
    }

    fn watch(&self, pid: u32) {
        self.order('+', pid).expect("the reaper listens");
    }

    fn forget(&self, pid: u32) {
        // Runs in `Drop` too, where a panic would hide the first one.
        let _ = self.order('-', pid);
    }

    fn order(&self, change: char, pid: u32) -> std::io::Result<()> {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = shell.stdin.as_mut().expect("stdin is a pipe");
        // One write for one line: a process that is killed leaves no half.
        orders.write_all(format!("{change} {pid}\n").as_bytes())
    }
}

fn reaper() -> &'static Reaper {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    REAPER.get_or_init(Reaper::start)
}

/// A folder that goes away when dropped, or else with the test process.
pub fn temporary_folder() -> TempDir {
    TempDir::new_in(&reaper().folder).expect("a temporary folder")
}

/// A child process that dies when dropped, or else with the test process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Panics
    ///
    /// Where the program does not start.
    pub fn spawn(command: &mut Command) -> Self {
        let reaper = reaper();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        reaper.watch(child.id());
        Self { child, ended: None }
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
            if self.ended.is_some() {
                // From here on the number may belong to somebody else.
                reaper().forget(self.child.id());
            }
        }
        self.ended
    }

    /// `SIGKILL`, and waits until it is gone. Nothing happens to one that has
    /// ended.
    pub fn kill9(&mut self) {
        if self.ended().is_none() {
            self.child.kill().expect("a child can be killed");
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
            reaper().forget(self.child.id());
        }
    }

    /// `SIGTERM`.
    pub fn terminate(&mut self) {
        self.signal("TERM");
    }

    /// `SIGSTOP`; back once it stands still.
    pub fn pause(&mut self) {
        self.signal("STOP");
        let status = format!("/proc/{}/stat", self.id());
        if Path::new(&status).exists() {
            eventually_blocking(Duration::from_secs(10), "a process to stop", || {
                let stat = std::fs::read_to_string(&status).ok()?;
                stat.rsplit(") ").next()?.starts_with('T').then_some(())
            });
        }
    }

    /// `SIGCONT`.
    pub fn resume(&mut self) {
        self.signal("CONT");
    }

    fn signal(&mut self, name: &str) {
        assert!(self.ended().is_none(), "SIG{name} for a process that has ended");
        // The shell's own `kill`: the program is missing on slim images.
        let status = Command::new("sh")
            .args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &self.id().to_string()])
            .status()
            .expect("sh starts");
        assert!(status.success(), "kill -s {name} failed: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}
