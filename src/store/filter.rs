//! Which records a listing asks for.

use crate::domain::name::{SubjectKey, join_key};

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
