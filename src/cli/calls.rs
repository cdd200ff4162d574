//! `quotad reserve`, `commit`, `release` and `check`.

use std::time::Duration;

use clap::Args;
use tonic::Code;

use super::connect::{Connect, Namespace};
use super::output::{Failure, Output, instant, limits};
use super::{exit, parse};
use crate::api::times;
use crate::domain::time::Span;
use crate::proto::v1;

const ITEM: &str = "METRIC[=AMOUNT][,DIM=VALUE]..., such as posts or purchases=2,item=sword; \
                    several are admitted all or none";

/// What is asked for: the same for reserve and check.
#[derive(Debug, Args)]
struct Ask {
    // Not a doc comment, which would take the brackets for links.
    #[arg(required = true, value_name = "ITEM", value_parser = parse::item, help = ITEM)]
    items: Vec<v1::Item>,
    /// A dimension of all items; may be repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
}

/// What was typed after `reserve`.
#[derive(Debug, Args)]
pub(super) struct Reserve {
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    ask: Ask,
    /// The reservation's id, which makes sending it again harmless; a new one
    /// by default.
    #[arg(long)]
    id: Option<String>,
    /// How long the hold lasts, 1s to 24h; 60s by default.
    #[arg(long, value_name = "LENGTH", value_parser = parse::length)]
    ttl: Option<Span>,
    /// How long to wait for room, such as 30s; not at all by default. What
    /// --timeout allows comes on top.
    #[arg(long, value_name = "LENGTH", value_parser = parse::patience)]
    wait: Option<Duration>,
    /// Commit in the same step.
    #[arg(long)]
    commit: bool,
    /// Name of what is being created; may be repeated.
    #[arg(long = "resource", value_name = "NAME")]
    resources: Vec<String>,
    /// A note kept with the reservation; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse::pair)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Holds units.
pub(super) async fn reserve(args: Reserve) -> Result<u8, Failure> {
    let out = args.connect.output();
    let chosen = args.id.is_some();
    let id = args.id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let request = v1::ReserveRequest {
        namespace: args.namespace.namespace,
        reservation_id: id.clone(),
        items: args.ask.items,
        dimensions: parse::map("-d", args.ask.dims)?,
        ttl: args.ttl.map(times::duration),
        wait: args.wait.and_then(|wait| wait.try_into().ok()),
        commit: args.commit,
        resources: args.resources,
        labels: parse::map("--label", args.labels)?,
    };
    let server = args.connect.connect().await?;
    let call = server.call_waiting(request, args.wait.unwrap_or_default());
    let answer = server.quota().reserve(call).await.map_err(|status| {
        let refused = matches!(
            status.code(),
            Code::InvalidArgument
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::NotFound
        );
        // Any other error may hide that it was admitted.
        if chosen || refused { status.into() } else { Failure::unsettled(status, id) }
    })?;
    let answer = answer.into_inner();
    out.message(&answer)?;
    settled(out, answer.reservation.as_ref(), &answer.limits, answer.replayed)
}

/// What was typed after `commit`.
#[derive(Debug, Args)]
pub(super) struct Commit {
    #[command(flatten)]
    namespace: Namespace,
    /// The reservation's id.
    id: String,
    /// Units really used of each item, in the order of the reservation; all by
    /// default. The rest goes back.
    #[arg(long = "amount", value_name = "N", allow_negative_numbers = true)]
    amounts: Vec<i64>,
    /// Name of what was created; may be repeated.
    #[arg(long = "resource", value_name = "NAME")]
    resources: Vec<String>,
    /// What to do where the hold has run out: refuse, take the units again if
    /// they are there, or record them whether they are there or not.
    #[arg(long, value_enum, default_value_t = IfExpired::Reject)]
    if_expired: IfExpired,
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IfExpired {
    Reject,
    Reclaim,
    Overdraw,
}

/// Turns a hold into use.
pub(super) async fn commit(args: Commit) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::CommitRequest {
        namespace: args.namespace.namespace,
        reservation_id: args.id,
        amounts: args.amounts,
        resources: args.resources,
        if_expired: match args.if_expired {
            IfExpired::Reject => v1::IfExpired::Reject,
            IfExpired::Reclaim => v1::IfExpired::Reclaim,
            IfExpired::Overdraw => v1::IfExpired::Overdraw,
        }
        .into(),
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().commit(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    settled(out, answer.reservation.as_ref(), &answer.limits, answer.replayed)
}

/// What was typed after `release`.
#[derive(Debug, Args)]
pub(super) struct Release {
    #[command(flatten)]
    namespace: Namespace,
    /// The reservation's id.
    id: String,
    /// Why, for its history.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// Where the id is unknown, refuse a reserve that arrives later: the
    /// cancel wins.
    #[arg(long)]
    allow_missing: bool,
    #[command(flatten)]
    pub connect: Connect,
}

/// Gives a hold back.
pub(super) async fn release(args: Release) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::ReleaseRequest {
        namespace: args.namespace.namespace,
        reservation_id: args.id,
        reason: args.reason,
        allow_missing: args.allow_missing,
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().release(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    settled(out, answer.reservation.as_ref(), &answer.limits, answer.replayed)
}

/// What was typed after `check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    ask: Ask,
    #[command(flatten)]
    pub connect: Connect,
}

/// Asks whether a reserve would be admitted; the exit code says it too.
pub(super) async fn check(args: Check) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::CheckRequest {
        namespace: args.namespace.namespace,
        items: args.ask.items,
        dimensions: parse::map("-d", args.ask.dims)?,
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().check(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    out.line(if answer.admitted { "would be admitted" } else { "would be refused" })?;
    out.table(&limits(&answer.limits))?;
    Ok(if answer.admitted { exit::OK } else { exit::REFUSED })
}

/// One line on a reservation, and where its limits stand.
pub(super) fn settled(
    out: Output,
    reservation: Option<&v1::Reservation>,
    statuses: &[v1::LimitStatus],
    replayed: bool,
) -> Result<u8, Failure> {
    if let Some(reservation) = reservation {
        let again = if replayed { " (replayed)" } else { "" };
        out.line(&format!("{}{again}", describe(reservation)))?;
    }
    if !statuses.is_empty() {
        out.table(&limits(statuses))?;
    }
    Ok(exit::OK)
}

fn describe(reservation: &v1::Reservation) -> String {
    let id = &reservation.reservation_id;
    match (reservation.state(), reservation.expire_time) {
        (v1::ReservationState::Held, Some(until)) => {
            format!("reserved {id} (held until {})", instant(until))
        }
        (v1::ReservationState::Held, None) => format!("reserved {id}"),
        (v1::ReservationState::Committed, _) => format!("committed {id}"),
        (v1::ReservationState::Released, _) => format!("released {id}"),
        (v1::ReservationState::Expired, _) => format!("expired {id}"),
        (v1::ReservationState::Unspecified, _) => id.clone(),
    }
}
