//! `quotad events`: the trail, for people.

use clap::Args;
use prost_types::Timestamp;

use super::connect::{Connect, MAX_PAGE, Namespace};
use super::output::{Failure, Stream, instant, table};
use super::{exit, parse};
use crate::proto::v1;
use crate::proto::v1::limit_status::Bound;

/// What was typed after `events`.
#[derive(Debug, Args)]
pub(super) struct Events {
    #[command(flatten)]
    namespace: Namespace,
    /// Only those of this subject, KIND/ID, such as user/42.
    #[arg(long, value_name = "KIND/ID", value_parser = parse::subject)]
    subject: Option<(String, String)>,
    /// Only those of this reservation.
    #[arg(long, value_name = "ID")]
    reservation: Option<String>,
    /// Only those of this limit.
    #[arg(long)]
    limit: Option<String>,
    /// Only those at this instant or later, such as 2026-08-15T00:00:00Z.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    since: Option<Timestamp>,
    /// Only those before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = parse::instant)]
    until: Option<Timestamp>,
    /// At most so many, the newest; 0 means all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    most: usize,
    #[command(flatten)]
    pub connect: Connect,
}

/// Prints what happened, newest first.
pub(super) async fn events(args: Events) -> Result<u8, Failure> {
    let out = args.connect.output();
    let server = args.connect.connect().await?;
    let header = ["TIME", "WHAT", "WHO", "OF", "CHANGED", "WHY"];
    let mut table = table(Stream::Stdout, header, header.len());
    let mut left = if args.most == 0 { usize::MAX } else { args.most };
    let mut request = v1::ListEventsRequest {
        namespace: args.namespace.namespace,
        subject: args.subject.map_or_else(String::new, |(kind, id)| format!("{kind}/{id}")),
        reservation_id: args.reservation.unwrap_or_default(),
        limit: args.limit.unwrap_or_default(),
        start_time: args.since,
        end_time: args.until,
        page_size: MAX_PAGE.min(i32::try_from(left).unwrap_or(MAX_PAGE)),
        page_token: String::new(),
    };
    loop {
        let call = server.call(request.clone());
        let page = server.operator().list_events(call).await?.into_inner();
        for event in page.events.iter().take(left) {
            out.one_of_many(event)?;
            if !out.json {
                table.add_row(row(event));
            }
        }
        left = left.saturating_sub(page.events.len());
        if page.next_page_token.is_empty() || left == 0 {
            break;
        }
        request.page_token = page.next_page_token;
    }
    out.table(&table)?;
    Ok(exit::OK)
}

/// An event on one line.
fn row(event: &v1::Event) -> [String; 6] {
    let of = match (event.reservation_id.as_str(), event.subject.as_str()) {
        ("", subject) => subject.to_owned(),
        (id, "") => id.to_owned(),
        (id, subject) => format!("{id} ({subject})"),
    };
    [
        event.time.map_or_else(String::new, instant),
        event.kind.clone(),
        event.principal.clone(),
        of,
        changed(event),
        event.reason.clone(),
    ]
}

/// What it did to counters, or else where limits stood, or else what it tells.
fn changed(event: &v1::Event) -> String {
    let changes = event.changes.iter().map(|change| {
        let moved = |units: i64, what: &str| (units != 0).then(|| format!(" {what} {units:+}"));
        let moved = [moved(change.used_delta, "used"), moved(change.held_delta, "held")];
        let moved: String = moved.into_iter().flatten().collect();
        format!("{}{moved}", counter(&change.limit, pairs(&change.key)))
    });
    let limits = event.limits.iter().map(|limit| {
        let max = match limit.bound {
            Some(Bound::Max(max)) => max.to_string(),
            _ => "unlimited".to_owned(),
        };
        let name = counter(&limit.limit, pairs(&limit.key));
        let asked = if limit.requested == 0 {
            String::new()
        } else {
            format!(", requested {}", limit.requested)
        };
        format!("{name} used {} held {} of {max}{asked}", limit.used, limit.held)
    });
    let told = changes.chain(limits).collect::<Vec<_>>();
    if told.is_empty() { pairs(&event.details) } else { told.join("; ") }
}

fn counter(limit: &str, key: String) -> String {
    if key.is_empty() { limit.to_owned() } else { format!("{limit} [{key}]") }
}

/// A map on one line.
fn pairs(map: &std::collections::HashMap<String, String>) -> String {
    let mut pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    pairs.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_row() {
        let key = || [("user".to_owned(), "42".to_owned())].into();
        let change = |limit: &str, used_delta, held_delta| v1::CounterChange {
            limit: limit.to_owned(),
            key: key(),
            used_delta,
            held_delta,
            ..v1::CounterChange::default()
        };
        let committed = v1::Event {
            time: Some(Timestamp { seconds: 0, nanos: 0 }),
            kind: "committed".to_owned(),
            principal: "me".to_owned(),
            reservation_id: "r".to_owned(),
            subject: "user/42".to_owned(),
            changes: vec![change("posts", 1, -3), change("all", 0, -3)],
            details: [("amounts".to_owned(), "posts=1".to_owned())].into(),
            ..v1::Event::default()
        };
        let expected = [
            "1970-01-01T00:00:00Z",
            "committed",
            "me",
            "r (user/42)",
            "posts [user=42] used +1 held -3; all [user=42] held -3",
            "",
        ];
        assert_eq!(row(&committed), expected);
        let limit = v1::LimitStatus {
            limit: "posts".to_owned(),
            bound: Some(Bound::Max(3)),
            used: 2,
            held: 1,
            requested: 4,
            ..v1::LimitStatus::default()
        };
        let refused = v1::Event { limits: vec![limit], ..v1::Event::default() };
        assert_eq!(changed(&refused), "posts used 2 held 1 of 3, requested 4");
        let put = [("plan after".to_owned(), "pro".to_owned())];
        let put = v1::Event { details: put.into(), ..v1::Event::default() };
        assert_eq!(changed(&put), "plan after=pro");
    }
}
