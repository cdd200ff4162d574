//! `quotad policy diff`.

use std::io::{self, IsTerminal as _};

use clap::{ArgGroup, Args};
use serde_json::json;
use similar::TextDiff;

use super::{name, read, tell, yaml};
use crate::api::Reason;
use crate::api::policy_file;
use crate::cli::connect::{Connect, Connection};
use crate::cli::exit;
use crate::cli::output::{Failure, Output, reason, talk, to_json};
use crate::proto::v1;

/// The exit codes of this command.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  compared, whether there is a difference or not
  1  with --exit-code: there is one; or something else went wrong
  2  wrong use: arguments, a faulty policy file, a request with invalid fields
  3  refused: the namespace or the revision is not there
  4  the server or its store cannot be reached, or did not answer in time";

/// What was typed after `policy diff`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true),
    override_usage = "quotad policy diff -f <FILE> [OPTIONS]\n       \
                      quotad policy diff -n <NAMESPACE> --from <N> [--to <M>] [OPTIONS]"
)]
pub(in crate::cli) struct Diff {
    /// Compare the policy in force in its namespace with this file; - reads
    /// stdin.
    #[arg(short, long, group = "what")]
    file: Option<String>,
    /// Compare this revision with --to.
    #[arg(
        long,
        group = "what",
        value_name = "N",
        requires = "namespace",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    from: Option<i64>,
    /// The revision that --from is compared with; the current one by default.
    #[arg(
        long,
        value_name = "M",
        requires = "from",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    to: Option<i64>,
    /// The namespace of --from; a file names its own.
    #[arg(short, long, env = "QUOTAD_NAMESPACE")]
    namespace: Option<String>,
    /// Exit with 1 where there is a difference.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    pub(super) connect: Connect,
}

/// One side of a comparison.
struct Side {
    /// What it is called.
    name: String,
    /// The policy as this program would write it.
    yaml: String,
}

pub(super) async fn diff(args: Diff, out: Output) -> Result<u8, Failure> {
    // Where nobody said a namespace, clap has seen to it that there is a file.
    let namespace = args.namespace.unwrap_or_default();
    let different = match (args.file, args.from) {
        (Some(file), _) => with_file(&args.connect, &file, out).await?,
        (None, from) => {
            let server = args.connect.connect().await?;
            let from = revision(&server, &namespace, from.unwrap_or_default()).await?;
            let to = revision(&server, &namespace, args.to.unwrap_or_default()).await?;
            let unified = unified(&from, &to);
            out.value(&json!({ "different": !unified.is_empty(), "diff": unified }))?;
            print(&unified, out)?;
            !unified.is_empty()
        }
    };
    Ok(if different && args.exit_code { exit::FAILED } else { exit::OK })
}

/// Compares what is in force with a file, and says what applying it would do.
async fn with_file(connect: &Connect, file: &str, out: Output) -> Result<bool, Failure> {
    let spec = read(file)?;
    let wanted = Side {
        name: name(file).to_owned(),
        yaml: policy_file::to_yaml(&spec).map_err(|error| Failure::Other(error.into()))?,
    };
    let server = connect.connect().await?;
    let present = match revision(&server, &spec.namespace, 0).await {
        Err(Failure::Status(status)) if reason(&status) == NONE_YET.as_str_name() => {
            Side { name: "no policy yet".to_owned(), yaml: String::new() }
        }
        found => found?,
    };
    let request = v1::ApplyPolicyRequest {
        policy: Some(policy_file::to_message(&spec)),
        expected_revision: 0,
        validate_only: true,
    };
    let answer = server.policy().apply_policy(server.call(request)).await?.into_inner();
    let unified = unified(&present, &wanted);
    let different = !unified.is_empty();
    let apply = to_json(&answer)?;
    out.value(&json!({ "different": different, "diff": unified, "apply": apply }))?;
    tell(&answer, &spec.namespace, true, out)?;
    print(&unified, out)?;
    Ok(different)
}

/// The reason of a namespace without a policy.
const NONE_YET: Reason = Reason::NamespaceNotFound;

/// A revision that the server has; 0 means the current one.
async fn revision(server: &Connection, namespace: &str, revision: i64) -> Result<Side, Failure> {
    let request = v1::GetPolicyRequest { namespace: namespace.to_owned(), revision };
    let answer = server.policy().get_policy(server.call(request)).await?.into_inner();
    let number = answer.revision.unwrap_or_default().revision;
    let name = format!("{namespace}, revision {number}");
    Ok(Side { name, yaml: yaml(answer.policy.unwrap_or_default())? })
}

/// The difference as a unified diff; empty where there is none.
fn unified(from: &Side, to: &Side) -> String {
    // Of what somebody else has named only what fits on a line is shown.
    let shown = |side: &Side| side.name.replace(char::is_control, "\u{fffd}");
    let diff = TextDiff::from_lines(&from.yaml, &to.yaml);
    diff.unified_diff().header(&shown(from), &shown(to)).to_string()
}

/// Prints a diff for people, coloured on a terminal.
fn print(unified: &str, out: Output) -> Result<(), Failure> {
    if unified.is_empty() {
        if !out.json {
            talk("no difference");
        }
        return Ok(());
    }
    let coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let painted = |line: &str| {
        let colour = match line.as_bytes().first() {
            Some(b'-') => "31",
            Some(b'+') => "32",
            Some(b'@') => "36",
            _ => return line.to_owned(),
        };
        format!("\u{1b}[{colour}m{line}\u{1b}[0m")
    };
    let lines = unified.lines().map(|line| if coloured { painted(line) } else { line.to_owned() });
    out.line(&lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_names_both_sides_and_is_empty_where_they_are_alike() {
        let side = |name: &str, yaml: &str| Side { name: name.to_owned(), yaml: yaml.to_owned() };
        let (old, new) = (side("n, revision 1", "a: 1\nb: 2\n"), side("x\n.yaml", "a: 1\nb: 3\n"));
        let expected = "\
--- n, revision 1
+++ x\u{fffd}.yaml
@@ -1,2 +1,2 @@
 a: 1
-b: 2
+b: 3
";
        assert_eq!(unified(&old, &new), expected);
        assert_eq!(unified(&old, &old), "");
    }
}
