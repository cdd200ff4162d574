//! The trail, to and fro.

use super::answer::{limits, map, step_name, window};
use super::page::{Page, token_fault};
use super::request::Faults;
use super::times::{time, timestamp};
use crate::domain::event::EventKind;
use crate::domain::name::{MAX_NAME_BYTES, Violation, check_name};
use crate::domain::refusal::Refusal;
use crate::domain::trail::{CounterChange, TrailEntry, TrailKind, bounds};
use crate::engine::{TrailMark, TrailQuery};
use crate::proto::v1;

/// The longest subject: kind, slash and id.
const MAX_SUBJECT: usize = 2 * MAX_NAME_BYTES + 1;

/// What a `ListEvents` asks for.
pub struct Listing {
    pub query: TrailQuery,
    pub page: Page,
    /// Where the page begins.
    pub after: Option<TrailMark>,
}

/// A `ListEvents`.
///
/// # Errors
///
/// Every fault of the request.
pub fn listing(request: v1::ListEventsRequest) -> Result<Listing, Refusal> {
    let mut faults = Faults::default();
    check_name("namespace", &request.namespace, &mut faults.0);
    let given = |text: String| (!text.is_empty()).then_some(text);
    let subject = given(request.subject);
    if let Some(fault) = subject.as_deref().and_then(subject_fault) {
        faults.0.push(Violation::new("subject", fault));
    }
    let mut name = |field: &str, name: String| {
        let name = given(name)?;
        check_name(field, &name, &mut faults.0);
        Some(name)
    };
    let reservation_id = name("reservation_id", request.reservation_id);
    let limit = name("limit", request.limit);
    let mut instant = |field: &str, at: Option<prost_types::Timestamp>| {
        time(field, at?).map_err(|fault| faults.0.push(fault)).ok()
    };
    let from = instant("start_time", request.start_time);
    let until = instant("end_time", request.end_time);
    if let (Some(from), Some(until)) = (from, until)
        && until < from
    {
        faults.0.push(Violation::new("end_time", "must not be before start_time"));
    }
    let instants = [from, until].map(|at| at.map_or_else(String::new, |at| at.to_string()));
    let query =
        TrailQuery { namespace: request.namespace, subject, reservation_id, limit, from, until };
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    let texts = [of(&query.subject), of(&query.reservation_id), of(&query.limit)];
    let filters = std::iter::once(&query.namespace).chain(&texts).chain(&instants);
    let filters = filters.map(String::as_str);
    let (size, token) = (request.page_size, &request.page_token);
    let page = Page::new("ListEvents", filters, size, token, &mut faults.0);
    let after = page.after.as_deref().map(TrailMark::parse);
    if matches!(after, Some(None)) {
        faults.0.push(token_fault());
    }
    faults.or(Listing { query, page, after: after.flatten() })
}

/// What is wrong with a subject.
fn subject_fault(subject: &str) -> Option<String> {
    let parted = subject.split_once('/');
    if subject.len() > MAX_SUBJECT {
        Some(format!("has {} bytes; at most {MAX_SUBJECT} are allowed", subject.len()))
    } else if subject.chars().any(char::is_control) {
        Some("must not contain control characters".to_owned())
    } else if parted.is_none_or(|(kind, id)| kind.is_empty() || id.is_empty()) {
        Some("must be kind/id, such as user/42".to_owned())
    } else {
        None
    }
}

/// An entry of the trail.
pub fn event(entry: TrailEntry) -> v1::Event {
    let kind = match entry.kind {
        TrailKind::Step(step) => step_name(step),
        TrailKind::Change(kind) => change_word(kind),
        TrailKind::Refused => "refused",
    };
    v1::Event {
        time: Some(timestamp(entry.time)),
        kind: kind.to_owned(),
        principal: entry.principal,
        reason: entry.reason,
        reservation_id: entry.reservation_id,
        subject: entry.subject,
        limits: limits(&entry.limits),
        details: entry.details.into_iter().collect(),
        changes: entry.changes.iter().map(change).collect(),
    }
}

fn change_word(kind: EventKind) -> &'static str {
    match kind {
        EventKind::PolicyApplied => "policy applied",
        EventKind::SubjectPut => "subject put",
        EventKind::SubjectDeleted => "subject deleted",
        EventKind::Repaired => "repaired",
        EventKind::GrantUndone => "grant undone",
    }
}

fn change(change: &CounterChange) -> v1::CounterChange {
    v1::CounterChange {
        limit: change.counter.limit.clone(),
        key: map(&change.counter.key),
        window: bounds(&change.counter.window).map(window),
        used_delta: change.used,
        held_delta: change.held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_bounded_and_all_faults_are_found() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let request = v1::ListEventsRequest {
            namespace: String::new(),
            subject: "user".to_owned(),
            reservation_id: "x".repeat(257),
            limit: "a\nb".to_owned(),
            start_time: at(5),
            end_time: at(4),
            page_size: 1001,
            page_token: "x".to_owned(),
        };
        let Err(Refusal::InvalidFields(faults)) = listing(request) else { panic!("no faults") };
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        let expected = [
            "namespace",
            "subject",
            "reservation_id",
            "limit",
            "end_time",
            "page_size",
            "page_token",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_subject_has_a_kind_and_an_id() {
        let longest = format!("{}/{}", "k".repeat(256), "i".repeat(256));
        for good in ["user/42", "a/b/c", "user//", &longest] {
            assert_eq!(subject_fault(good), None, "{good}");
        }
        for bad in ["user", "/42", "user/", "a/\0", &format!("{longest}x")] {
            assert!(subject_fault(bad).is_some(), "{bad}");
        }
    }
}
