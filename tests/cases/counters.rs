//! Listings of a limit's counters.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, cases, limit, user, v1};

cases! {
    every_store: [counters_of_a_limit, counters_are_asked_for_properly],
    manual_clock: [counters_of_one_window, counters_of_billing_periods, counters_of_a_rolling_window],
}

type Asked = v1::ListUsageRequest;

fn of(limit: &str) -> Asked {
    Asked { limit: limit.to_owned(), ..Asked::default() }
}

fn full(limit: &str, share: f64) -> Asked {
    Asked { min_utilization: share, ..of(limit) }
}

fn at(limit: &str, time: &str) -> Asked {
    let at = Some(quota_authority::api::times::timestamp(crate::world::instant(time)));
    Asked { at, ..of(limit) }
}

/// Each counter as user, used, held, max, in the order of users.
async fn rows(client: &Client, asked: &Asked) -> Vec<String> {
    let mut pages = Vec::new();
    for size in [1, 2, 1000] {
        let found = client.counters(asked, size).await.unwrap();
        let row = |status: &v1::LimitStatus| {
            let max = match status.bound {
                Some(v1::limit_status::Bound::Max(max)) => max.to_string(),
                _ => "-".to_owned(),
            };
            let user = status.key.get("user").map_or("", String::as_str);
            format!("{user} {} {} {max}", status.used, status.held)
        };
        let mut rows: Vec<String> = found.iter().map(row).collect();
        rows.sort();
        pages.push(rows);
    }
    assert!(pages.windows(2).all(|two| two[0] == two[1]), "{pages:?}");
    pages.swap_remove(0)
}

async fn take(client: &Client, user: &str, amount: i64, commit: bool) {
    let id = format!("{user}-{}", fastrand::u64(..));
    let call = client.reserve(&id).item("units", amount).with("user", user);
    let call = if commit { call.at_once() } else { call.ttl(Span::from_secs(600)) };
    call.send().await.unwrap();
}

async fn counters_of_a_limit(world: &mut World) {
    let rules = |free| {
        let cap = limit("cap", "units").per(&["user"]).by_plan(&[("free", free), ("pro", 100)]);
        let open = limit("open", "units").per(&["user"]).unlimited();
        let none = limit("none", "units").per(&["user"]).max(0).observed();
        Rules::of_units([cap, open, none]).plans(&["free", "pro"], "free")
    };
    let client = world.rules(rules(10)).await;
    client.put_on_plan("user", "pro/1", "pro").await.unwrap();
    for (user, amount) in [("a", 4), ("b", 9), ("pro/1", 9)] {
        take(&client, user, amount, true).await;
    }
    take(&client, "a", 3, false).await;
    assert_eq!(rows(&client, &of("cap")).await, ["a 4 3 10", "b 9 0 10", "pro/1 9 0 100"]);
    assert_eq!(rows(&client, &full("cap", 0.7)).await, ["a 4 3 10", "b 9 0 10"]);
    assert_eq!(rows(&client, &full("cap", 0.71)).await, ["b 9 0 10"]);
    assert_eq!(rows(&client, &full("cap", 1.0)).await, [""; 0]);
    // Under the rules of now, and as GetUsage has it.
    client.apply(rules(9)).await.unwrap();
    assert_eq!(rows(&client, &full("cap", 1.0)).await, ["b 9 0 9"]);
    let listed = client.counters(&of("cap"), 0).await.unwrap();
    for status in &listed {
        let usage = client.usage("units", &[("user", &status.key["user"])]).await.unwrap();
        let same = usage.iter().find(|found| found.limit == "cap").unwrap();
        assert_eq!(status, same);
    }
    assert_eq!(rows(&client, &of("open")).await.len(), 3);
    assert_eq!(rows(&client, &full("open", 0.01)).await, [""; 0], "unlimited is never full");
    assert_eq!(rows(&client, &full("none", 1.0)).await.len(), 3, "nothing is allowed");
    // A limit that goes by a subject that its key does not tell: the largest max.
    let shared = limit("shared", "units").by_plan(&[("free", 20), ("pro", 200)]).plan_of("user");
    let rules = Rules::of_units([shared]).plans(&["free", "pro"], "free");
    client.apply(rules).await.unwrap();
    take(&client, "a", 3, true).await;
    assert_eq!(rows(&client, &of("shared")).await, [" 3 0 200"]);
    client.counters(&of("cap"), 0).await.refused(Reason::LimitNotFound);
}

async fn counters_are_asked_for_properly(world: &mut World) {
    let client = world.caller();
    client.counters(&of("cap"), 0).await.refused(Reason::NamespaceNotFound);
    world.cap(5).await;
    assert_eq!(client.counters(&of("cap"), 0).await.unwrap(), []);
    let missing = client.counters(&of("cop"), 0).await.refused(Reason::LimitNotFound);
    assert_eq!(missing.metadata["limit"], "cop");
    for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        client.counters(&full("cap", share), 0).await.invalid(&["min_utilization"]);
    }
    let far = Asked { at: Some(prost_types::Timestamp { seconds: 1 << 60, nanos: 0 }), ..of("") };
    client.counters(&far, 1001).await.invalid(&["limit", "at", "page_size"]);
    for user in ["a", "b"] {
        take(&client, user, 1, true).await;
    }
    let page = async |asked: Asked| {
        let asked = Asked { namespace: client.namespace.clone(), page_size: 1, ..asked };
        let answer = client.quota.clone().list_usage(asked).await;
        answer.map(|answer| answer.into_inner().next_page_token).map_err(Into::into)
    };
    let token: Result<String, crate::world::Refused> = page(of("cap")).await;
    let token = token.unwrap();
    page(Asked { page_token: token.clone(), ..of("cap") }).await.unwrap();
    page(Asked { page_token: token.clone(), ..full("cap", 0.5) }).await.invalid(&["page_token"]);
    page(Asked { page_token: format!("{token}A"), ..of("cap") }).await.invalid(&["page_token"]);
}

async fn counters_of_one_window(world: &mut World) {
    let minute = limit("minute", "units").per(&["user"]).max(9).fixed(Span::from_secs(60));
    let day = limit("day", "units").per(&["user"]).max(99).calendar(v1::CalendarUnit::Day, "UTC");
    let client = world.rules(Rules::of_units([minute, day])).await;
    for n in 1..=3 {
        take(&client, "a", n, true).await;
        take(&client, "b", 2 * n, true).await;
        world.pass(Span::from_secs(60)).await;
    }
    assert_eq!(rows(&client, &of("minute")).await, [""; 0]);
    take(&client, "c", 4, true).await;
    assert_eq!(rows(&client, &of("minute")).await, ["c 4 0 9"]);
    let third = at("minute", "2024-05-15T12:32:59.999Z");
    assert_eq!(rows(&client, &third).await, ["a 3 0 9", "b 6 0 9"]);
    let full = Asked { min_utilization: 0.5, ..third };
    assert_eq!(rows(&client, &full).await, ["b 6 0 9"]);
    assert_eq!(rows(&client, &of("day")).await, ["a 6 0 99", "b 12 0 99", "c 4 0 99"]);
    assert_eq!(rows(&client, &at("day", "2024-05-16T00:00:00Z")).await, [""; 0]);
    // Another definition starts fresh counters.
    let minute = limit("minute", "units").per(&["user"]).max(9).fixed(Span::from_secs(120));
    client.apply(Rules::of_units([minute])).await.unwrap();
    assert_eq!(rows(&client, &of("minute")).await, [""; 0]);
}

async fn counters_of_billing_periods(world: &mut World) {
    let month = v1::window_rule::Kind::Calendar(v1::CalendarWindow {
        unit: v1::CalendarUnit::Month.into(),
        time_zone: "UTC".to_owned(),
        ..v1::CalendarWindow::default()
    });
    let rule = limit("period", "units").per(&["user"]).max(9).billing_of("", Some(month));
    let client = world.rules(Rules::of_units([rule])).await;
    let period = |start: &str, end: &str| user("a").periods(&[("p", start, end)]);
    client.put(period("2024-05-10T00:00:00Z", "2024-05-20T00:00:00Z")).await.unwrap();
    take(&client, "a", 1, true).await;
    take(&client, "b", 2, true).await;
    assert_eq!(rows(&client, &of("period")).await, ["a 1 0 9", "b 2 0 9"]);
    // Bounds that were corrected rule, not those that the counter was made under.
    client.put(period("2024-05-10T00:00:00Z", "2024-05-18T00:00:00Z")).await.unwrap();
    let listed = client.counters(&of("period"), 0).await.unwrap();
    let ours = listed.iter().find(|status| status.key["user"] == "a").unwrap();
    let window = crate::world::bounds(ours.window.as_ref());
    assert_eq!(window, crate::world::days("2024-05-10", "2024-05-18"));
    assert_eq!(rows(&client, &at("period", "2024-05-19T00:00:00Z")).await, ["b 2 0 9"]);
    assert_eq!(rows(&client, &at("period", "2024-06-19T00:00:00Z")).await, [""; 0]);
}

async fn counters_of_a_rolling_window(world: &mut World) {
    let rolling = limit("hour", "units").per(&["user"]).max(9).rolling(Span::from_secs(3600), 60);
    let client = world.rules(Rules::of_units([rolling])).await;
    take(&client, "a", 4, true).await;
    world.pass(Span::from_secs(1800)).await;
    take(&client, "a", 3, true).await;
    assert_eq!(rows(&client, &of("hour")).await, ["a 7 0 9"]);
    world.pass(Span::from_secs(1900)).await;
    assert_eq!(rows(&client, &of("hour")).await, ["a 3 0 9"], "as of now");
    assert_eq!(rows(&client, &full("hour", 0.5)).await, [""; 0]);
}
