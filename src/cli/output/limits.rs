//! Limits as a table.

use comfy_table::{Cell, Table};

use super::{Stream, instant, table};
use crate::proto::v1;
use crate::proto::v1::limit_status::Bound;

/// The columns that every table of limits has.
const COLUMNS: [&str; 7] = ["LIMIT", "KEY", "WINDOW", "MAX", "USED", "HELD", "AVAILABLE"];
/// How many of them are words.
const WORDS: usize = 3;

/// Where limits stand.
pub(in crate::cli) fn limits(limits: &[v1::LimitStatus]) -> Table {
    let mut table = no_limits();
    for limit in limits {
        add_limit(&mut table, limit);
    }
    table
}

/// The same of none, to be added to one by one.
pub(in crate::cli) fn no_limits() -> Table {
    table(Stream::Stdout, COLUMNS, WORDS)
}

/// Adds a limit.
pub(in crate::cli) fn add_limit(table: &mut Table, limit: &v1::LimitStatus) {
    table.add_row(cells(limit));
}

/// Limits that had no room, and what was asked of them.
pub(super) fn failing(limits: &[v1::LimitStatus]) -> Table {
    let [limit, key, window, max, used, held, available] = COLUMNS;
    let header = [limit, key, window, max, used, held, available, "REQUESTED"];
    let mut table = table(Stream::Stderr, header, WORDS);
    for limit in limits {
        table.add_row(cells(limit).into_iter().chain([Cell::new(limit.requested)]));
    }
    table
}

fn cells(limit: &v1::LimitStatus) -> Vec<Cell> {
    let name =
        if limit.enforced { limit.limit.clone() } else { format!("{} (observed)", limit.limit) };
    let max = match limit.bound {
        Some(Bound::Max(max)) => max.to_string(),
        Some(Bound::Unlimited(_)) => "unlimited".to_owned(),
        None => "-".to_owned(),
    };
    let available = limit.available.map_or_else(|| "-".to_owned(), |units| units.to_string());
    let held = match limit.waiting {
        0 => limit.held.to_string(),
        waiting => format!("{}, {waiting} waiting", limit.held),
    };
    vec![
        Cell::new(name),
        Cell::new(key(limit)),
        Cell::new(window(limit.window.as_ref())),
        Cell::new(max),
        Cell::new(limit.used),
        Cell::new(held),
        Cell::new(available),
    ]
}

fn key(limit: &v1::LimitStatus) -> String {
    if limit.key.is_empty() {
        return "-".to_owned();
    }
    let mut pairs: Vec<String> =
        limit.key.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.sort();
    pairs.join(" ")
}

/// A window's bounds, as dates where both are midnight in UTC.
fn window(window: Option<&v1::Window>) -> String {
    let Some(v1::Window { start_time: Some(start), end_time: Some(end) }) = window else {
        return "lifetime".to_owned();
    };
    let (start, end) = (instant(*start), instant(*end));
    match (start.strip_suffix("T00:00:00Z"), end.strip_suffix("T00:00:00Z")) {
        (Some(first), Some(next)) => format!("{first} to {next}"),
        _ => format!("{start} to {end}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_one_row() {
        let day = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let limit = v1::LimitStatus {
            limit: "posts".to_owned(),
            key: [("user".to_owned(), "42".to_owned()), ("app".to_owned(), "a".to_owned())].into(),
            window: Some(v1::Window { start_time: day(0), end_time: day(86_400) }),
            bound: Some(Bound::Max(3)),
            used: 2,
            held: 1,
            available: Some(0),
            ..v1::LimitStatus::default()
        };
        let text = limits(std::slice::from_ref(&limit)).to_string();
        let row: Vec<&str> = text.lines().nth(1).unwrap().split("  ").map(str::trim).collect();
        let row: Vec<&str> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
        let expected = ["posts (observed)", "app=a user=42", "1970-01-01 to 1970-01-02"];
        assert_eq!(row[..3], expected, "{text}");
        assert_eq!(row[3..], ["3", "2", "1", "0"], "{text}");
        let free = v1::LimitStatus {
            enforced: true,
            bound: Some(Bound::Unlimited(true)),
            available: None,
            ..v1::LimitStatus::default()
        };
        let text = limits(&[free]).to_string();
        assert!(text.contains("lifetime") && text.contains("unlimited"), "{text}");
        let contended = v1::LimitStatus { waiting: 2, ..limit };
        let text = failing(&[contended]).to_string();
        assert!(text.contains("REQUESTED") && text.contains("1, 2 waiting"), "{text}");
    }
}
