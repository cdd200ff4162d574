//! `quotad subject set`, `show`, `list` and `delete`.

mod billing;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use comfy_table::Table;
use prost_types::Timestamp;
use tonic::Status;

use super::connect::{Connect, Connection, MAX_PAGE, Namespace};
use super::output::{Failure, Output, Stream, instant, reason, table};
use super::{exit, parse};
use crate::api::Reason;
use crate::proto::v1;
use crate::proto::v1::r#override::Change;

/// What is done with subjects.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Change what is given of a subject, and leave the rest as it is.
    Set(Box<Changes>),
    /// Print a subject.
    Show(Show),
    /// Print all subjects, or those of a kind or on a plan.
    List(List),
    /// Forget a subject: it is then one that was never seen. What it used stays
    /// counted.
    Delete(Delete),
}

/// What was typed after `subject set`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("change").required(true).multiple(true),
    override_usage = "quotad subject set -n <NAMESPACE> <KIND/ID> <CHANGE>... [OPTIONS]"
)]
pub(super) struct Changes {
    #[command(flatten)]
    namespace: Namespace,
    /// The subject, KIND/ID, such as user/42.
    #[arg(value_name = "KIND/ID", value_parser = parse::subject)]
    subject: (String, String),
    /// Its plan; empty means the policy's default plan.
    #[arg(long, group = "change", help_heading = "Changes")]
    plan: Option<String>,
    /// Refuse everything that it asks for.
    #[arg(long, group = "change", help_heading = "Changes", conflicts_with = "unfrozen")]
    frozen: bool,
    /// No longer.
    #[arg(long, group = "change", help_heading = "Changes")]
    unfrozen: bool,
    /// Give it another max for a limit, for ever or until an instant; may be
    /// repeated.
    #[arg(long, group = "change", help_heading = "Changes", value_name = "LIMIT=N[@UNTIL]", value_parser = parse::set)]
    set: Vec<v1::Override>,
    /// Add to its max for a limit, or take away by a negative number; may be
    /// repeated.
    #[arg(long, group = "change", help_heading = "Changes", value_name = "LIMIT=N[@UNTIL]", value_parser = parse::add)]
    add: Vec<v1::Override>,
    /// Take back what --set or --add gave for a limit; may be repeated.
    #[arg(long, group = "change", help_heading = "Changes", value_name = "LIMIT")]
    unset: Vec<String>,
    /// A note kept with it, an empty VALUE removes it; may be repeated.
    #[arg(long = "label", group = "change", help_heading = "Changes", value_name = "KEY=VALUE", value_parser = parse::pair)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    billing: billing::Billing,
    /// Change it only if this is its etag now; without this, a change that
    /// somebody else makes meanwhile is kept.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    etag: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// What was typed after `subject show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    namespace: Namespace,
    /// The subject, KIND/ID, such as user/42.
    #[arg(value_name = "KIND/ID", value_parser = parse::subject)]
    subject: (String, String),
    #[command(flatten)]
    connect: Connect,
}

/// What was typed after `subject list`.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    namespace: Namespace,
    /// Only those of this kind, such as user.
    #[arg(long)]
    kind: Option<String>,
    /// Only those on this plan; one that names none is on the policy's default
    /// plan.
    #[arg(long)]
    plan: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// What was typed after `subject delete`.
#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    namespace: Namespace,
    /// The subject, KIND/ID, such as user/42.
    #[arg(value_name = "KIND/ID", value_parser = parse::subject)]
    subject: (String, String),
    /// Delete it only if this is its etag now.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    etag: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

impl Command {
    /// How answers are printed.
    pub fn output(&self) -> Output {
        match self {
            Self::Set(args) => args.connect.output(),
            Self::Show(args) => args.connect.output(),
            Self::List(args) => args.connect.output(),
            Self::Delete(args) => args.connect.output(),
        }
    }
}

/// Runs the command.
pub(super) async fn run(command: Command) -> Result<u8, Failure> {
    let out = command.output();
    match command {
        Command::Set(args) => set(*args, out).await,
        Command::Show(args) => show(args, out).await,
        Command::List(args) => list(args, out).await,
        Command::Delete(args) => delete(args, out).await,
    }
}

async fn set(args: Changes, out: Output) -> Result<u8, Failure> {
    // A limit has one override: which of the two was meant cannot be told.
    let limits = args.set.iter().chain(&args.add).map(|over| &over.limit).chain(&args.unset);
    parse::distinct("--set, --add and --unset together", limits)?;
    let anchored = args.billing.anchored()?;
    let server = args.connect.connect().await?;
    let put = match put(&server, &args, anchored).await {
        // Somebody else was faster: his change is read and kept, unless it was
        // said what there must be.
        Err(status) if is(&status, Reason::PolicyRevisionMismatch) && args.etag.is_none() => {
            put(&server, &args, anchored).await
        }
        done => done,
    }?;
    out.message(&put)?;
    let (kind, id) = &args.subject;
    out.line(&format!("{} {kind}/{id}", if put.changed { "set" } else { "unchanged:" }))?;
    out.table(&describe(&put.subject.unwrap_or_default()))?;
    Ok(exit::OK)
}

/// Reads the subject, changes it, and puts it if nobody else has meanwhile.
async fn put(
    server: &Connection,
    args: &Changes,
    anchored: Option<Timestamp>,
) -> Result<v1::PutSubjectResponse, Status> {
    let namespace = &args.namespace.namespace;
    let mut subject = match get(server, namespace, &args.subject).await {
        Ok(found) => found.subject.unwrap_or_default(),
        Err(status) if is(&status, Reason::SubjectNotFound) => {
            let (kind, id) = args.subject.clone();
            v1::Subject { kind, id, ..v1::Subject::default() }
        }
        Err(status) => return Err(status),
    };
    change(&mut subject, args, anchored);
    let etag = args.etag.clone().unwrap_or_else(|| subject.etag.clone());
    let request =
        v1::PutSubjectRequest { namespace: namespace.clone(), subject: Some(subject), etag };
    Ok(server.policy().put_subject(server.call(request)).await?.into_inner())
}

async fn get(
    server: &Connection,
    namespace: &str,
    (kind, id): &(String, String),
) -> Result<v1::GetSubjectResponse, Status> {
    let request = v1::GetSubjectRequest {
        namespace: namespace.to_owned(),
        kind: kind.clone(),
        id: id.clone(),
    };
    Ok(server.policy().get_subject(server.call(request)).await?.into_inner())
}

fn change(subject: &mut v1::Subject, args: &Changes, anchored: Option<Timestamp>) {
    args.billing.change(anchored, &mut subject.billing);
    if let Some(plan) = &args.plan {
        subject.plan.clone_from(plan);
    }
    if args.frozen || args.unfrozen {
        subject.frozen = args.frozen;
    }
    subject.overrides.retain(|over| !args.unset.contains(&over.limit));
    for new in args.set.iter().chain(&args.add) {
        // In its place, so that the same again is no change.
        match subject.overrides.iter_mut().find(|over| over.limit == new.limit) {
            Some(over) => over.clone_from(new),
            None => subject.overrides.push(new.clone()),
        }
    }
    for (key, value) in &args.labels {
        if value.is_empty() {
            subject.labels.remove(key);
        } else {
            subject.labels.insert(key.clone(), value.clone());
        }
    }
}

async fn show(args: Show, out: Output) -> Result<u8, Failure> {
    let server = args.connect.connect().await?;
    let found = get(&server, &args.namespace.namespace, &args.subject).await?;
    out.message(&found)?;
    out.table(&describe(&found.subject.unwrap_or_default()))?;
    Ok(exit::OK)
}

async fn list(args: List, out: Output) -> Result<u8, Failure> {
    let server = args.connect.connect().await?;
    let header = ["SUBJECT", "PLAN", "FROZEN", "OVERRIDES", "UPDATED"];
    let mut table = table(Stream::Stdout, header, header.len());
    let mut request = v1::ListSubjectsRequest {
        namespace: args.namespace.namespace,
        kind: args.kind.unwrap_or_default(),
        plan: args.plan.unwrap_or_default(),
        page_size: MAX_PAGE,
        page_token: String::new(),
    };
    loop {
        let call = server.call(request.clone());
        let page = server.policy().list_subjects(call).await?.into_inner();
        for subject in &page.subjects {
            out.one_of_many(subject)?;
            if !out.json {
                table.add_row(row(subject));
            }
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    out.table(&table)?;
    Ok(exit::OK)
}

async fn delete(args: Delete, out: Output) -> Result<u8, Failure> {
    let server = args.connect.connect().await?;
    let (kind, id) = args.subject;
    let request = v1::DeleteSubjectRequest {
        namespace: args.namespace.namespace,
        kind: kind.clone(),
        id: id.clone(),
        etag: args.etag.unwrap_or_default(),
    };
    let answer = server.policy().delete_subject(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    out.line(&format!("deleted {kind}/{id}"))?;
    Ok(exit::OK)
}

fn is(status: &Status, expected: Reason) -> bool {
    reason(status) == expected.as_str_name()
}

/// A subject on one line.
fn row(subject: &v1::Subject) -> [String; 5] {
    [
        format!("{}/{}", subject.kind, subject.id),
        plan(subject).to_owned(),
        yes_or_no(subject.frozen).to_owned(),
        subject.overrides.len().to_string(),
        subject.update_time.map_or_else(String::new, instant),
    ]
}

fn plan(subject: &v1::Subject) -> &str {
    if subject.plan.is_empty() { "(default)" } else { &subject.plan }
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// A subject, one line for each thing that is known of it.
fn describe(subject: &v1::Subject) -> Table {
    let mut table =
        table(Stream::Stdout, ["SUBJECT", &format!("{}/{}", subject.kind, subject.id)], 2);
    table.add_row(["plan", plan(subject)]);
    for line in subject.billing.iter().flat_map(billing::describe) {
        table.add_row(line);
    }
    table.add_row(["frozen", yes_or_no(subject.frozen)]);
    for over in &subject.overrides {
        let change = match over.change {
            Some(Change::Set(max)) => format!("max {max}"),
            Some(Change::Add(more)) => format!("max {more:+}"),
            None => "nothing".to_owned(),
        };
        let until =
            over.expire_time.map_or_else(String::new, |at| format!(" until {}", instant(at)));
        table.add_row([format!("override {}", over.limit), format!("{change}{until}")]);
    }
    let mut labels: Vec<_> = subject.labels.iter().collect();
    labels.sort();
    for (key, value) in labels {
        table.add_row([format!("label {key}"), value.clone()]);
    }
    table.add_row(["etag", &subject.etag]);
    if let Some(updated) = subject.update_time {
        table.add_row(["updated".to_owned(), instant(updated)]);
    }
    table
}
