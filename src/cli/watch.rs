//! `quotad watch`.

use clap::Args;
use tonic::Request;

use super::connect::{Connect, Namespace};
use super::output::{Failure, Output, instant, limits};
use super::{exit, parse};
use crate::proto::v1;

/// What was typed after `watch`.
#[derive(Debug, Args)]
pub(super) struct Watch {
    #[command(flatten)]
    namespace: Namespace,
    /// The metric.
    metric: String,
    /// A dimension; may be repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Says where limits stand, now and at every change, until it is interrupted.
pub(super) async fn watch(args: Watch) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::WatchUsageRequest {
        namespace: args.namespace.namespace,
        metric: args.metric,
        dimensions: parse::map("-d", args.dims)?,
    };
    let server = args.connect.connect().await?;
    let follow = async {
        // Without a deadline, which would hold for the whole stream.
        let answer = server.quota().watch_usage(Request::new(request)).await?;
        let mut readings = answer.into_inner();
        while let Some(reading) = readings.message().await? {
            show(out, &reading)?;
        }
        Ok(exit::OK)
    };
    tokio::select! {
        ended = follow => ended,
        _ = tokio::signal::ctrl_c() => Ok(exit::OK),
    }
}

fn show(out: Output, reading: &v1::WatchUsageResponse) -> Result<(), Failure> {
    out.one_of_many(reading)?;
    if let Some(at) = reading.read_time {
        out.line(&format!("at {}", instant(at)))?;
    }
    out.table(&limits(&reading.limits))
}
