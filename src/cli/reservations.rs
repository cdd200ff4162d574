//! `quotad reservations`: which reservations there are, newest first.

use clap::{Args, ValueEnum};
use comfy_table::Table;
use prost_types::Timestamp;

use super::connect::{Connect, MAX_PAGE, Namespace};
use super::output::{Failure, Stream, instant, table};
use super::{exit, parse};
use crate::proto::v1;

/// What was typed after `reservations`.
#[derive(Debug, Args)]
pub(super) struct Reservations {
    #[command(flatten)]
    namespace: Namespace,
    /// Only those charged to this limit. With -d for all that it counts by, the
    /// answer comes at once, however many there are.
    #[arg(long)]
    limit: Option<String>,
    /// Only those with an item of this metric.
    #[arg(long)]
    metric: Option<String>,
    /// Only those with an item that has this dimension; may be repeated.
    #[arg(short, long = "dim", value_name = "KEY=VALUE", value_parser = parse::pair)]
    dims: Vec<(String, String)>,
    /// Only those in this state; may be repeated.
    #[arg(long = "state", value_name = "STATE")]
    states: Vec<State>,
    /// Only those created at this instant or later, such as
    /// 2026-08-15T00:00:00Z.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    created_after: Option<Timestamp>,
    /// Only those created before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    created_before: Option<Timestamp>,
    /// Only those that expire at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    expiring_after: Option<Timestamp>,
    /// Only those that expire before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    expiring_before: Option<Timestamp>,
    /// At most so many, the newest; 0 means all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    #[command(flatten)]
    pub connect: Connect,
}

/// Where a reservation may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Units are held.
    Held,
    /// Units are used.
    Committed,
    /// Given back.
    Released,
    /// Ran out unsettled.
    Expired,
}

impl State {
    fn of_contract(self) -> v1::ReservationState {
        match self {
            Self::Held => v1::ReservationState::Held,
            Self::Committed => v1::ReservationState::Committed,
            Self::Released => v1::ReservationState::Released,
            Self::Expired => v1::ReservationState::Expired,
        }
    }
}

/// Lists reservations.
pub(super) async fn run(args: Reservations) -> Result<u8, Failure> {
    let out = args.connect.output();
    let mut request = v1::ListReservationsRequest {
        namespace: args.namespace.namespace,
        states: args.states.iter().map(|state| state.of_contract().into()).collect(),
        metric: args.metric.unwrap_or_default(),
        limit: args.limit.unwrap_or_default(),
        dimensions: parse::map("-d", args.dims)?,
        created_after: args.created_after,
        created_before: args.created_before,
        expiring_after: args.expiring_after,
        expiring_before: args.expiring_before,
        page_size: match i32::try_from(args.most) {
            Ok(most) if most > 0 => most.min(MAX_PAGE),
            _ => MAX_PAGE,
        },
        page_token: String::new(),
    };
    let server = args.connect.connect().await?;
    let mut table = reservations_table();
    let mut left = if args.most == 0 { usize::MAX } else { args.most };
    while left > 0 {
        let call = server.call(request.clone());
        let page = server.quota().list_reservations(call).await?.into_inner();
        for reservation in page.reservations.iter().take(left) {
            out.one_of_many(reservation)?;
            table.add_row(row(reservation));
        }
        left = left.saturating_sub(page.reservations.len());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    out.table(&table)?;
    Ok(exit::OK)
}

/// Reservations, for people.
pub(super) fn table_of(reservations: &[v1::Reservation]) -> Table {
    let mut table = reservations_table();
    for reservation in reservations {
        table.add_row(row(reservation));
    }
    table
}

fn reservations_table() -> Table {
    let header = ["RESERVATION", "STATE", "CREATED", "EXPIRES", "HOLDER", "ITEMS"];
    table(Stream::Stdout, header, header.len())
}

/// A reservation on one line.
fn row(reservation: &v1::Reservation) -> [String; 6] {
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), instant);
    // Only a hold still runs out.
    let open =
        matches!(reservation.state(), v1::ReservationState::Held | v1::ReservationState::Expired);
    [
        reservation.reservation_id.clone(),
        state(reservation.state()).to_owned(),
        time(reservation.create_time),
        time(reservation.expire_time.filter(|_| open)),
        reservation.principal.clone(),
        reservation.items.iter().map(item).collect::<Vec<_>>().join("; "),
    ]
}

fn state(state: v1::ReservationState) -> &'static str {
    match state {
        v1::ReservationState::Held => "held",
        v1::ReservationState::Committed => "committed",
        v1::ReservationState::Released => "released",
        v1::ReservationState::Expired => "expired",
        v1::ReservationState::Unspecified => "-",
    }
}

/// Metric, amount and dimensions of an item, as they are typed for reserve.
fn item(item: &v1::ReservationItem) -> String {
    let mut dimensions: Vec<_> = item.dimensions.iter().collect();
    dimensions.sort();
    let dimensions = dimensions.into_iter().map(|(name, value)| format!(",{name}={value}"));
    format!("{}={}{}", item.metric, item.reserved_amount, dimensions.collect::<String>())
}
