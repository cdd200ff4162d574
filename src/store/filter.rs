//! Which records a listing asks for.

use crate::domain::counter::series;
use crate::domain::name::{SubjectKey, join_key};
use crate::domain::time::Time;

/// Which reservations are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationFilter {
    /// Of this namespace.
    pub namespace: String,
    /// Charged to a counter of one of these series, which are of the namespace:
    /// see [`CounterId::series`](crate::domain::counter::CounterId::series).
    /// Empty for any, also for those that were charged to none.
    pub series: Vec<String>,
    /// Created at this instant or later.
    pub created_from: Option<Time>,
    /// Created before this instant.
    pub created_until: Option<Time>,
}

/// Which counters are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFilter {
    /// Of this namespace.
    pub namespace: String,
    /// Of this limit.
    pub limit: String,
    /// Of this definition of it.
    pub generation: i64,
    /// Of these windows.
    pub windows: Windows,
}

/// Windows, told apart by when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Those without end.
    Endless,
    /// Those that end at this instant.
    EndingAt(Time),
    /// Those without end, and those that end after this instant: some of them
    /// may begin after it too.
    EndingAfter(Time),
}

/// Where a counter stands in a listing: counters of windows without end come
/// first, then those of the window that ends soonest, each by its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterPlace {
    /// When its window ends.
    pub end: Option<Time>,
    /// Its text.
    pub text: String,
}

impl CounterFilter {
    /// How the texts of all counters begin that may be meant.
    pub(super) fn group(&self) -> String {
        group(&self.namespace, &self.limit, self.generation)
    }
}

/// What the texts of a limit's counters begin with, without a slash at the end.
pub(super) fn group(namespace: &str, limit: &str, generation: i64) -> String {
    series(namespace, limit, generation, &[])
}

/// Which subjects are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectFilter {
    /// Of this namespace.
    pub namespace: String,
    /// Of this kind; `None` for any.
    pub kind: Option<String>,
    /// On one of these plans, where the empty one is that of subjects that name
    /// none; `None` for any.
    pub plans: Option<Vec<String>>,
}

impl SubjectFilter {
    /// Whether a subject on that plan is meant.
    pub(super) fn has_plan(&self, plan: &str) -> bool {
        self.plans.as_ref().is_none_or(|plans| plans.iter().any(|one| one == plan))
    }

    /// The keys between which the subjects lie that may be meant, after that
    /// one; neither is among them. `None` where nothing is left.
    pub(super) fn between(&self, after: Option<&SubjectKey>) -> Option<(String, String)> {
        let parts = std::iter::once(&self.namespace).chain(&self.kind);
        let prefix = join_key(parts.map(String::as_str));
        // Another namespace or kind goes on with something else than the slash,
        // and the digit 0 is the character that follows it.
        let (first, end) = (format!("{prefix}/"), format!("{prefix}0"));
        let after = after.map_or("", SubjectKey::as_str).to_owned().max(first);
        (after < end).then_some((after, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_lies_between() {
        let filter = |namespace: &str, kind: Option<&str>| SubjectFilter {
            namespace: namespace.to_owned(),
            kind: kind.map(str::to_owned),
            plans: None,
        };
        let names = ["a", "a%", "a/b", "a0", "ab", "a!", "A", "%2F", "/", "\u{10ffff}"];
        for (namespace, kind) in names.iter().flat_map(|n| names.iter().map(move |k| (*n, *k))) {
            for id in ["\u{1}", "x", "a/b", "\u{10ffff}"] {
                let key = SubjectKey::new(namespace, kind, id);
                for (other, of_kind) in names.iter().flat_map(|n| names.map(|k| (*n, k))) {
                    let (after, end) = filter(other, None).between(None).unwrap();
                    let within = *after < *key.as_str() && *key.as_str() < *end;
                    assert_eq!(within, other == namespace, "{key} in {other}");
                    let (after, end) = filter(other, Some(of_kind)).between(None).unwrap();
                    let within = *after < *key.as_str() && *key.as_str() < *end;
                    assert_eq!(within, (other, of_kind) == (namespace, kind), "{key}");
                }
            }
        }
        let beyond = SubjectKey::new("b", "user", "1");
        assert_eq!(filter("a", None).between(Some(&beyond)), None);
    }
}
