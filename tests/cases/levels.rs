//! Several limits at once whose windows are billing periods or move on: each is
//! charged, or none.

use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Rules, World, cases, limit, owner, user, v1};

cases! {
    every_store: [
        b28_a_refusal_by_one_takes_nothing_of_the_other,
        b61_plans_and_overrides_reach_every_server,
        b61_billing_reaches_every_server,
    ],
    manual_clock: [
        b71_every_matching_limit_is_charged,
        b80_nested_limits_of_different_periods,
        b28_many_windows_in_one_order,
    ],
}

const MINUTE: Span = Span::from_secs(60);
/// After this long no server may go by what was.
const IN_FORCE: Duration = Duration::from_millis(1050);

async fn b28_a_refusal_by_one_takes_nothing_of_the_other(world: &mut World) {
    let day = Span::from_days(1);
    let rules = Rules::of_units([
        limit("special", "special").per(&["user"]).max(3).rolling(day, 24),
        limit("group", "special").per(&["user"]).max(10).rolling(day, 60),
        limit("all", "units").per(&["user"]).max(10).rolling(day, 60),
    ]);
    let client = world.rules(rules.metric("special", &["user"])).await;
    let special = |id: &str| client.reserve(id).item("special", 1).with("user", "s");
    for n in 0..5 {
        // In either order.
        let call = special(&format!("{n}")).item("units", 1).committed().await;
        if n < 3 {
            call.unwrap();
        } else {
            call.denied(&["special"]);
        }
    }
    assert_eq!(client.stands("all").await, (3, 0, 7));
    let group = client.usage("special", &[("user", "s")]).await.unwrap();
    assert_eq!(group.iter().map(|status| status.used).collect::<Vec<_>>(), [3, 3]);
    for n in 0..8 {
        let call = client.take(&format!("all {n}"), 1).committed().await;
        if n < 7 {
            call.unwrap();
        } else {
            call.denied(&["all"]);
        }
    }
}

async fn b71_every_matching_limit_is_charged(world: &mut World) {
    world.begin_at("2024-05-15T12:00:30Z").await;
    let rules = Rules::new().metric("units", &["org", "int"]).limits([
        limit("org", "units").per(&["org"]).max(5).rolling(MINUTE, 60),
        limit("integrator", "units").per(&["org", "int"]).max(3).rolling(MINUTE, 60),
    ]);
    let client = world.rules(rules).await;
    let call = |id: String, int: &str| {
        client.reserve(&id).item("units", 1).with("org", "o").with("int", int)
    };
    for n in 0..4 {
        let call = call(format!("i {n}"), "i").committed().await;
        if n < 3 {
            call.unwrap();
        } else {
            call.denied(&["integrator"]);
        }
    }
    for n in 0..3 {
        let call = call(format!("j {n}"), "j").committed().await;
        if n < 2 {
            call.unwrap();
        } else {
            call.denied(&["org"]);
        }
    }
    world.set("2024-05-15T12:01:30Z").await;
    call("later".to_owned(), "j").committed().await.unwrap();
}

/// A tenant that is billed from the 10th, departments that are billed from the
/// 1st, and users by the day.
async fn b80_nested_limits_of_different_periods(world: &mut World) {
    world.begin_at("2024-05-15T12:00:00Z").await;
    let rules = Rules::new().metric("units", &["tenant", "department", "user"]).limits([
        limit("tenant", "units").per(&["tenant"]).max(10).billing(),
        limit("department", "units")
            .per(&["tenant", "department"])
            .max(8)
            .billing_of("department", None),
        limit("user", "units").per(&["user"]).max(20).rolling(Span::from_days(1), 24),
    ]);
    let client = world.rules(rules).await;
    client.put(owner("tenant", "t").monthly(1, "2024-05-10T00:00:00Z", "")).await.unwrap();
    for department in ["d1", "d2"] {
        let billed = owner("department", department).monthly(1, "2024-05-01T00:00:00Z", "");
        client.put(billed).await.unwrap();
    }
    let take = |id: &str, department: &str, amount| {
        let call = client.reserve(id).item("units", amount).with("tenant", "t");
        call.with("department", department).with("user", "u")
    };
    take("a", "d1", 8).ttl(Span::from_days(1)).send().await.unwrap();
    let refused = take("b", "d2", 3).send().await.denied(&["tenant"]);
    assert_eq!(refused.metadata["used"], "0");
    take("b", "d2", 2).committed().await.unwrap();
    client.commit_some("a", &[4]).await.unwrap();
    take("c", "d2", 4).committed().await.unwrap();
    // The user's 20 give no more room than the levels above have.
    let refused = take("d", "d2", 3).send().await.denied(&["tenant", "department"]);
    assert_eq!(refused.metadata["retry_time"], "2024-06-10T00:00:00Z");
    // The departments' period ends first, the tenant's later.
    world.set("2024-06-01T00:00:00Z").await;
    take("d", "d1", 8).send().await.denied(&["tenant"]);
    world.set("2024-06-10T00:00:00Z").await;
    take("d", "d1", 8).committed().await.unwrap();
    take("e", "d1", 1).send().await.denied(&["department"]);
}

/// One call that meets every kind of window, for two users: one refusal, and
/// none of the ten counters is touched.
async fn b28_many_windows_in_one_order(world: &mut World) {
    world.begin_at("2024-05-15T12:00:00Z").await;
    let per = |name: &str| limit(name, "units").per(&["user"]).max(5);
    let rules = Rules::of_units([
        per("ever"),
        per("month").calendar(v1::CalendarUnit::Month, "Asia/Kolkata"),
        per("fixed").fixed(MINUTE),
        per("rolling").rolling(MINUTE, 6),
        per("billing").billing(),
    ]);
    let client = world.rules(rules).await;
    for who in ["anna", "ben"] {
        client.put(user(who).monthly(1, "2024-01-31T00:00:00Z", "UTC")).await.unwrap();
    }
    let both = |id: &str, anna, ben| {
        let call = client.reserve(id).item_of("units", anna, &[("user", "anna")]);
        call.item_of("units", ben, &[("user", "ben")])
    };
    let all_of = async |who: &str| {
        let limits = client.usage("units", &[("user", who)]).await.unwrap();
        limits.iter().map(|status| (status.used, status.held)).collect::<Vec<_>>()
    };
    let taken = both("a", 3, 1).send().await.unwrap();
    assert_eq!(taken.reservation.unwrap().charges.len(), 10);
    let refused = both("b", 3, 1).send().await.refused(Reason::QuotaExceeded);
    assert_eq!(refused.refusal.unwrap().total, 5);
    assert_eq!(all_of("anna").await, [(0, 3); 5]);
    assert_eq!(all_of("ben").await, [(0, 1); 5]);
    client.commit_some("a", &[2, 1]).await.unwrap();
    assert_eq!(all_of("anna").await, [(2, 0); 5]);
    both("b", 3, 4).send().await.unwrap();
    client.release("b").await.unwrap();
    assert_eq!(all_of("ben").await, [(1, 0); 5]);
}

/// Whatever another server was told a second ago is in force here: no copy is
/// older.
async fn b61_plans_and_overrides_reach_every_server(world: &mut World) {
    world.add_server().await;
    let (first, second) = (world.client(0), world.client(1));
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("free", 1), ("pro", 5)]);
    let rule = rule.rolling(Span::from_days(1), 24);
    first.apply(Rules::of_units([rule]).plans(&["free", "pro"], "free")).await.unwrap();
    first.take("one", 1).committed().await.unwrap();
    assert_eq!(second.stands("cap").await, (1, 0, 0), "at once on the other");
    second.take("over", 1).send().await.denied(&["cap"]);
    for (subject, available) in [
        (user("s").plan("pro"), 4),
        (user("s").plan("pro").add("cap", -2, None), 2),
        (user("s").plan("pro").set("cap", 9, None), 8),
        (user("s"), 0),
    ] {
        first.put(subject).await.unwrap();
        assert_eq!(first.stands("cap").await.2, available, "at once where it was told");
        tokio::time::sleep(IN_FORCE).await;
        // By a decision, not only by a read.
        let more = available + 1;
        second.take(&format!("over {available}"), more).send().await.denied(&["cap"]);
        let check = second.check(&[("units", available.max(1))], &[("user", "s")]).await.unwrap();
        assert_eq!(check.admitted, available > 0, "{available}");
    }
    first.put(user("s").frozen()).await.unwrap();
    tokio::time::sleep(IN_FORCE).await;
    second.take("over", 1).send().await.refused(Reason::SubjectFrozen);
}

async fn b61_billing_reaches_every_server(world: &mut World) {
    world.add_server().await;
    let (first, second) = (world.client(0), world.client(1));
    let rule = limit("posts", "units").per(&["user"]).max(1).billing();
    first.apply(Rules::of_units([rule])).await.unwrap();
    second.take("a", 1).send().await.refused(Reason::PeriodUnavailable);
    first.put(user("s").monthly(120, "2020-01-01T00:00:00Z", "")).await.unwrap();
    first.take("a", 1).committed().await.unwrap();
    tokio::time::sleep(IN_FORCE).await;
    second.take("b", 1).send().await.denied(&["posts"]);
    // Another period: fresh, and the same on both.
    second.put(user("s").monthly(120, "2020-02-01T00:00:00Z", "")).await.unwrap();
    second.take("b", 1).committed().await.unwrap();
    tokio::time::sleep(IN_FORCE).await;
    first.take("c", 1).send().await.denied(&["posts"]);
    assert_eq!(first.stands("posts").await, (1, 0, 0));
    first.put(user("s")).await.unwrap();
    tokio::time::sleep(IN_FORCE).await;
    second.take("c", 1).send().await.refused(Reason::PeriodUnavailable);
}
