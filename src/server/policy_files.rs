//! Policy files: put in force before the server listens, and again whenever
//! they change.
//!
//! Each file is read anew every so often. To be told of changes would be
//! quicker, but a file that changes is seldom the same file: editors write
//! another one and rename it, and Kubernetes swaps a symlink two folders above,
//! so that whoever watches the file watches what is no longer there. Reading a
//! few kilobytes by name is right in all of these cases.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::api::policy_file;
use crate::domain::name::quoted;
use crate::domain::policy::PolicySpec;
use crate::domain::refusal::Refusal;
use crate::engine::{Engine, Error};

/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(250);
/// How long a store that does not answer is waited for at the start.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);
/// How often a policy is tried while others are first.
const ATTEMPTS: u32 = 16;

/// Policy files of a server.
#[derive(Clone, Debug, Default)]
pub struct PolicyFiles {
    files: Vec<PolicyFile>,
    /// Whether they replace what was applied by a call.
    force: bool,
}

#[derive(Clone, Debug)]
struct PolicyFile {
    path: PathBuf,
    namespace: String,
    /// What it says and is not in force yet.
    pending: Option<PolicySpec>,
    /// What it said before that: where this is what is in force, whoever
    /// applied it, what the file says next follows from it.
    said: Option<PolicySpec>,
    /// The content that was looked into last.
    known: Vec<u8>,
    /// The content at the last look.
    seen: Vec<u8>,
    /// Its trouble was told; not again until it is over.
    troubled: bool,
}

/// What came of a policy.
enum Outcome {
    InForce { revision: i64, changed: bool },
    Kept { revision: i64, principal: String },
}

impl PolicyFiles {
    /// Reads files, and finds everything that is wrong with them.
    ///
    /// # Errors
    ///
    /// Every fault, one a line, as `file:line:column: …`; also when two files
    /// are for one namespace.
    pub fn read(
        paths: impl IntoIterator<Item = PathBuf>,
        force: bool,
    ) -> Result<Self, Vec<String>> {
        let (mut files, mut faults) = (Vec::<PolicyFile>::new(), Vec::new());
        for path in paths {
            let content = content(&path);
            match content.and_then(|content| Ok((parse(&path, &content)?, content))) {
                Ok((spec, content)) => {
                    let namespace = spec.namespace.clone();
                    if let Some(other) = files.iter().find(|file| file.namespace == namespace) {
                        faults.push(taken(&path, &namespace, &other.path));
                    }
                    files.push(PolicyFile {
                        path,
                        namespace,
                        pending: Some(spec),
                        said: None,
                        known: content.clone(),
                        seen: content,
                        troubled: false,
                    });
                }
                Err(more) => faults.extend(more),
            }
        }
        if faults.is_empty() { Ok(Self { files, force }) } else { Err(faults) }
    }

    /// Puts the policies in force, as far as they may be.
    ///
    /// # Errors
    ///
    /// The store does not answer, or not in time.
    pub(super) async fn apply(&mut self, engine: &Engine) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for file in &mut self.files {
            loop {
                match file.settle(engine, self.force).await {
                    Ok(()) => break,
                    Err(error) if passing(&error) && Instant::now() < deadline => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(error) => {
                        let path = file.path.display();
                        return Err(error).context(format!("{path} could not be applied"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at the files for ever, and puts in force what they come to say.
    pub(super) async fn watch(mut self, engine: Arc<Engine>) {
        while !self.files.is_empty() {
            tokio::time::sleep(LOOK).await;
            for n in 0..self.files.len() {
                let looked = self.look(n).await;
                let file = &mut self.files[n];
                let settled = match looked {
                    Ok(()) => file.settle(&engine, self.force).await.map_err(|e| e.to_string()),
                    trouble => trouble,
                };
                file.tell(settled.err());
            }
        }
    }

    /// Takes up what a file says, if it has changed.
    async fn look(&mut self, n: usize) -> Result<(), String> {
        let path = self.files[n].path.clone();
        let read = tokio::task::spawn_blocking(move || content(&path)).await;
        let file = &mut self.files[n];
        let content = read.map_err(|error| error.to_string())?;
        let content = content.map_err(|faults| faults.join("; "))?;
        if content != file.seen {
            // Perhaps half of it is written. What it says counts once it has
            // stayed the same.
            file.seen = content;
            return Ok(());
        }
        if content == file.known {
            return Ok(());
        }
        file.known.clone_from(&content);
        file.pending = None;
        match parse(&file.path, &content) {
            Ok(spec) => self.take_up(n, spec),
            Err(faults) => {
                for fault in faults {
                    error!("{fault}");
                }
                error!(file = %file.path.display(), "faulty; the policy in force stays");
            }
        }
        Ok(())
    }

    fn take_up(&mut self, n: usize, spec: PolicySpec) {
        let taken_by =
            |(m, other): &(usize, &PolicyFile)| *m != n && other.namespace == spec.namespace;
        if let Some((_, other)) = self.files.iter().enumerate().find(taken_by) {
            error!("{}", taken(&self.files[n].path, &spec.namespace, &other.path));
            return;
        }
        let file = &mut self.files[n];
        if file.namespace != spec.namespace {
            let (before, now) = (quoted(&file.namespace), quoted(&spec.namespace));
            warn!(
                file = %file.path.display(),
                "it is for namespace {now} now; the policy of {before} stays as it is"
            );
        }
        file.namespace.clone_from(&spec.namespace);
        file.pending = Some(spec);
    }
}

impl PolicyFile {
    /// Puts in force what is pending, if it may be.
    async fn settle(&mut self, engine: &Engine, force: bool) -> Result<(), Error> {
        let Some(spec) = &self.pending else { return Ok(()) };
        let file = self.path.display();
        let said = self.said.as_ref();
        let outcome = put_in_force(engine, spec, said, &self.principal(), force).await?;
        let namespace = &self.namespace;
        match outcome {
            Outcome::InForce { revision, changed: true } => {
                info!(%file, namespace, revision, "applied a policy file");
            }
            Outcome::InForce { revision, changed: false } => {
                info!(%file, namespace, revision, "a policy file is in force already");
            }
            Outcome::Kept { revision, principal } => warn!(
                %file,
                namespace,
                revision,
                "not applied: revision {revision} was applied by a call of {principal}, and stays. \
                 To replace it, run quotad policy apply -f {file}, or serve with --policy-force"
            ),
        }
        self.said = self.pending.take();
        Ok(())
    }

    /// Who a revision is by.
    fn principal(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        format!("file:{}", name.to_string_lossy())
    }

    /// Tells of a trouble once, and of its end.
    fn tell(&mut self, trouble: Option<String>) {
        match trouble {
            Some(trouble) if !self.troubled => {
                let file = self.path.display();
                warn!(%file, "the policy in force stays: {trouble}");
                self.troubled = true;
            }
            Some(_) => {}
            None => self.troubled = false,
        }
    }
}

/// A file never replaces what was applied by a call, unless it is forced.
async fn put_in_force(
    engine: &Engine,
    spec: &PolicySpec,
    said: Option<&PolicySpec>,
    principal: &str,
    force: bool,
) -> Result<Outcome, Error> {
    for _ in 0..ATTEMPTS {
        let expected = match engine.policy(&spec.namespace, 0).await {
            Err(Error::Refused(Refusal::NamespaceNotFound { .. })) => -1,
            Err(error) => return Err(error),
            Ok(current) if current.spec == *spec => {
                return Ok(Outcome::InForce { revision: current.revision, changed: false });
            }
            Ok(current) if current.from_file || force || said == Some(&current.spec) => {
                current.revision
            }
            Ok(current) => {
                let (revision, principal) = (current.revision, current.principal);
                return Ok(Outcome::Kept { revision, principal });
            }
        };
        match engine.apply_policy_of_file(spec.clone(), expected, principal).await {
            Ok(applied) => {
                let (revision, changed) = (applied.revision, applied.changed);
                return Ok(Outcome::InForce { revision, changed });
            }
            // Another was first: perhaps with the same file.
            Err(Error::Refused(Refusal::RevisionMismatch { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Overloaded)
}

/// Whether trying again later may help.
fn passing(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown | Error::Overloaded)
}

/// What is in a file, as far as it may be a policy.
fn content(path: &Path) -> Result<Vec<u8>, Vec<String>> {
    let unreadable = |error: io::Error| vec![format!("cannot read {}: {error}", path.display())];
    let mut content = Vec::new();
    // One byte too many is enough to be refused.
    let most = policy_file::MAX_FILE_BYTES as u64 + 1;
    let file = File::open(path).map_err(unreadable)?;
    file.take(most).read_to_end(&mut content).map_err(unreadable)?;
    Ok(content)
}

fn parse(path: &Path, content: &[u8]) -> Result<PolicySpec, Vec<String>> {
    let path = path.display();
    let text = str::from_utf8(content)
        .map_err(|_| vec![format!("cannot read {path}: it is no UTF-8 text")])?;
    policy_file::parse(text)
        .map_err(|faults| faults.iter().map(|fault| format!("{path}:{fault}")).collect())
}

fn taken(path: &Path, namespace: &str, other: &Path) -> String {
    let (path, other) = (path.display(), other.display());
    format!("{path}: namespace {} has its policy from {other} already", quoted(namespace))
}
