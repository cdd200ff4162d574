//! `quotad adjust`, `audit`, `repair` and `reconcile`: for those who run the
//! service.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use prost_types::Timestamp;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::connect::{Connect, Connection, Namespace};
use super::output::{Failure, Output, Stream, limits, table, talk};
use super::{exit, parse};
use crate::proto::v1;

/// How many names go into one message.
const PIECE: usize = 1000;

/// What was typed after `adjust`.
#[derive(Debug, Args)]
pub(super) struct Adjust {
    #[command(flatten)]
    namespace: Namespace,
    /// The limit.
    limit: String,
    /// Units to add; negative takes away, never below 0.
    #[arg(allow_negative_numbers = true)]
    delta: i64,
    /// Which of its counters: a dimension that the limit counts by; may be
    /// repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
    /// Why, for the trail.
    #[arg(long)]
    reason: String,
    /// The correction's id, which makes sending it again harmless; a new one by
    /// default.
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Corrects a counter by hand.
pub(super) async fn adjust(args: Adjust) -> Result<u8, Failure> {
    let out = args.connect.output();
    let id = args.id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let request = v1::AdjustUsageRequest {
        namespace: args.namespace.namespace,
        limit: args.limit,
        key: parse::map("-d", args.dims)?,
        delta: args.delta,
        adjustment_id: id.clone(),
        reason: args.reason,
    };
    let server = args.connect.connect().await?;
    let answer = server.operator().adjust_usage(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    out.line(&format!("adjusted as {id}{}", if answer.replayed { " (replayed)" } else { "" }))?;
    out.table(&limits(answer.limit.as_slice()))?;
    Ok(exit::OK)
}

/// What was typed after `audit`.
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(flatten)]
    namespace: Namespace,
    /// Only this limit; all by default.
    #[arg(long)]
    limit: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Recounts; the exit code is 1 where something differs.
pub(super) async fn audit(args: Audit) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::AuditRequest {
        namespace: args.namespace.namespace,
        limit: args.limit.unwrap_or_default(),
        progress: true,
    };
    let server = args.connect.connect().await?;
    let mut steps = server.operator().audit(Request::new(request)).await?.into_inner();
    let mut report = Report::new(out);
    while let Some(step) = steps.message().await? {
        report.step(step.finding, step.counters, step.reservations)?;
    }
    report.end("recounted", "to mend: quotad repair")
}

/// What was typed after `repair`.
#[derive(Debug, Args)]
pub(super) struct Repair {
    #[command(flatten)]
    namespace: Namespace,
    /// Only this limit; all by default.
    #[arg(long)]
    limit: Option<String>,
    /// Why, for the trail.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    pub connect: Connect,
}

/// Recounts, and mends what differs.
pub(super) async fn repair(args: Repair) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::RepairRequest {
        namespace: args.namespace.namespace,
        limit: args.limit.unwrap_or_default(),
        reason: args.reason,
        progress: true,
    };
    let server = args.connect.connect().await?;
    let mut steps = server.operator().repair(Request::new(request)).await?.into_inner();
    let mut report = Report::new(out);
    while let Some(step) = steps.message().await? {
        report.step(step.finding, step.counters, step.reservations)?;
    }
    let damaged = report.found.iter().any(|found| found.kind == "damaged");
    let advice = if damaged { "what is damaged was left as it is" } else { "" };
    report.end("found", advice)?;
    Ok(if damaged { exit::FAILED } else { exit::OK })
}

/// A bar on a terminal while it lasts; nothing elsewhere.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

/// What is found, as it comes.
struct Report {
    out: Output,
    bar: ProgressBar,
    found: Vec<v1::Finding>,
    counters: i64,
    reservations: i64,
}

impl Report {
    fn new(out: Output) -> Self {
        Self { out, bar: progress(), found: Vec::new(), counters: 0, reservations: 0 }
    }

    fn step(
        &mut self,
        finding: Option<v1::Finding>,
        counters: i64,
        reservations: i64,
    ) -> Result<(), Failure> {
        (self.counters, self.reservations) = (counters, reservations);
        let found = self.found.len() + usize::from(finding.is_some());
        self.bar.set_message(format!(
            "{counters} counters, {reservations} reservations, {found} differences"
        ));
        self.bar.tick();
        let Some(finding) = finding else { return Ok(()) };
        self.out.one_of_many(&finding)?;
        self.found.push(finding);
        Ok(())
    }

    /// Prints what was found: 1 where that is something.
    fn end(self, done: &str, advice: &str) -> Result<u8, Failure> {
        self.bar.finish_and_clear();
        if self.found.is_empty() {
            self.out.line("every counter equals the sum of its reservations")?;
            return Ok(exit::OK);
        }
        let mut rows = table(Stream::Stdout, ["LIMIT", "KEY", "WHAT", "STORED", "EXPECTED"], 3);
        for finding in &self.found {
            let counter = finding.counter.clone().unwrap_or_default();
            let mut key: Vec<String> =
                counter.key.iter().map(|(name, value)| format!("{name}={value}")).collect();
            key.sort();
            let (stored, expected) = (finding.stored.to_string(), finding.expected.to_string());
            rows.add_row([counter.limit, key.join(" "), finding.kind.clone(), stored, expected]);
        }
        self.out.table(&rows)?;
        if !self.out.json {
            let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
            talk(&format!("{} differences {done}{advice}", self.found.len()));
        }
        Ok(exit::FAILED)
    }
}

/// What was typed after `reconcile`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct Reconcile {
    #[command(flatten)]
    namespace: Namespace,
    /// The limit.
    limit: String,
    /// The names of the resources that exist, one on each line; - for stdin.
    #[arg(long, value_name = "FILE")]
    live: PathBuf,
    /// Only this counter of the limit: a dimension that it counts by; may be
    /// repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
    /// Refund what is committed and does not exist.
    #[arg(long)]
    refund_leaked: bool,
    /// Book one unit for what exists and is not committed.
    #[arg(long)]
    book_missing: bool,
    /// Why, for the trail.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// When the list was taken, such as 2026-08-15T00:00:00Z: what was committed
    /// later is left alone. Now by default.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    as_of: Option<Timestamp>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Compares what exists with what is committed; the exit code is 1 where they
/// differ and that was not mended.
pub(super) async fn reconcile(args: Reconcile) -> Result<u8, Failure> {
    let out = args.connect.output();
    let first = v1::ReconcileRequest {
        namespace: args.namespace.namespace,
        limit: args.limit,
        resources: Vec::new(),
        refund_leaked: args.refund_leaked,
        book_missing: args.book_missing,
        reason: args.reason,
        key: parse::map("-d", args.dims)?,
        as_of: args.as_of,
    };
    let server = args.connect.connect().await?;
    let bar = progress();
    let (pieces, sent) = mpsc::channel(4);
    // Kept to the end: the stream must not seem to be over where the list could
    // only be read in part, or all that is not in that part would be refunded.
    let open = pieces.clone();
    let refund = args.refund_leaked;
    let reading = tokio::task::spawn_blocking({
        let bar = bar.clone();
        move || read(&args.live, first, &pieces, &bar)
    });
    let read = async {
        let count = reading.await.map_err(|error| Failure::Other(error.into()))?;
        let count = count.map_err(Failure::Other)?;
        if count == 0 && refund {
            let message = "the list is empty: it would refund everything; is it the right one?";
            return Err(Failure::Other(anyhow::anyhow!(message)));
        }
        drop(open);
        Ok(())
    };
    let compared = async { tokio::try_join!(compare(&server, sent, out), read) }.await;
    bar.finish_and_clear();
    let (found, ()) = compared?;
    let mut rows = table(Stream::Stdout, ["RESOURCE", "IS", "RESERVATION", "MENDED"], 4);
    for one in &found {
        let mended = if one.mended { "yes" } else { "no" }.to_owned();
        rows.add_row([one.resource.clone(), side(one), one.reservation_id.clone(), mended]);
    }
    if found.is_empty() {
        out.line("what is committed is what exists")?;
    } else {
        out.table(&rows)?;
    }
    Ok(if found.iter().all(|one| one.mended) { exit::OK } else { exit::FAILED })
}

fn side(one: &v1::ReconcileResponse) -> String {
    match one.difference() {
        v1::Difference::Leaked => "leaked".to_owned(),
        v1::Difference::Missing => "missing".to_owned(),
        v1::Difference::Unspecified => String::new(),
    }
}

async fn compare(
    server: &Connection,
    pieces: mpsc::Receiver<v1::ReconcileRequest>,
    out: Output,
) -> Result<Vec<v1::ReconcileResponse>, Failure> {
    let pieces = ReceiverStream::new(pieces);
    let mut answers: Streaming<v1::ReconcileResponse> =
        server.operator().reconcile(Request::new(pieces)).await?.into_inner();
    let mut found = Vec::new();
    while let Some(answer) = answers.message().await? {
        out.one_of_many(&answer)?;
        found.push(answer);
    }
    Ok(found)
}

/// Reads names line by line and sends them in pieces; stops where nobody takes
/// them any more. Gives how many lines there were.
fn read(
    live: &std::path::Path,
    first: v1::ReconcileRequest,
    pieces: &mpsc::Sender<v1::ReconcileRequest>,
    bar: &ProgressBar,
) -> anyhow::Result<usize> {
    use std::io::BufRead as _;
    let mut lines: Box<dyn Iterator<Item = std::io::Result<String>>> = if live.as_os_str() == "-" {
        Box::new(std::io::stdin().lines())
    } else {
        let file = std::fs::File::open(live)
            .map_err(|error| anyhow::anyhow!("{}: {error}", live.display()))?;
        Box::new(std::io::BufReader::new(file).lines())
    };
    let (mut piece, mut count) = (first, 0_usize);
    loop {
        let names: std::io::Result<Vec<String>> = lines.by_ref().take(PIECE).collect();
        let names = names.map_err(|error| anyhow::anyhow!("{}: {error}", live.display()))?;
        let last = names.len() < PIECE;
        count += names.len();
        bar.set_message(format!("{count} names"));
        bar.tick();
        piece.resources = names.into_iter().filter(|name| !name.is_empty()).collect();
        if pieces.blocking_send(piece).is_err() || last {
            return Ok(count);
        }
        piece = v1::ReconcileRequest::default();
    }
}
