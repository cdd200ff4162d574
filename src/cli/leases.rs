//! `quotad extend` and `refund`.

use clap::Args;

use super::calls::settled;
use super::connect::{Connect, Namespace};
use super::output::{Failure, instant};
use super::{exit, parse};
use crate::api::times;
use crate::domain::time::Span;
use crate::proto::v1;

/// What was typed after `extend`.
#[derive(Debug, Args)]
pub(super) struct Extend {
    #[command(flatten)]
    namespace: Namespace,
    /// The reservation's id.
    id: String,
    /// How long from now, 1s to 24h; 60s by default. A hold that lasts longer
    /// already is left as it is.
    #[arg(long, value_name = "LENGTH", value_parser = parse::length)]
    ttl: Option<Span>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Puts off a hold's end.
pub(super) async fn extend(args: Extend) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::ExtendRequest {
        namespace: args.namespace.namespace,
        reservation_id: args.id,
        ttl: args.ttl.map(times::duration),
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().extend(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    if let Some(reservation) = &answer.reservation {
        let until = reservation.expire_time.map_or_else(String::new, instant);
        out.line(&format!("extended {} (held until {until})", reservation.reservation_id))?;
    }
    Ok(exit::OK)
}

/// What was typed after `refund`.
#[derive(Debug, Args)]
pub(super) struct Refund {
    #[command(flatten)]
    namespace: Namespace,
    /// The reservation's id.
    #[arg(required_unless_present = "resource", conflicts_with = "resource")]
    id: Option<String>,
    /// A resource that it is bound to, instead of its id.
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The refund's own id, which makes sending it again harmless; a new one by
    /// default.
    #[arg(long = "refund-id", value_name = "ID")]
    own_id: Option<String>,
    /// Units to give back of each item, in the order of the reservation; all
    /// that is left by default.
    #[arg(long = "amount", value_name = "N", allow_negative_numbers = true)]
    amounts: Vec<i64>,
    /// Why, for its history.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    pub connect: Connect,
}

/// Gives back what was used.
pub(super) async fn refund(args: Refund) -> Result<u8, Failure> {
    let out = args.connect.output();
    let request = v1::RefundRequest {
        namespace: args.namespace.namespace,
        reservation_id: args.id.unwrap_or_default(),
        resource: args.resource.unwrap_or_default(),
        refund_id: args.own_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
        amounts: args.amounts,
        reason: args.reason,
    };
    let server = args.connect.connect().await?;
    let answer = server.quota().refund(server.call(request)).await?.into_inner();
    out.message(&answer)?;
    settled(out, answer.reservation.as_ref(), &answer.limits, answer.replayed)
}
