//! `quotad usage`: where limits stand, of one caller or of all keys of a limit.

use clap::Args;
use prost_types::Timestamp;

use super::connect::{Connect, MAX_PAGE, Namespace};
use super::output::{Failure, Output, add_limit, limits, no_limits, talk};
use super::{exit, parse, reservations};
use crate::proto::v1;

/// What was typed after `usage`.
#[derive(Debug, Args)]
#[command(
    override_usage = "quotad usage -n <NAMESPACE> <METRIC> [-d <KEY=VALUE>]... [OPTIONS]\n       \
                            quotad usage -n <NAMESPACE> --limit <LIMIT> [OPTIONS]"
)]
pub(super) struct Usage {
    #[command(flatten)]
    namespace: Namespace,
    /// The metric.
    #[arg(required_unless_present = "limit")]
    metric: Option<String>,
    /// A dimension; may be repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
    /// Also list the live holds, read at the same moment.
    #[arg(long)]
    holds: bool,
    /// Instead of one caller's limits, every key of this limit that something
    /// was charged to in the window.
    #[arg(long, conflicts_with_all = ["metric", "dims", "holds"])]
    limit: Option<String>,
    /// With --limit: only keys filled at least this far, 0 to 1 of max.
    #[arg(long, value_name = "SHARE", requires = "limit")]
    min_utilization: Option<f64>,
    /// With --limit: at most this many.
    #[arg(long, value_name = "N", requires = "limit", default_value_t = 100)]
    most: usize,
    /// The window that contains this instant, such as 2026-08-15T00:00:00Z;
    /// now by default.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    at: Option<Timestamp>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Says where limits stand.
pub(super) async fn run(args: Usage) -> Result<u8, Failure> {
    let out = args.connect.output();
    match args.limit.clone() {
        Some(limit) => of_limit(args, limit, out).await,
        None => of_caller(args, out).await,
    }
}

async fn of_caller(args: Usage, out: Output) -> Result<u8, Failure> {
    let request = v1::GetUsageRequest {
        namespace: args.namespace.namespace,
        metric: args.metric.unwrap_or_default(),
        dimensions: parse::map("-d", args.dims)?,
        at: args.at,
        include_holds: args.holds,
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().get_usage(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    if answer.limits.is_empty() {
        out.line("no limit applies")?;
    } else {
        out.table(&limits(&answer.limits))?;
    }
    if args.holds {
        out.line("")?;
        out.table(&reservations::table_of(&answer.holds))?;
        if answer.holds_incomplete && !out.json {
            talk("there are more holds; these expire soonest");
        }
    }
    Ok(exit::OK)
}

async fn of_limit(args: Usage, limit: String, out: Output) -> Result<u8, Failure> {
    let mut request = v1::ListUsageRequest {
        namespace: args.namespace.namespace,
        limit,
        at: args.at,
        min_utilization: args.min_utilization.unwrap_or_default(),
        page_size: i32::try_from(args.most).unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE),
        page_token: String::new(),
    };
    let server = args.connect.connect().await?;
    let mut table = no_limits();
    let mut left = args.most;
    while left > 0 {
        let call = server.call(request.clone());
        let page = server.quota().list_usage(call).await?.into_inner();
        for status in page.limits.iter().take(left) {
            out.one_of_many(status)?;
            add_limit(&mut table, status);
        }
        left = left.saturating_sub(page.limits.len());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    out.table(&table)?;
    Ok(exit::OK)
}
