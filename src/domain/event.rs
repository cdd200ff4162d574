//! Events and refusals: the part of the trail that is not a reservation's own
//! history.

use super::name::Dimensions;
use super::refusal::Refusal;
use super::reservation::ItemRequest;
use super::status::LimitStatus;
use super::time::Time;

/// The most failing limits that the record of a refusal keeps.
pub const MAX_REFUSED_LIMITS: usize = 16;
/// The most bytes of items, and the most of limits, in the record of a refusal;
/// the first of each is kept whatever its size.
const MAX_REFUSED_BYTES: usize = 4096;

/// One change of a policy, a subject or a counter, stored in the same atomic
/// write as the change itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The namespace.
    pub namespace: String,
    /// When.
    pub time: Time,
    /// What.
    pub kind: EventKind,
    /// Who.
    pub principal: String,
    /// Why, where a reason was given.
    pub reason: String,
    /// The reservation concerned; empty when none is.
    pub reservation_id: String,
    /// The subject concerned, as `kind/id`; empty when none is.
    pub subject: String,
    /// The limits concerned, as they stood afterwards.
    pub limits: Vec<LimitStatus>,
    /// More, by name: revision, plan before and after, and so on.
    pub details: Dimensions,
    /// When retention may remove it; `None` keeps it for ever.
    pub purge_at: Option<Time>,
}

/// What happened in an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A policy got a new revision.
    PolicyApplied,
    /// A subject was created or changed.
    SubjectPut,
    /// A subject was deleted.
    SubjectDeleted,
    /// A counter was set to what its reservations add up to.
    Repaired,
    /// A grant that could no longer be delivered was undone.
    GrantUndone,
}

impl Event {
    /// An event of which no more is known yet.
    pub fn new(namespace: &str, kind: EventKind, principal: &str, time: Time) -> Self {
        Self {
            namespace: namespace.to_owned(),
            time,
            kind,
            principal: principal.to_owned(),
            reason: String::new(),
            reservation_id: String::new(),
            subject: String::new(),
            limits: Vec::new(),
            details: Dimensions::new(),
            purge_at: None,
        }
    }

    /// The mending of a counter, which stands so afterwards: `what` differed,
    /// of which `before` units were stored and `after` were right.
    pub fn repaired(
        principal: &str,
        reason: &str,
        counter: LimitStatus,
        what: &str,
        (before, after): (i64, i64),
        time: Time,
    ) -> Self {
        let details = [
            ("what", what.to_owned()),
            ("before", before.to_string()),
            ("after", after.to_string()),
        ];
        let namespace = counter.counter.namespace.clone();
        Self {
            reason: reason.to_owned(),
            limits: vec![counter],
            details: details.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Self::new(&namespace, EventKind::Repaired, principal, time)
        }
    }

    /// The undoing of a grant that its caller never heard of; the limits stand
    /// so afterwards.
    pub fn grant_undone(
        namespace: &str,
        reservation_id: &str,
        principal: &str,
        reason: &str,
        limits: Vec<LimitStatus>,
        time: Time,
    ) -> Self {
        Self {
            reason: reason.to_owned(),
            reservation_id: reservation_id.to_owned(),
            limits,
            ..Self::new(namespace, EventKind::GrantUndone, principal, time)
        }
    }
}

/// A call that was refused: kept for a while, best effort, so that "why was
/// this refused" has an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRecord {
    /// The namespace.
    pub namespace: String,
    /// When.
    pub time: Time,
    /// Who asked.
    pub principal: String,
    /// The reservation that was asked for or about.
    pub reservation_id: String,
    /// What was asked: `reserve`, `commit` and so on.
    pub call: String,
    /// What the contract calls the refusal.
    pub reason: String,
    /// What was asked for, as many items as are kept; none of a call about a
    /// reservation that exists.
    pub items: Vec<ItemRequest>,
    /// The limits that had no room, most binding first, as many as are kept.
    pub limits: Vec<LimitStatus>,
    /// The refusal in words.
    pub message: String,
    /// The values that it rests on, by name.
    pub details: Dimensions,
}

impl RefusalRecord {
    /// Cuts off what a record does not keep.
    pub fn shorten(&mut self) {
        keep(&mut self.items, MAX_REFUSED_LIMITS, item_weight);
        keep(&mut self.limits, MAX_REFUSED_LIMITS, LimitStatus::weight);
    }

    /// About how many bytes it has.
    pub fn weight(&self) -> usize {
        let names = [&self.namespace, &self.principal, &self.reservation_id, &self.message];
        let items: usize = self.items.iter().map(item_weight).sum();
        let limits: usize = self.limits.iter().map(LimitStatus::weight).sum();
        128 + names.map(String::len).iter().sum::<usize>()
            + items
            + limits
            + map_weight(&self.details)
    }

    /// Whether an item names this subject, which is given as `kind/id`.
    pub fn names(&self, subject: &str) -> bool {
        names_subject(&self.items, subject)
    }
}

/// The limits that a refusal is about; none where it is about something else.
pub fn failing(refusal: &Refusal) -> &[LimitStatus] {
    match refusal {
        Refusal::QuotaExceeded { limits, .. } | Refusal::WaitTimedOut { limits, .. } => limits,
        _ => &[],
    }
}

/// Whether an item has a dimension that is this subject, given as `kind/id`.
pub fn names_subject(items: &[ItemRequest], subject: &str) -> bool {
    // A kind may hold a slash, and so may an id.
    let is = |(kind, id): (&String, &String)| {
        subject.strip_prefix(kind.as_str()).and_then(|rest| rest.strip_prefix('/')) == Some(id)
    };
    items.iter().any(|item| item.dimensions.iter().any(is))
}

/// Keeps the first entries: at most that many, and as many as fit, but one.
fn keep<T>(entries: &mut Vec<T>, most: usize, weight: fn(&T) -> usize) {
    let mut bytes = 0;
    let fitting = entries.iter().take(most).take_while(|entry| {
        bytes += weight(entry);
        bytes <= MAX_REFUSED_BYTES
    });
    let count = fitting.count().max(1);
    entries.truncate(count);
}

fn item_weight(item: &ItemRequest) -> usize {
    32 + item.metric.len() + map_weight(&item.dimensions)
}

/// About how many bytes a map has.
pub fn map_weight(map: &Dimensions) -> usize {
    map.iter().map(|(name, value)| name.len() + value.len() + 16).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(pairs: &[(&str, &str)]) -> ItemRequest {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ItemRequest { metric: "m".to_owned(), amount: 1, dimensions: pairs.collect() }
    }

    fn record(items: Vec<ItemRequest>) -> RefusalRecord {
        RefusalRecord {
            namespace: "n".to_owned(),
            time: Time::default(),
            principal: String::new(),
            reservation_id: "r".to_owned(),
            call: "reserve".to_owned(),
            reason: "QUOTA_EXCEEDED".to_owned(),
            items,
            limits: Vec::new(),
            message: String::new(),
            details: Dimensions::new(),
        }
    }

    #[test]
    fn a_subject_is_named_by_a_dimension_and_its_value() {
        let refused = record(vec![item(&[("app", "x")]), item(&[("user", "a/b"), ("x/y", "z")])]);
        for named in ["app/x", "user/a/b", "x/y/z"] {
            assert!(refused.names(named), "{named}");
        }
        for other in ["", "app", "app/", "app/xx", "user/a", "user//a/b", "x/y", "y/z", "appx"] {
            assert!(!refused.names(other), "{other}");
        }
    }

    #[test]
    fn a_record_is_bounded_but_never_empty() {
        let small = item(&[("user", "1")]);
        let mut many = record(vec![small.clone(); 64]);
        many.shorten();
        assert_eq!(many.items.len(), MAX_REFUSED_LIMITS);
        let value = "x".repeat(1500);
        let large = item(&[("user", &value)]);
        let mut heavy = record(vec![large.clone(); 64]);
        heavy.shorten();
        assert_eq!(heavy.items.len(), 2);
        let huge = "x".repeat(2 * MAX_REFUSED_BYTES);
        let mut first = record(vec![item(&[("user", &huge)]), small]);
        first.shorten();
        assert_eq!(first.items.len(), 1);
        assert!(first.weight() > huge.len());
        let mut empty = record(Vec::new());
        empty.shorten();
        assert!(empty.items.is_empty() && empty.weight() < 1000);
    }
}
