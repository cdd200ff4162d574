//! When a refused request could pass: the earliest instant, to the millisecond,
//! and none where waiting alone never helps.

use quota_authority::api::Reason;
use quota_authority::domain::time::{Span, Time};

use crate::world::{Client, Denied, Refused, Rules, World, cases, instant, limit, text, user, v1};
use v1::CalendarUnit::{Day, Month};

cases! {
    manual_clock: [
        b88_the_latest_of_several_limits,
        b88_an_override_that_ends,
        b88_more_that_ends_before_the_holds_do,
        b88_gaps_and_last_periods,
        b88_a_limit_that_passes_now_but_not_then,
        b88_units_that_cannot_be_counted,
        b88_an_observed_limit_without_a_period_then,
        b88_a_later_period_that_is_used_already,
        b88_exact_to_the_millisecond,
    ],
}

const NOON: &str = "2024-05-15T12:00:00Z";

/// When the request could pass, and when its limits could, one by one.
fn retries(refused: &Refused) -> (Option<&str>, Vec<Option<String>>) {
    let limits = refused.refusal.as_ref().unwrap().limits.iter();
    let each = limits.map(|status| status.retry_time.as_ref().map(|at| text(Some(at)))).collect();
    let all = refused.metadata.get("retry_time").map(String::as_str);
    assert_eq!(refused.retry.is_some(), all.is_some(), "RetryInfo says the same: {refused:?}");
    (all, each)
}

/// The request is refused until that very instant, and passes at it.
async fn passes_at(world: &World, client: &Client, amount: i64, at: &str) {
    let before = Time::saturating(instant(at).as_millis() - 1);
    world.set(&before.to_string()).await;
    assert!(!admitted(client, amount).await, "1 ms before {at}");
    world.set(at).await;
    assert!(admitted(client, amount).await, "at {at}");
}

/// Whether so many units would be admitted; not where there is no period.
async fn admitted(client: &Client, amount: i64) -> bool {
    match client.check(&[("units", amount)], &[("user", "s")]).await {
        Ok(check) => check.admitted,
        refused => {
            refused.refused(Reason::PeriodUnavailable);
            false
        }
    }
}

async fn b88_the_latest_of_several_limits(world: &mut World) {
    world.begin_at(NOON).await;
    let per = |name: &str, max| limit(name, "units").per(&["user"]).max(max);
    let rules = Rules::of_units([
        per("fixed", 2).fixed(Span::from_secs(600)),
        per("rolling", 2).rolling(Span::from_secs(7200), 60),
        per("day", 2).calendar(Day, "Asia/Kolkata"),
        per("room", 9).calendar(Month, "UTC"),
    ]);
    let client = world.rules(rules).await;
    client.take("a", 2).at_once().send().await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["day", "rolling", "fixed"]);
    let (all, each) = retries(&refused);
    let each: Vec<&str> = each.iter().flatten().map(String::as_str).collect();
    assert_eq!(each, ["2024-05-15T18:30:00Z", "2024-05-15T14:00:00Z", "2024-05-15T12:10:00Z"]);
    assert_eq!(all, Some("2024-05-15T18:30:00Z"));
    assert_eq!(refused.retry, Some(std::time::Duration::from_mins(390)));
    passes_at(world, &client, 1, "2024-05-15T18:30:00Z").await;
    // One that never lets it pass outweighs all.
    let refused = client.take("b", 9).send().await.refused(Reason::QuotaExceeded);
    assert_eq!(retries(&refused).0, None);
}

async fn b88_an_override_that_ends(world: &mut World) {
    world.begin_at(NOON).await;
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("pro", 10)]).calendar(Month, "");
    let client = world.rules(Rules::of_units([rule]).plans(&["pro"], "pro")).await;
    client.take("used", 3).committed().await.unwrap();
    let until = "2024-05-15T13:00:00Z";
    client.put(user("s").set("cap", 3, Some(until))).await.unwrap();
    for amount in [1, 7] {
        let refused = client.take("b", amount).send().await.denied(&["cap"]);
        assert_eq!(retries(&refused), (Some(until), vec![Some(until.to_owned())]));
    }
    // More than the plan has left, but not more than it has: next month. More
    // than it has: never.
    let refused = client.take("b", 8).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused).0, Some("2024-06-01T00:00:00Z"));
    let refused = client.take("b", 11).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused), (None, vec![None]));
    passes_at(world, &client, 7, until).await;
    // Less, for good: when the month ends, and never where it is less than one.
    client.put(user("s").set("cap", 3, None)).await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused).0, Some("2024-06-01T00:00:00Z"));
    client.put(user("s").add("cap", -10, None)).await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused), (None, vec![None]));
    client.put(user("s").add("cap", -10, Some("2025-01-01T12:34:56.789Z"))).await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused).0, Some("2025-01-01T12:34:56.789Z"));
}

async fn b88_more_that_ends_before_the_holds_do(world: &mut World) {
    world.begin_at(NOON).await;
    let client = world.cap(3).await;
    client.put(user("s").add("cap", 5, Some("2024-05-15T12:00:10Z"))).await.unwrap();
    let held = client.take("held", 8).send().await.unwrap();
    let lapses = text(held.reservation.unwrap().expire_time.as_ref());
    // What still fits once the extra has gone waits for the hold.
    let refused = client.take("b", 3).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused), (Some(lapses.as_str()), vec![Some(lapses.clone())]));
    // What only the extra had room for never passes.
    let refused = client.take("b", 4).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused), (None, vec![None]));
    passes_at(world, &client, 3, &lapses).await;
    // Unless the hold is gone before.
    client.put(user("s").add("cap", 5, Some("2024-05-15T12:10:00Z"))).await.unwrap();
    let short = client.take("short", 8).ttl(Span::from_secs(60)).send().await.unwrap();
    let lapses = text(short.reservation.unwrap().expire_time.as_ref());
    let refused = client.take("b", 8).send().await.denied(&["cap"]);
    assert_eq!(retries(&refused).0, Some(lapses.as_str()));
    passes_at(world, &client, 8, &lapses).await;
}

const MAY: (&str, &str, &str) = ("", "2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z");
const JULY: (&str, &str, &str) = ("", "2024-07-01T00:00:00Z", "2024-08-01T00:00:00Z");

async fn b88_gaps_and_last_periods(world: &mut World) {
    world.begin_at(NOON).await;
    let rule = limit("posts", "units").per(&["user"]).max(2).billing();
    let client = world.rules(Rules::of_units([rule])).await;
    client.put(user("s").periods(&[MAY])).await.unwrap();
    client.take("used", 2).committed().await.unwrap();
    // The last one, and nothing after it.
    let refused = client.take("b", 1).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused), (None, vec![None]));
    client.put(user("s").rolling_on(&[MAY])).await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused).0, Some(MAY.2));
    // A gap, whether or not the last one goes on after it.
    client.put(user("s").rolling_on(&[JULY, MAY])).await.unwrap();
    let refused = client.take("b", 1).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused).0, Some(JULY.1));
    client.put(user("s").periods(&[JULY, MAY])).await.unwrap();
    let refused = client.take("b", 2).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused).0, Some(JULY.1));
    let refused = client.take("b", 3).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused), (None, vec![None]));
    passes_at(world, &client, 2, JULY.1).await;
    client.take("b", 2).send().await.unwrap();
    // A hold that lapses after the last period is none to wait for.
    world.set("2024-07-31T23:59:30Z").await;
    client.take("last", 2).send().await.unwrap();
    let refused = client.take("c", 1).send().await.denied(&["posts"]);
    assert_eq!(retries(&refused), (None, vec![None]));
}

/// All limits must let it pass at the same instant.
async fn b88_a_limit_that_passes_now_but_not_then(world: &mut World) {
    world.begin_at("2024-05-31T12:00:00Z").await;
    let rules = Rules::of_units([
        limit("minute", "units").per(&["user"]).max(2).fixed(Span::from_secs(43_200)),
        limit("posts", "units").per(&["user"]).max(100).billing(),
    ]);
    let client = world.rules(rules).await;
    let until = |end: &'static str| ("", MAY.1, end);
    client.put(user("s").periods(&[until("2024-05-31T23:00:00Z")])).await.unwrap();
    client.take("used", 2).committed().await.unwrap();
    let denied = async || {
        let refused = client.take("b", 1).send().await.refused(Reason::QuotaExceeded);
        let (all, each) = retries(&refused);
        assert_eq!(refused.refusal.as_ref().unwrap().total, 1, "posts has room");
        assert_eq!(each, [Some("2024-06-01T00:00:00Z".to_owned())]);
        all.map(ToOwned::to_owned)
    };
    assert_eq!(denied().await, None, "there is no period by then");
    client.put(user("s").periods(&[until("2024-05-31T23:00:00Z"), JULY])).await.unwrap();
    assert_eq!(denied().await.as_deref(), Some(JULY.1));
    client.put(user("s").periods(&[until("2024-06-01T00:00:00Z")])).await.unwrap();
    assert_eq!(denied().await, None, "the end is no part of it");
    client.put(user("s").periods(&[until("2024-06-01T00:00:00.001Z")])).await.unwrap();
    assert_eq!(denied().await.as_deref(), Some("2024-06-01T00:00:00Z"));
    passes_at(world, &client, 1, "2024-06-01T00:00:00Z").await;
}

/// Units beyond an int64 are refused where nothing else would refuse them, and
/// there is nothing to wait for, whatever other limits say.
async fn b88_units_that_cannot_be_counted(world: &mut World) {
    world.begin_at(NOON).await;
    let rules = Rules::of_units([
        limit("day", "units").per(&["user"]).max(i64::MAX).calendar(Day, "UTC"),
        limit("shadow", "units").per(&["user"]).max(i64::MAX).observed(),
    ]);
    let client = world.rules(rules).await;
    client.take("used", i64::MAX).committed().await.unwrap();
    let refused = client.take("b", 1).send().await.refused(Reason::QuotaExceeded);
    let (all, each) = retries(&refused);
    assert_eq!(each, [None, Some("2024-05-16T00:00:00Z".to_owned())]);
    assert_eq!(all, None, "the observed limit could not count it then either");
    world.set("2024-05-16T00:00:00Z").await;
    client.take("b", 1).send().await.refused(Reason::QuotaExceeded);

    let client = world.caller().within("unlimited");
    let rules = Rules::of_units([
        limit("free", "units").per(&["user"]).unlimited().rolling(Span::from_secs(60), 60),
        limit("shadow", "units").per(&["user"]).max(1).fixed(Span::from_secs(3600)).observed(),
    ]);
    client.apply(rules).await.unwrap();
    client.take("used", i64::MAX).committed().await.unwrap();
    let refused = client.take("b", 1).send().await.refused(Reason::QuotaExceeded);
    assert_eq!(refused.refusal.as_ref().unwrap().total, 2);
    // The minute moves on before the hour ends.
    assert_eq!(retries(&refused).0, Some("2024-05-16T01:00:00Z"));
    passes_at(world, &client, 1, "2024-05-16T01:00:00Z").await;
}

/// An observed limit refuses nobody, not even where there is no period to count
/// in or no plan that it knows: then it counts nothing, or shows that it would
/// refuse everything.
async fn b88_an_observed_limit_without_a_period_then(world: &mut World) {
    world.begin_at("2024-05-31T12:00:00Z").await;
    let rules = Rules::of_units([
        limit("day", "units").per(&["user"]).max(1).calendar(Day, "UTC"),
        limit("posts", "units").per(&["user"]).max(1).billing().observed(),
        limit("plans", "units").per(&["user"]).by_plan(&[("pro", 9)]).observed(),
    ]);
    let client = world.rules(Rules(v1::Policy { plans: vec!["pro".to_owned()], ..rules.0 })).await;
    client.put(user("s").periods(&[MAY, JULY])).await.unwrap();
    let counted = async |id: &str| {
        let limits = client.take(id, 1).committed().await.unwrap().limits;
        limits.iter().map(|status| status.limit.clone()).collect::<Vec<_>>()
    };
    assert_eq!(counted("used").await, ["day", "posts", "plans"]);
    let refused = client.take("b", 1).send().await.denied(&["day"]);
    assert_eq!(retries(&refused).0, Some("2024-06-01T00:00:00Z"));
    passes_at(world, &client, 1, "2024-06-01T00:00:00Z").await;
    world.set("2024-06-02T00:00:00Z").await;
    let reserved = client.take("shown", 1).send().await.unwrap();
    let plans = reserved.limits.iter().find(|status| status.limit == "plans").unwrap();
    assert_eq!((plans.bound, plans.exceeded), (Some(v1::limit_status::Bound::Max(0)), true));
    client.release("shown").await.unwrap();
    assert_eq!(counted("in the gap").await, ["day", "plans"]);
    world.set("2024-07-01T00:00:01Z").await;
    assert_eq!(counted("in July").await, ["day", "posts", "plans"]);
}

/// A period that was used may be moved into the future: what is promised there
/// goes by what is stored, not by what this server happens to know.
async fn b88_a_later_period_that_is_used_already(world: &mut World) {
    world.begin_at("2025-01-05T00:00:00Z").await;
    let rule = limit("posts", "units").per(&["user"]).max(10).billing();
    world.rules(Rules::of_units([rule])).await;
    let client = world.caller();
    let day = |day: &str| format!("2025-{day}T00:00:00Z");
    let (first, end) = (day("01-01"), day("02-01"));
    client.put(user("s").periods(&[("p1", &first, &end)])).await.unwrap();
    client.take("a", 10).committed().await.unwrap();
    let (a, b, c) = (day("01-20"), day("02-20"), day("03-20"));
    let moved = [("p0", first.as_str(), a.as_str()), ("p1", &a, &b), ("p2", &b, &c)];
    client.put(user("s").periods(&moved)).await.unwrap();
    client.take("b", 10).committed().await.unwrap();
    for server in ["which knows the counter", "that has just started"] {
        let refused = world.caller().take("c", 1).send().await.denied(&["posts"]);
        assert_eq!(retries(&refused).0, Some(b.as_str()), "a server {server}");
        world.restart().await;
    }
    passes_at(world, &world.caller(), 1, &b).await;
}

/// Whatever is held and used of whatever windows: nothing passes between now
/// and the instant that is named, and at that instant it passes.
async fn b88_exact_to_the_millisecond(world: &mut World) {
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        i64::try_from(seed % below).unwrap()
    };
    world.begin_at("2024-05-01T00:00:00Z").await;
    let per = |name: &str, max| limit(name, "units").per(&["user"]).max(max);
    let rules = Rules::of_units([
        per("fixed", 6).fixed(Span::from_millis(9973)),
        per("rolling", 7).rolling(Span::from_millis(15_013), 7),
        per("fine", 8).rolling(Span::from_millis(20_000), 1440),
        per("posts", 9).billing(),
    ]);
    let client = world.rules(rules).await;
    // Periods of 37 s with 3 s between them, and more now and then.
    let second = |n: i64| Time::saturating(instant(MAY.1).as_millis() + n * 1000).to_string();
    let bounds: Vec<_> = (0..120).map(|n| (second(n * 40), second(n * 40 + 37))).collect();
    let periods: Vec<_> = bounds.iter().map(|(a, b)| ("", a.as_str(), b.as_str())).collect();
    client.put(user("s").periods(&periods)).await.unwrap();
    let (mut held, mut named) = (Vec::new(), 0);
    for n in 0..world.rounds(600, 200) {
        if random(40) == 0 {
            let until = world.now().plus(Span::from_millis(random(30_000)));
            let more = user("s").periods(&periods);
            let until = until.to_string();
            let (amount, until) = (random(5) - 2, Some(until.as_str()));
            client.put(more.add("rolling", amount, until)).await.unwrap();
        }
        let (id, amount) = (format!("{n}"), 1 + random(4));
        let call = client.take(&id, amount).ttl(Span::from_millis(1000 + random(20_000)));
        match call.send().await {
            Ok(_) => held.push(id),
            Err(refused) if refused.reason == Reason::PeriodUnavailable => {
                world.pass(Span::from_millis(random(1500))).await;
            }
            Err(refused) => {
                let Some(at) = retries(&refused).0 else { continue };
                let (now, until) = (world.now(), instant(at));
                assert!(until > now, "{refused:?}");
                let mut between: Vec<i64> =
                    (0..12).map(|_| random(until.since(now).as_millis().unsigned_abs())).collect();
                between.sort_unstable();
                for after in between {
                    world.set(&now.plus(Span::from_millis(after)).to_string()).await;
                    assert!(!admitted(&client, amount).await, "{after} ms after {now}, not {at}");
                }
                passes_at(world, &client, amount, at).await;
                named += 1;
            }
        }
        // Of what is held, some is committed, some given back, some lapses, so
        // that every window fills and empties again.
        if random(3) == 0 && !held.is_empty() {
            let id = held.remove(usize::try_from(random(held.len() as u64)).unwrap());
            let expired = match random(3) {
                0 => client.release(&id).await.err(),
                _ => client.commit_some(&id, &[1]).await.err(),
            };
            assert!(expired.is_none_or(|refused| matches!(
                refused.reason,
                Reason::ReservationExpired | Reason::AmountExceedsHold
            )));
        }
        world.pass(Span::from_millis(random(700))).await;
    }
    assert!(named > 20, "{named} instants were named");
}
