//! `quotad policy check`, `diff`, `apply`, `show` and `revisions`.

mod diff;

use std::fs;
use std::io::{self, Read as _};

use clap::{Args, Subcommand};

use super::connect::{Connect, MAX_PAGE, Namespace};
use super::exit;
use super::output::{Failure, Output, Stream, instant, limits, table};
use crate::api::policy_file;
use crate::domain::name::quoted;
use crate::domain::policy::PolicySpec;
use crate::proto::v1;

/// What is done with policies.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check a policy file, without a server.
    Check(Check),
    /// Compare a policy file with what is in force, or two revisions.
    ///
    /// Prints a unified diff of both as this program would write them, so that
    /// comments and the order of keys do not matter. Of a file it says first
    /// what applying it would do.
    #[command(after_help = diff::EXIT_CODES)]
    Diff(diff::Diff),
    /// Make a policy file the policy of its namespace.
    Apply(Apply),
    /// Print a policy, as YAML that can be applied again.
    Show(Show),
    /// Print the revisions of a policy, newest first.
    Revisions(Revisions),
}

/// What was typed after `policy check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The file; - reads stdin.
    file: String,
}

/// What was typed after `policy apply`.
#[derive(Debug, Args)]
pub(super) struct Apply {
    /// The file; - reads stdin.
    #[arg(short, long)]
    file: String,
    /// Apply only if the policy is at this revision now; -1: only if there is
    /// none yet.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    expected_revision: i64,
    /// Say what would happen, but change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

/// What was typed after `policy show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    namespace: Namespace,
    /// Which revision; the current one by default.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    revision: i64,
    #[command(flatten)]
    connect: Connect,
}

/// What was typed after `policy revisions`.
#[derive(Debug, Args)]
pub(super) struct Revisions {
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    connect: Connect,
}

impl Command {
    /// How answers are printed.
    pub fn output(&self) -> Output {
        match self {
            Self::Check(_) => Output::new(false),
            Self::Apply(args) => args.connect.output(),
            Self::Show(args) => args.connect.output(),
            Self::Diff(args) => args.connect.output(),
            Self::Revisions(args) => args.connect.output(),
        }
    }
}

/// Runs the command.
pub(super) async fn run(command: Command) -> Result<u8, Failure> {
    let out = command.output();
    match command {
        Command::Check(args) => check(&args, out),
        Command::Apply(args) => apply(args, out).await,
        Command::Show(args) => show(args, out).await,
        Command::Diff(args) => diff::diff(args, out).await,
        Command::Revisions(args) => revisions(args, out).await,
    }
}

fn check(args: &Check, out: Output) -> Result<u8, Failure> {
    let spec = read(&args.file)?;
    let many = if spec.limits.len() == 1 { "" } else { "s" };
    out.line(&format!("{}: ok, {} limit{many}", name(&args.file), spec.limits.len()))?;
    Ok(exit::OK)
}

async fn apply(args: Apply, out: Output) -> Result<u8, Failure> {
    // Faults are found here, since only here their lines are known.
    let spec = read(&args.file)?;
    let request = v1::ApplyPolicyRequest {
        policy: Some(policy_file::to_message(&spec)),
        expected_revision: args.expected_revision,
        validate_only: args.dry_run,
    };
    let server = args.connect.connect().await?;
    let answer = server.policy().apply_policy(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    tell(&answer, &spec.namespace, args.dry_run, out)?;
    Ok(exit::OK)
}

/// What applying has done, or would do.
fn tell(
    answer: &v1::ApplyPolicyResponse,
    namespace: &str,
    dry_run: bool,
    out: Output,
) -> Result<(), Failure> {
    let (namespace, revision) = (quoted(namespace), answer.revision);
    out.line(&match (answer.changed, dry_run) {
        (false, _) => format!("unchanged: {namespace} is at revision {revision} with this content"),
        (true, true) => {
            format!("would become revision {revision} of {namespace}; nothing was changed")
        }
        (true, false) => format!("applied revision {revision} of {namespace}"),
    })?;
    let start = if dry_run { "would start" } else { "start" };
    if !answer.restarted_limits.is_empty() {
        let names = answer.restarted_limits.join(", ");
        out.line(&format!("these limits {start} with fresh counters: {names}"))?;
    }
    let Some(over) = &answer.over_limit else { return Ok(()) };
    if over.incomplete {
        out.line("not all counters could be looked at in time: more may be above a lowered limit")?;
    }
    if over.count > 0 {
        let be = if dry_run { "would be" } else { "are" };
        let least = if over.incomplete { "at least " } else { "" };
        let first = match over.limits.len() {
            listed if usize::try_from(over.count) == Ok(listed) => String::new(),
            listed => format!(", the first {listed} of them"),
        };
        let count = over.count;
        out.line(&format!("{least}{count} counters {be} above a limit that was lowered{first}:"))?;
        out.table(&limits(&over.limits))?;
    }
    Ok(())
}

async fn show(args: Show, out: Output) -> Result<u8, Failure> {
    let namespace = args.namespace.namespace;
    let request = v1::GetPolicyRequest { namespace, revision: args.revision };
    let server = args.connect.connect().await?;
    let answer = server.policy().get_policy(server.call(request)).await?.into_inner();
    if out.json {
        out.message(&answer)?;
        return Ok(exit::OK);
    }
    let yaml = yaml(answer.policy.unwrap_or_default())?;
    if let Some(revision) = answer.revision {
        let when = revision
            .create_time
            .map_or_else(String::new, |at| format!(", applied {}", instant(at)));
        out.line(&format!("# revision {}{when} by {}", revision.revision, revision.principal))?;
    }
    out.line(yaml.trim_end())?;
    Ok(exit::OK)
}

async fn revisions(args: Revisions, out: Output) -> Result<u8, Failure> {
    let server = args.connect.connect().await?;
    let mut table = table(Stream::Stdout, ["REVISION", "APPLIED", "BY"], 3);
    let mut request = v1::ListPolicyRevisionsRequest {
        namespace: args.namespace.namespace,
        page_size: MAX_PAGE,
        page_token: String::new(),
    };
    loop {
        let call = server.call(request.clone());
        let page = server.policy().list_policy_revisions(call).await?.into_inner();
        for revision in page.revisions {
            out.one_of_many(&revision)?;
            let applied = revision.create_time.map_or_else(String::new, instant);
            table.add_row([revision.revision.to_string(), applied, revision.principal]);
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    out.table(&table)?;
    Ok(exit::OK)
}

/// A policy that a server has answered, as this program would write it.
fn yaml(policy: v1::Policy) -> Result<String, Failure> {
    let spec = policy_file::from_message(policy).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        Failure::Other(anyhow::anyhow!("use --json; as YAML: {}", faults.join("; ")))
    })?;
    policy_file::to_yaml(&spec).map_err(|error| Failure::Other(error.into()))
}

/// Reads and parses a file; one line for each of its faults.
fn read(file: &str) -> Result<PolicySpec, Failure> {
    let unreadable =
        |error: io::Error| Failure::Usage(format!("cannot read {}: {error}", name(file)));
    let mut bytes = Vec::new();
    // One byte too many is enough to be refused.
    let most = policy_file::MAX_FILE_BYTES as u64 + 1;
    if file == "-" {
        io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    } else {
        let opened = fs::File::open(file).map_err(unreadable)?;
        opened.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::Usage(format!("cannot read {}: it is no UTF-8 text", name(file))))?;
    policy_file::parse(&text).map_err(|faults| {
        Failure::Faults(faults.iter().map(|fault| format!("{}:{fault}", name(file))).collect())
    })
}

/// What a file is called in messages.
fn name(file: &str) -> &str {
    if file == "-" { "stdin" } else { file }
}
