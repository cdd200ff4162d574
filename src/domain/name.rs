//! Names that callers choose, and the keys that records are found by.
//!
//! A key is one string, built so that two different tuples never make the same
//! one: `/` separates the parts and is escaped inside them, as is `%`. A string
//! is readable in a database shell, where a hash would not be, and works as a
//! hashed shard key, where an array would not.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The longest name, id, dimension key or dimension value, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 256;
/// The most entries of a map of dimensions or labels.
pub const MAX_MAP_ENTRIES: usize = 16;

/// Facts about an item, by dimension; also labels. Ordered, so that the order
/// in which a caller wrote them never matters.
pub type Dimensions = BTreeMap<String, String>;

/// One fault of an input: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, such as `items[0].amount`.
    pub field: String,
    /// What is wrong, naming the bound.
    pub message: String,
}

impl Violation {
    /// A fault of `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// What is wrong with `name` as a name: it must have 1 to
/// [`MAX_NAME_BYTES`] bytes and no control characters. Dots, dollars, slashes
/// and spaces are ordinary, and nothing is normalised.
pub fn name_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        Some(format!("must not be empty (1 to {MAX_NAME_BYTES} bytes)"))
    } else if name.len() > MAX_NAME_BYTES {
        Some(format!("has {} bytes; at most {MAX_NAME_BYTES} are allowed", name.len()))
    } else if name.chars().any(char::is_control) {
        Some("must not contain control characters".to_owned())
    } else {
        None
    }
}

/// Adds a violation when `name` is not a proper name.
pub fn check_name(field: &str, name: &str, violations: &mut Vec<Violation>) {
    if let Some(message) = name_fault(name) {
        violations.push(Violation::new(field, message));
    }
}

/// Adds a violation for every entry of `map` that is not a proper pair of
/// names, and one when there are more than [`MAX_MAP_ENTRIES`].
pub fn check_map(field: &str, map: &Dimensions, violations: &mut Vec<Violation>) {
    if map.len() > MAX_MAP_ENTRIES {
        let message = format!("has {} entries; at most {MAX_MAP_ENTRIES} are allowed", map.len());
        violations.push(Violation::new(field, message));
    }
    for (key, value) in map {
        if let Some(message) = name_fault(key) {
            violations.push(Violation::new(field, format!("key {} {message}", quoted(key))));
        }
        if let Some(message) = name_fault(value) {
            violations.push(Violation::new(format!("{field}[{}]", shown(key)), message));
        }
    }
}

/// `text` in quotes, shortened and without control characters, for a message.
pub fn quoted(text: &str) -> String {
    format!("'{}'", shown(text))
}

fn shown(text: &str) -> String {
    const MOST: usize = 64;
    let mut short: String =
        text.chars().take(MOST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

/// Joins the parts of a key, reversibly.
pub fn join_key<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut key = String::new();
    for (n, part) in parts.into_iter().enumerate() {
        if n > 0 {
            key.push('/');
        }
        key.push_str(&escape(part));
    }
    key
}

/// The parts that [`join_key`] was given.
pub fn split_key(key: &str) -> Vec<String> {
    key.split('/').map(|part| unescape(part).into_owned()).collect()
}

fn unescape(part: &str) -> Cow<'_, str> {
    if part.contains('%') {
        Cow::Owned(part.replace("%2F", "/").replace("%25", "%"))
    } else {
        Cow::Borrowed(part)
    }
}

fn escape(part: &str) -> Cow<'_, str> {
    if part.contains(['%', '/']) {
        Cow::Owned(part.replace('%', "%25").replace('/', "%2F"))
    } else {
        Cow::Borrowed(part)
    }
}

macro_rules! key_type {
    ($(#[$doc:meta])* $name:ident ( $($part:ident),+ )) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The key of these parts.
            pub fn new($($part: &str),+) -> Self {
                Self(join_key([$($part),+]).into())
            }

            /// The key that a store returned.
            pub fn from_stored(key: impl Into<Arc<str>>) -> Self {
                Self(key.into())
            }

            /// The key as one string.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The namespace that the record lives in.
            pub fn namespace(&self) -> Cow<'_, str> {
                unescape(self.0.split('/').next().unwrap_or_default())
            }

            /// The part in that place, counted from 0.
            fn part(&self, place: usize) -> Option<Cow<'_, str>> {
                self.0.split('/').nth(place).map(unescape)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

key_type!(
    /// Finds a reservation: namespace and reservation id.
    ReservationKey(namespace, id)
);
key_type!(
    /// Finds the binding of a resource: namespace and resource name.
    ResourceKey(namespace, resource)
);
key_type!(
    /// Finds a subject: namespace, kind and id.
    SubjectKey(namespace, kind, id)
);

impl ReservationKey {
    /// The caller's own id, without the namespace.
    pub fn id(&self) -> Cow<'_, str> {
        self.part(1).unwrap_or_default()
    }
}

impl SubjectKey {
    /// The subject's id, without kind and namespace.
    pub fn id(&self) -> Cow<'_, str> {
        self.part(2).unwrap_or_default()
    }
}

impl ResourceKey {
    /// The key under which a refund that was asked for by resource leaves whose
    /// it was, so that the same call again finds it when the resource is free,
    /// or another's. It has a part more than a resource's own key.
    pub fn of_refund(namespace: &str, resource: &str, refund_id: &str) -> Self {
        Self(join_key([namespace, resource, refund_id]).into())
    }

    /// The resource's name, without the namespace.
    pub fn resource(&self) -> Cow<'_, str> {
        self.part(1).unwrap_or_default()
    }

    /// The refund's id, where this is the key of one.
    pub fn refund_id(&self) -> Option<Cow<'_, str>> {
        self.part(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn different_tuples_never_share_a_key(
            a in proptest::collection::vec("[a%/.$2F5]{0,4}", 3),
            b in proptest::collection::vec("[a%/.$2F5]{0,4}", 3),
        ) {
            let key = |parts: &[String]| join_key(parts.iter().map(String::as_str));
            prop_assert_eq!(key(&a) == key(&b), a == b);
            prop_assert_eq!(split_key(&key(&a)), a);
        }
    }

    #[test]
    fn names_are_bounded_in_bytes_and_have_no_control_characters() {
        assert_eq!(name_fault("a.b $x/y ü"), None);
        assert_eq!(name_fault(&"x".repeat(256)), None);
        assert!(name_fault(&"x".repeat(257)).unwrap().contains("257 bytes; at most 256"));
        assert!(name_fault(&"ü".repeat(129)).is_some());
        for bad in ["", "a\0b", "a\nb", "\u{85}"] {
            assert!(name_fault(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn messages_show_long_and_strange_names_safely() {
        assert_eq!(quoted("a\nb"), "'a\u{fffd}b'");
        assert_eq!(quoted(&"x".repeat(300)).chars().count(), 64 + 3);
    }
}
