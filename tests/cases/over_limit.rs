//! What a lowered limit leaves above it, as `ApplyPolicy` tells.

use quota_authority::domain::time::Span;

use crate::world::{Client, Rules, World, at_once, cases, limit, user, v1};
use v1::CalendarUnit::Day;

cases! {
    every_store: [
        b31_over_a_lowered_max,
        b31_over_by_plan_and_exception,
        b31_over_once_it_is_enforced,
        b31_over_in_great_number,
    ],
    manual_clock: [b31_over_in_open_windows, b31_over_in_periods_that_were_corrected],
}

/// Takes units for a user, committed or held.
async fn take(client: &Client, user: &str, amount: i64, committed: bool) {
    let reserve = client.reserve(&format!("{user} {amount}")).item("units", amount);
    let reserve = reserve.with("user", user);
    if committed {
        reserve.committed().await.unwrap();
    } else {
        reserve.send().await.unwrap();
    }
}

fn cap(max: i64) -> Rules {
    Rules::of_units([limit("cap", "units").per(&["user"]).max(max)])
}

/// Who is over, with what he has used and holds.
fn users(answer: &v1::ApplyPolicyResponse) -> Vec<(String, i64, i64)> {
    let over = answer.over_limit.as_ref().expect("a limit was lowered");
    assert!(!over.incomplete);
    assert_eq!(usize::try_from(over.count), Ok(over.limits.len()));
    let one = |status: &v1::LimitStatus| {
        assert_eq!((status.limit.as_str(), status.available), ("cap", Some(0)));
        assert!(status.enforced && status.requested == 0 && !status.exceeded);
        (status.key["user"].clone(), status.used, status.held)
    };
    over.limits.iter().map(one).collect()
}

fn names(answer: &v1::ApplyPolicyResponse) -> Vec<String> {
    users(answer).into_iter().map(|(user, _, _)| user).collect()
}

async fn preview(client: &Client, rules: Rules) -> v1::ApplyPolicyResponse {
    let policy = v1::Policy { namespace: client.namespace.clone(), ..rules.0 };
    let (policy, validate_only) = (Some(policy), true);
    let request = v1::ApplyPolicyRequest { policy, validate_only, ..Default::default() };
    client.policy.clone().apply_policy(request).await.unwrap().into_inner()
}

async fn b31_over_a_lowered_max(world: &mut World) {
    let client = world.caller();
    let first = client.apply(cap(10)).await.unwrap();
    assert_eq!(first.over_limit, None);
    take(&client, "six", 6, true).await;
    take(&client, "five", 5, true).await;
    take(&client, "hold", 4, true).await;
    take(&client, "hold", 2, false).await;
    take(&client, "odd / %", 9, false).await;
    let expected = [("hold", 4, 2), ("odd / %", 0, 9), ("six", 6, 0)];
    let expected = expected.map(|(user, used, held)| (user.to_owned(), used, held));
    let told = preview(&client, cap(5)).await;
    assert_eq!((told.revision, told.changed), (2, true));
    assert_eq!(users(&told), expected);
    assert_eq!(client.stands("cap").await, (0, 0, 10), "nothing is changed by asking");
    let applied = client.apply(cap(5)).await.unwrap();
    assert_eq!(users(&applied), expected);
    // The same once more changes nothing; more for everybody lowers nothing.
    assert_eq!(client.apply(cap(5)).await.unwrap().over_limit, None);
    assert_eq!(client.apply(cap(6)).await.unwrap().over_limit, None);
    let lowered = client.apply(cap(5)).await.unwrap();
    assert_eq!(users(&lowered), expected);
    client.release("odd / % 9").await.unwrap();
    assert_eq!(names(&client.apply(cap(4)).await.unwrap()), ["five", "hold", "six"]);
    // Nobody is above that who was not held to less before.
    let unlimited = Rules::of_units([limit("cap", "units").per(&["user"]).unlimited()]);
    assert_eq!(client.apply(unlimited).await.unwrap().over_limit, None);
    assert_eq!(names(&client.apply(cap(5)).await.unwrap()), ["hold", "six"]);
    let restarted = limit("cap", "units").per(&["user"]).max(1).fixed(Span::from_secs(86_400));
    let restarted = client.apply(Rules::of_units([restarted])).await.unwrap();
    assert_eq!((restarted.over_limit, restarted.restarted_limits.len()), (None, 1));
}

async fn b31_over_by_plan_and_exception(world: &mut World) {
    let client = world.caller();
    let rules = |free: i64, pro: i64, default: &str| {
        let rule = limit("cap", "units").per(&["user"]).by_plan(&[("free", free), ("pro", pro)]);
        Rules::of_units([rule]).plans(&["free", "pro"], default)
    };
    client.apply(rules(5, 9, "pro")).await.unwrap();
    client.put_on_plan("user", "free", "free").await.unwrap();
    client.put_on_plan("user", "pro", "pro").await.unwrap();
    let exception = v1::Override {
        limit: "cap".to_owned(),
        change: Some(v1::r#override::Change::Set(7)),
        expire_time: None,
    };
    let subject = v1::Subject {
        kind: "user".to_owned(),
        id: "except".to_owned(),
        plan: "free".to_owned(),
        overrides: vec![exception],
        ..v1::Subject::default()
    };
    let (namespace, etag) = (client.namespace.clone(), String::new());
    let request = v1::PutSubjectRequest { namespace, subject: Some(subject), etag };
    client.policy.clone().put_subject(request).await.unwrap();
    for user in ["free", "pro", "except", "unseen"] {
        take(&client, user, 5, true).await;
    }
    assert_eq!(names(&client.apply(rules(3, 9, "pro")).await.unwrap()), ["free"]);
    assert_eq!(names(&client.apply(rules(3, 9, "free")).await.unwrap()), ["unseen"]);
    assert_eq!(names(&client.apply(rules(3, 4, "free")).await.unwrap()), ["pro"]);
}

async fn b31_over_once_it_is_enforced(world: &mut World) {
    let client = world.caller();
    let rule = |max| limit("cap", "units").per(&["user"]).max(max);
    client.apply(Rules::of_units([rule(1).observed()])).await.unwrap();
    take(&client, "s", 3, true).await;
    take(&client, "t", 1, true).await;
    assert_eq!(client.apply(Rules::of_units([rule(0).observed()])).await.unwrap().over_limit, None);
    assert_eq!(names(&client.apply(Rules::of_units([rule(2)])).await.unwrap()), ["s"]);
    // Gone and back again, with what it has counted.
    let other = limit("other", "units").per(&["user"]).max(9);
    client.apply(Rules::of_units([other])).await.unwrap();
    assert_eq!(names(&client.apply(Rules::of_units([rule(2)])).await.unwrap()), ["s"]);
}

async fn b31_over_in_great_number(world: &mut World) {
    let client = world.caller();
    client.apply(cap(3)).await.unwrap();
    let calls = (0..130).map(|n| {
        let client = client.clone();
        async move { take(&client, &format!("{n:03}"), 1 + n % 3, n % 2 == 0).await }
    });
    at_once(calls).await;
    let over = client.apply(cap(1)).await.unwrap().over_limit.unwrap();
    assert_eq!((over.count, over.limits.len(), over.incomplete), (86, 86, false));
    let over = client.apply(cap(0)).await.unwrap().over_limit.unwrap();
    assert_eq!((over.count, over.limits.len(), over.incomplete), (130, 100, false));
    assert_eq!(over.limits[99].key["user"], "099");
}

async fn b31_over_in_open_windows(world: &mut World) {
    let day =
        |max| Rules::of_units([limit("cap", "units").per(&["user"]).max(max).calendar(Day, "")]);
    let client = world.rules(day(9)).await;
    take(&client, "yesterday", 8, true).await;
    world.pass(Span::from_days(1)).await;
    take(&client, "today", 7, true).await;
    take(&client, "yesterday", 1, true).await;
    assert_eq!(names(&client.apply(day(2)).await.unwrap()), ["today"]);
    let hold = client.reserve("hold").item("units", 2).with("user", "later");
    hold.ttl(Span::from_secs(60)).send().await.unwrap();
    world.pass(Span::from_secs(61)).await;
    assert_eq!(names(&client.apply(day(1)).await.unwrap()), ["today"], "its hold has expired");
}

/// Which of his periods is open says the subject, not the counter, which last
/// heard of it when something was charged.
async fn b31_over_in_periods_that_were_corrected(world: &mut World) {
    world.begin_at("2025-01-10T00:00:00Z").await;
    let cap = |max| Rules::of_units([limit("cap", "units").per(&["user"]).max(max).billing()]);
    let client = world.rules(cap(10)).await;
    let day = |day: &str| format!("{day}T00:00:00Z");
    let (january, february, march) = (day("2025-01-01"), day("2025-02-01"), day("2025-03-01"));
    client.put(user("a").periods(&[("p1", &january, &february)])).await.unwrap();
    take(&client, "a", 8, true).await;
    // Its end is put off, and the clock goes beyond the old one.
    client.put(user("a").periods(&[("p1", &january, &march)])).await.unwrap();
    world.set("2025-02-05T00:00:00Z").await;
    let over = preview(&client, cap(5)).await;
    assert_eq!(users(&over), [("a".to_owned(), 8, 0)]);
    let window = over.over_limit.unwrap().limits.remove(0).window.unwrap();
    assert_eq!(crate::world::text(window.end_time.as_ref()), march);
    // Another one is open now.
    let shortened = [("p1", january.as_str(), february.as_str()), ("p2", &february, &march)];
    client.put(user("a").periods(&shortened)).await.unwrap();
    assert!(users(&preview(&client, cap(5)).await).is_empty());
}
