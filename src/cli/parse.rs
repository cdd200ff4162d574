//! What people type, as what it means. Every parser answers with a sentence
//! that says what would have been right.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use prost_types::Timestamp;

use super::output::Failure;
use crate::api::times;
use crate::domain::name::quoted;
use crate::domain::time::{Span, Time};
use crate::proto::v1;
use crate::proto::v1::r#override::Change;
use crate::server::StoreClock;
use crate::store::document::policy::parse_length;

/// `KEY=VALUE`, where the value may hold anything.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

/// A map of such pairs.
pub(super) fn map(
    what: &str,
    pairs: Vec<(String, String)>,
) -> Result<HashMap<String, String>, Failure> {
    let mut map = HashMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        let earlier = map.insert(key.clone(), value.clone());
        if earlier.is_some_and(|earlier| earlier != value) {
            let message = format!("{what} gives {} two different values", quoted(&key));
            return Err(Failure::Usage(message));
        }
    }
    Ok(map)
}

/// Refuses a name that stands in a list twice.
pub(super) fn distinct<'a>(
    what: &str,
    names: impl IntoIterator<Item = &'a String>,
) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        Some(twice) => Err(Failure::Usage(format!("{what} name {} twice", quoted(twice)))),
        None => Ok(()),
    }
}

/// `METRIC[=AMOUNT][,DIM=VALUE]...`.
pub(super) fn item(text: &str) -> Result<v1::Item, String> {
    let mut parts = text.split(',');
    let head = parts.next().unwrap_or_default();
    let (metric, amount) = match head.split_once('=') {
        Some((metric, amount)) => (metric, Some(whole(amount)?)),
        None => (head, None),
    };
    if metric.is_empty() {
        return Err("must be METRIC[=AMOUNT][,DIM=VALUE]...".to_owned());
    }
    let mut dimensions = HashMap::new();
    for part in parts {
        let (key, value) = pair(part).map_err(|_| {
            format!("{} must be DIM=VALUE; give a value that has a comma by -d", quoted(part))
        })?;
        if dimensions.insert(key.clone(), value).is_some() {
            return Err(format!("names {} twice", quoted(&key)));
        }
    }
    Ok(v1::Item { metric: metric.to_owned(), amount, dimensions })
}

/// A length of time such as `90s`.
pub(super) fn length(text: &str) -> Result<Span, String> {
    parse_length(text)
}

/// The same, above zero, for this process's own clock.
pub(super) fn patience(text: &str) -> Result<Duration, String> {
    let millis = u64::try_from(parse_length(text)?.as_millis()).unwrap_or_default();
    if millis == 0 || millis > 86_400_000 {
        return Err("must be 1ms to 24h".to_owned());
    }
    Ok(Duration::from_millis(millis))
}

/// An instant by RFC 3339.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    let malformed =
        || format!("must be an instant such as 2026-08-15T00:00:00Z, not {}", quoted(text));
    time(text).map(times::timestamp).ok_or_else(malformed)
}

fn time(text: &str) -> Option<Time> {
    let instant: jiff::Timestamp = text.parse().ok()?;
    Time::from_millis(instant.as_millisecond())
}

/// `now`, or the instant at which a test clock begins.
pub(super) fn test_clock(text: &str) -> Result<StoreClock, String> {
    // A variable cannot be set without a value.
    if matches!(text, "now" | "true" | "1") {
        return Ok(StoreClock::Test(None));
    }
    let malformed =
        || format!("must be now or an instant such as 2026-08-15T00:00:00Z, not {}", quoted(text));
    time(text).map(|time| StoreClock::Test(Some(time))).ok_or_else(malformed)
}

/// `KIND/ID`; an id may hold further slashes.
pub(super) fn subject(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((kind, id)) if !kind.is_empty() && !id.is_empty() => {
            Ok((kind.to_owned(), id.to_owned()))
        }
        _ => Err("must be KIND/ID, such as user/42".to_owned()),
    }
}

/// `LIMIT=N[@UNTIL]`, where N replaces the max.
pub(super) fn set(text: &str) -> Result<v1::Override, String> {
    change(text, Change::Set)
}

/// `LIMIT=N[@UNTIL]`, where N is added to the max.
pub(super) fn add(text: &str) -> Result<v1::Override, String> {
    change(text, Change::Add)
}

fn change(text: &str, change: impl FnOnce(i64) -> Change) -> Result<v1::Override, String> {
    let malformed = || "must be LIMIT=N or LIMIT=N@UNTIL".to_owned();
    // From the right: a limit's name may hold both signs.
    let (limit, rest) = text.rsplit_once('=').ok_or_else(malformed)?;
    if limit.is_empty() {
        return Err(malformed());
    }
    let (number, until) = match rest.split_once('@') {
        Some((number, until)) => (number, Some(instant(until)?)),
        None => (rest, None),
    };
    let change = Some(change(whole(number)?));
    Ok(v1::Override { limit: limit.to_owned(), change, expire_time: until })
}

fn whole(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{} must be a whole number of 64 bits", quoted(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_carry_amounts_and_dimensions_of_their_own() {
        let plain = item("posts").unwrap();
        assert_eq!((plain.metric.as_str(), plain.amount), ("posts", None));
        let full = item("purchases=3,item=sword,note=a=b").unwrap();
        assert_eq!(full.amount, Some(3));
        assert_eq!(full.dimensions["item"], "sword");
        assert_eq!(full.dimensions["note"], "a=b");
        for bad in ["", "=3", "posts=", "posts=x", "posts=1.5", "posts,user", "posts,u=1,u=2"] {
            assert!(item(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn overrides_may_end() {
        let until = set("a=b@c=10@2026-09-01T00:00:00Z").unwrap();
        assert_eq!(until.limit, "a=b@c");
        assert_eq!(until.change, Some(Change::Set(10)));
        assert_eq!(until.expire_time.unwrap().seconds, 1_788_220_800);
        let less = add("posts=-5").unwrap();
        assert_eq!((less.change, less.expire_time), (Some(Change::Add(-5)), None));
        for bad in ["", "posts", "=5", "posts=", "posts=5@", "posts=5@tomorrow"] {
            assert!(set(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_test_clock_begins_now_or_at_an_instant() {
        for now in ["now", "true", "1"] {
            assert_eq!(test_clock(now), Ok(StoreClock::Test(None)));
        }
        let at = Time::from_millis(1_709_164_800_000);
        assert_eq!(test_clock("2024-02-29T01:00:00+01:00"), Ok(StoreClock::Test(at)));
        for bad in ["", "yes", "2024-02-30T00:00:00Z", "2024-02-29"] {
            assert!(test_clock(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn subjects_have_a_kind_and_an_id() {
        assert_eq!(subject("user/a/b"), Ok(("user".to_owned(), "a/b".to_owned())));
        for bad in ["user", "user/", "/42", ""] {
            assert!(subject(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn two_values_for_one_key_are_refused() {
        let of = |pairs: [&str; 2]| map("-d", pairs.map(|text| pair(text).unwrap()).into());
        assert_eq!(of(["a=1", "a=1"]).unwrap()["a"], "1");
        assert!(of(["a=1", "a=2"]).is_err());
    }
}
