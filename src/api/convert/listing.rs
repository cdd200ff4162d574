//! Listings of reservations and counters: what is asked for, and where a page
//! begins.

use super::page::{Page, token_fault};
use super::request::Faults;
use super::times::time;
use crate::domain::name::{Dimensions, ReservationKey, Violation, check_map, check_name, join_key};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::ReservationState;
use crate::domain::time::Time;
use crate::engine::{CountersPlace, CountersQuery, ReservationPlace, ReservationQuery};
use crate::proto::v1;
use crate::store::CounterPlace;

/// A listing: what is asked for, the page, and the place that it begins behind.
pub struct Listing<Q, P> {
    pub query: Q,
    pub page: Page,
    pub place: Option<P>,
}

/// A `ListReservations`.
///
/// # Errors
///
/// Every fault of the request.
pub fn reservations(
    request: v1::ListReservationsRequest,
) -> Result<Listing<ReservationQuery, ReservationPlace>, Refusal> {
    let mut faults = Faults::default();
    check_name("namespace", &request.namespace, &mut faults.0);
    let states = states(&request.states, &mut faults.0);
    let dimensions: Dimensions = request.dimensions.into_iter().collect();
    check_map("dimensions", &dimensions, &mut faults.0);
    let [created_from, created_until] = range(
        ["created_after", "created_before"],
        [request.created_after, request.created_before],
        &mut faults.0,
    );
    let [expiring_from, expiring_until] = range(
        ["expiring_after", "expiring_before"],
        [request.expiring_after, request.expiring_before],
        &mut faults.0,
    );
    let query = ReservationQuery {
        namespace: request.namespace,
        states,
        metric: given("metric", request.metric, &mut faults.0),
        limit: given("limit", request.limit, &mut faults.0),
        dimensions,
        created_from,
        created_until,
        expiring_from,
        expiring_until,
    };
    let (size, token) = (request.page_size, &request.page_token);
    let page = Page::new("ListReservations", [&*scope(&query)], size, token, &mut faults.0);
    let place = page.after.as_deref().map(|place| reservation_place(place).ok_or_else(token_fault));
    let place = kept(place, &mut faults.0);
    faults.or(Listing { query, page, place })
}

/// A `ListUsage`.
///
/// # Errors
///
/// Every fault of the request.
pub fn counters(
    request: v1::ListUsageRequest,
) -> Result<Listing<CountersQuery, CountersPlace>, Refusal> {
    let v1::ListUsageRequest { namespace, limit, at, min_utilization, page_size, page_token } =
        request;
    let mut faults = Faults::default();
    check_name("namespace", &namespace, &mut faults.0);
    check_name("limit", &limit, &mut faults.0);
    let at = kept(at.map(|at| time("at", at)), &mut faults.0);
    // Also no number at all.
    if !(0.0..=1.0).contains(&min_utilization) {
        let message = format!("is {min_utilization}; must be 0 to 1");
        faults.0.push(Violation::new("min_utilization", message));
    }
    let filters =
        [namespace.clone(), limit.clone(), shown(at), min_utilization.to_bits().to_string()];
    let filters = filters.iter().map(String::as_str);
    let page = Page::new("ListUsage", filters, page_size, &page_token, &mut faults.0);
    let place = page.after.as_deref().map(|place| counters_place(place).ok_or_else(token_fault));
    let place = kept(place, &mut faults.0);
    faults.or(Listing {
        query: CountersQuery { namespace, limit, at, min_utilization },
        page,
        place,
    })
}

/// What a token says of a place.
pub fn reservation_token(place: &ReservationPlace) -> String {
    format!("{} {}", place.create_time.as_millis(), place.key)
}

fn reservation_place(text: &str) -> Option<ReservationPlace> {
    let (time, key) = text.split_once(' ')?;
    Some(ReservationPlace { create_time: instant(time)?, key: ReservationKey::from_stored(key) })
}

/// What a token says of a place. The instant goes with it: what is listed as of
/// now is on every page of the window that was open on the first.
pub fn counter_token(place: &CountersPlace) -> String {
    let CountersPlace { at, counter: CounterPlace { end, text } } = place;
    format!("{} {} {text}", at.as_millis(), shown(*end))
}

fn counters_place(text: &str) -> Option<CountersPlace> {
    let mut parts = text.splitn(3, ' ');
    let (at, end, text) = (parts.next()?, parts.next()?, parts.next()?.to_owned());
    let end = if end.is_empty() { None } else { Some(instant(end)?) };
    Some(CountersPlace { at: instant(at)?, counter: CounterPlace { end, text } })
}

fn instant(millis: &str) -> Option<Time> {
    Time::from_millis(millis.parse().ok()?)
}

fn shown(time: Option<Time>) -> String {
    time.map_or_else(String::new, |time| time.as_millis().to_string())
}

/// All that is asked for, as one text.
fn scope(query: &ReservationQuery) -> String {
    let dimensions = query.dimensions.iter().flat_map(|(name, value)| [&**name, value]);
    let times =
        [query.created_from, query.created_until, query.expiring_from, query.expiring_until]
            .map(shown);
    let parts = [
        query.namespace.clone(),
        format!("{:?}", query.states),
        query.metric.clone().unwrap_or_default(),
        query.limit.clone().unwrap_or_default(),
        join_key(dimensions),
    ];
    join_key(parts.iter().chain(&times).map(String::as_str))
}

fn states(states: &[i32], faults: &mut Vec<Violation>) -> Vec<ReservationState> {
    let mut known = Vec::new();
    for (n, state) in states.iter().enumerate() {
        let state = match v1::ReservationState::try_from(*state) {
            Ok(v1::ReservationState::Held) => ReservationState::Held,
            Ok(v1::ReservationState::Committed) => ReservationState::Committed,
            Ok(v1::ReservationState::Released) => ReservationState::Released,
            Ok(v1::ReservationState::Expired) => ReservationState::Expired,
            Ok(v1::ReservationState::Unspecified) | Err(_) => {
                let message = "must be HELD, COMMITTED, RELEASED or EXPIRED";
                faults.push(Violation::new(format!("states[{n}]"), message));
                continue;
            }
        };
        // The same ones in any order are the same request.
        if let Err(at) = known.binary_search_by_key(&(state as u8), |known| *known as u8) {
            known.insert(at, state);
        }
    }
    known
}

fn range(
    fields: [&str; 2],
    given: [Option<prost_types::Timestamp>; 2],
    faults: &mut Vec<Violation>,
) -> [Option<Time>; 2] {
    let [from, until] = given;
    let from = kept(from.map(|at| time(fields[0], at)), faults);
    let until = kept(until.map(|at| time(fields[1], at)), faults);
    if let (Some(from), Some(until)) = (from, until)
        && from >= until
    {
        faults.push(Violation::new(fields[1], format!("must be after {}", fields[0])));
    }
    [from, until]
}

/// A name, where one is given.
fn given(field: &str, name: String, faults: &mut Vec<Violation>) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    check_name(field, &name, faults);
    Some(name)
}

fn kept<T>(checked: Option<Result<T, Violation>>, faults: &mut Vec<Violation>) -> Option<T> {
    checked.transpose().unwrap_or_else(|fault| {
        faults.push(fault);
        None
    })
}
