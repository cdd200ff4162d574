//! The languages that the README has a snippet in, set up as the README says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{install_once, run, target_dir};

/// Where the snippets live.
const FOLDER: &str = "deploy/snippets";

/// A language with a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
    Go,
}

impl Language {
    pub const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Go];

    /// The snippet's path in the repository.
    pub fn snippet(self) -> String {
        format!("{FOLDER}/{}", self.files()[0])
    }

    /// What the README calls the snippet's language.
    pub fn fence(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "js",
            Self::Go => "go",
        }
    }

    /// What a user types once.
    pub fn setup(self) -> &'static str {
        match self {
            Self::Python => PYTHON_SETUP,
            Self::Node => "npm ci --prefix deploy/snippets\n",
            Self::Go => GO_SETUP,
        }
    }

    /// What a user types to run it.
    pub fn run(self) -> &'static str {
        match self {
            Self::Python => "python deploy/snippets/lock.py",
            Self::Node => "node deploy/snippets/lock.mjs",
            Self::Go => "deploy/snippets/lock",
        }
    }

    /// The snippet and what it needs.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["lock.py", "requirements.txt"],
            Self::Node => &["lock.mjs", "package.json", "package-lock.json"],
            Self::Go => &["lock.go", "go.mod", "go.sum", "requirements.txt"],
        }
    }

    /// The command that runs the snippet; the process is the snippet's own.
    ///
    /// # Errors
    ///
    /// Why the language cannot be set up.
    pub fn command(self) -> Result<Command, &'static str> {
        static SET_UP: [OnceLock<Result<PathBuf, String>>; 3] = [const { OnceLock::new() }; 3];
        let home = SET_UP[self as usize].get_or_init(|| self.set_up());
        let mut command = shell(home.as_deref().map_err(String::as_str)?);
        command.arg(format!("exec {}", self.run()));
        Ok(command)
    }

    /// A folder where the setup was done, once for every state of the files.
    fn set_up(self) -> Result<PathBuf, String> {
        let mut files = Vec::new();
        for file in self.files() {
            files.push(read(&format!("{FOLDER}/{file}"))?);
        }
        for entry in fs::read_dir(repository().join("proto/quota/v1")).map_err(text)? {
            let name = entry.map_err(text)?.file_name();
            files.push(read(&format!("proto/quota/v1/{}", name.to_string_lossy()))?);
        }
        files.sort();
        let state = crc32fast::hash(format!("{} {files:?}", self.setup()).as_bytes());
        let tools = target_dir().join("tools").join(format!("snippets-{}", self.fence()));
        install_once(&tools, &format!("{state:08x}"), |scratch| {
            // Moved when it is complete, which its Python does not mind.
            let home = scratch.join("home");
            for (path, content) in &files {
                let path = home.join(path);
                fs::create_dir_all(path.parent().expect("a folder")).map_err(text)?;
                fs::write(path, content).map_err(text)?;
            }
            if self != Self::Node {
                run(Command::new("python3").args(["-m", "venv"]).arg(home.join("bin/venv")))?;
            }
            run(shell(&home).arg(self.setup()))?;
            Ok(home)
        })
    }
}

/// Each file is named: `protoc` takes no folders.
const PYTHON_SETUP: &str = "\
pip install -r deploy/snippets/requirements.txt
python -m grpc_tools.protoc -I proto --python_out=deploy/snippets --grpc_python_out=deploy/snippets \\
  quota/v1/limit_status.proto quota/v1/reservation.proto quota/v1/quota_service.proto
";

/// The contract names no Go package: it is the caller's choice where the code
/// goes.
const GO_SETUP: &str = "\
pip install -r deploy/snippets/requirements.txt   # has protoc
go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1
export PATH=\"$PATH:$(go env GOPATH)/bin\" to=./quotav1
go=Mquota/v1/limit_status.proto=$to,Mquota/v1/reservation.proto=$to,Mquota/v1/quota_service.proto=$to
python -m grpc_tools.protoc -I proto --go_out=$go:deploy/snippets --go-grpc_out=$go:deploy/snippets \\
  quota/v1/limit_status.proto quota/v1/reservation.proto quota/v1/quota_service.proto
(cd deploy/snippets && go build -o lock lock.go)
";

/// A shell in `home`, whose programs it finds first.
fn shell(home: &Path) -> Command {
    let bins = [home.join("bin/venv/bin"), home.join("bin")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(bins.into_iter().chain(std::env::split_paths(&path)));
    let mut command = Command::new("sh");
    command.current_dir(home).env("PATH", path.expect("a sound PATH"));
    command.env("GOBIN", home.join("bin")).env("GOFLAGS", "-buildvcs=false");
    command.args(["-e", "-c"]);
    command
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The file of that path in the repository, with its path.
fn read(path: &str) -> Result<(String, String), String> {
    let content = fs::read_to_string(repository().join(path));
    Ok((path.to_owned(), content.map_err(|error| format!("{path}: {error}"))?))
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
