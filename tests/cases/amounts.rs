//! Amounts: too many, none, less than none, and as many as a number can say.

use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Denied, Refused, Rules, World, cases, limit, v1};

cases! {
    every_store: [
        b29_a_refused_amount_takes_nothing,
        b82_number_range,
        b82_two_huge_reserves,
        b82_durations,
        b83_amount_checks,
        b85_zero_and_unlimited,
        b85_zero_for_one_plan,
        b85_less_than_none_is_no_limit,
    ],
}

async fn b29_a_refused_amount_takes_nothing(world: &mut World) {
    // Of a window that ends, and of one that never does.
    let hour = limit("hour", "units").per(&["user"]).max(5).fixed(Span::from_secs(1_000_000));
    let ever = limit("ever", "units").per(&["user"]).max(5);
    let client = world.rules(Rules::of_units([hour, ever])).await;
    client.take("used", 3).committed().await.unwrap();
    let later = client.take("five", 5).send().await.denied(&["ever", "hour"]);
    let limits = later.refusal.unwrap().limits;
    assert!(limits[0].retry_time.is_none(), "what is used of a lifetime limit does not come back");
    assert_eq!(limits[1].retry_time, limits[1].window.as_ref().unwrap().end_time);
    let never = client.take("million", 1_000_000).send().await.denied(&["hour", "ever"]);
    assert_eq!(never.retry, None, "it can never fit");
    assert!(never.refusal.unwrap().limits.iter().all(|status| status.retry_time.is_none()));
    assert!(never.message.contains("can never fit"), "{}", never.message);
    assert_eq!(client.stands("hour").await, (3, 0, 2));
    assert_eq!(client.stands("ever").await, (3, 0, 2));
    client.take("two", 2).send().await.unwrap();
    assert_eq!(client.stands("ever").await, (3, 2, 0));
}

async fn b82_number_range(world: &mut World) {
    for max in [4_000_000_000, (1 << 53) + 1, i64::MAX] {
        let client = world.caller().within(&format!("limit {max}"));
        let cap = limit("cap", "units").per(&["user"]).max(max);
        client.apply(Rules::of_units([cap])).await.unwrap();
        client.take("most", max - 1).committed().await.unwrap();
        assert_eq!(client.stands("cap").await, (max - 1, 0, 1));
        let last = client.take("last", 1).send().await.unwrap();
        assert_eq!(last.limits[0].bound, Some(v1::limit_status::Bound::Max(max)));
        assert_eq!(client.stands("cap").await, (max - 1, 1, 0));
        let refused = client.take("over", 1).send().await.denied(&["cap"]);
        assert_eq!(refused.metadata["max"], max.to_string());
        assert_eq!(refused.metadata["used"], (max - 1).to_string());
        client.commit("last").await.unwrap();
        assert_eq!(client.stands("cap").await, (max, 0, 0));
        let item = &client.reservation("most").await.unwrap().items[0];
        assert_eq!((item.reserved_amount, item.committed_amount), (max - 1, max - 1));
    }
}

async fn b82_two_huge_reserves(world: &mut World) {
    let full = limit("full", "units").per(&["user"]).max(i64::MAX);
    let free = limit("free", "units").per(&["user"]).unlimited();
    let shadow = limit("shadow", "units").per(&["user"]).max(1).observed();
    let client = world.rules(Rules::of_units([full, free, shadow])).await;
    client.take("first", i64::MAX).send().await.unwrap();
    // Sums that cannot be counted fit nowhere, not even where nothing refuses.
    let refused = client.take("second", i64::MAX).send().await.refused(Reason::QuotaExceeded);
    assert_eq!(refused.refusal.unwrap().total, 3);
    client.take("third", 1).send().await.refused(Reason::QuotaExceeded);
    assert_eq!(client.stands("full").await, (0, i64::MAX, 0));
    client.commit_some("first", &[i64::MAX - 1]).await.unwrap();
    assert_eq!(client.stands("full").await, (i64::MAX - 1, 0, 1));
    client.take("fourth", 1).committed().await.unwrap();
    assert_eq!(client.stands("full").await, (i64::MAX, 0, 0));
}

async fn b82_durations(world: &mut World) {
    let client = world.cap(5).await;
    let with_ttl = async |seconds, nanos| {
        let mut call = client.take("ttl", 1);
        call.request.ttl = Some(prost_types::Duration { seconds, nanos });
        call.send().await
    };
    for (seconds, nanos) in [
        (315_576_000_000, 999_999_999),
        (i64::MAX, 999_999_999),
        (i64::MIN, 0),
        (86_401, 0),
        (86_400, 1_000_000),
        (0, 999_000_000),
        (-1, 0),
        (1, -1),
        (1, i32::MAX),
    ] {
        with_ttl(seconds, nanos).await.invalid(&["ttl"]);
    }
    with_ttl(86_400, 0).await.unwrap();
    for (seconds, nanos) in [(i64::MAX, 0), (3660 * 86_400, 1_000_000), (0, 999_000_000), (-5, 0)] {
        let length = Some(prost_types::Duration { seconds, nanos });
        let fixed = v1::window_rule::Kind::Fixed(v1::FixedWindow { length });
        let rule = limit("cap", "units").per(&["user"]).max(5).window(fixed);
        let refused = client.apply(Rules::of_units([rule])).await;
        refused.invalid(&["policy.limits[0].window.fixed.length"]);
    }
    let longest = limit("cap", "units").per(&["user"]).max(5).fixed(Span::from_days(3660));
    client.apply(Rules::of_units([longest])).await.unwrap();
    client.take("long", 5).committed().await.unwrap();
}

async fn b83_amount_checks(world: &mut World) {
    let client = world.cap(10).await;
    for amount in [-5, -1, 0, i64::MIN] {
        client.take("bad", amount).send().await.invalid(&["items[0].amount"]);
        // A good item beside it does not save it.
        client.take("bad", 1).item("units", amount).send().await.invalid(&["items[1].amount"]);
        client.take("bad", amount).at_once().send().await.invalid(&["items[0].amount"]);
        let refused = client.check(&[("units", amount)], &[("user", "s")]).await;
        refused.invalid(&["items[0].amount"]);
    }
    client.take("hold", 3).send().await.unwrap();
    client.commit_some("hold", &[-1]).await.invalid(&["amounts[0]"]);
    client.commit_some("hold", &[i64::MIN]).await.invalid(&["amounts[0]"]);
    client.commit_some("hold", &[0]).await.invalid(&["amounts"]);
    client.commit_some("hold", &[1, 1]).await.invalid(&["amounts"]);
    client.take("pair", 3).item("units", 2).send().await.unwrap();
    client.commit_some("pair", &[4, -1]).await.invalid(&["amounts[1]"]);
    client.commit_some("pair", &[0, 0]).await.invalid(&["amounts"]);
    for millis in [-1000, 0] {
        let mut call = client.take("short", 1);
        call.request.ttl = Some(prost_types::Duration { seconds: millis / 1000, nanos: 0 });
        call.send().await.invalid(&["ttl"]);
    }
    assert_eq!(client.stands("cap").await, (0, 8, 2));
    client.commit_some("pair", &[0, 2]).await.unwrap();
    assert_eq!(client.stands("cap").await, (2, 3, 5));
    client.reserve("none").with("user", "s").send().await.invalid(&["items"]);
    let many = (0..65).fold(client.reserve("many").with("user", "s"), |c, _| c.item("units", 1));
    many.send().await.invalid(&["items"]);
}

async fn b85_zero_and_unlimited(world: &mut World) {
    let client = world.cap(0).await;
    let refused = client.take("none", 1).send().await.denied(&["cap"]);
    assert_eq!(refused.retry, None::<Duration>);
    assert_eq!(refused.metadata["available"], "0");
    assert_eq!(client.stands("cap").await, (0, 0, 0));
    assert!(!client.check(&[("units", 1)], &[("user", "s")]).await.unwrap().admitted);
    client.take("none", 1).at_once().send().await.denied(&["cap"]);

    let client = world.caller().within("unlimited");
    let cap = limit("cap", "units").per(&["user"]).unlimited();
    client.apply(Rules::of_units([cap])).await.unwrap();
    client.take("much", 1_000_000).committed().await.unwrap();
    let reserved = client.take("more", 1_000_000).send().await.unwrap();
    let usage = client.usage("units", &[("user", "s")]).await.unwrap();
    let check = client.check(&[("units", 5)], &[("user", "s")]).await.unwrap();
    assert!(check.admitted);
    for status in [&reserved.limits[0], &usage[0], &check.limits[0]] {
        assert_eq!(status.bound, Some(v1::limit_status::Bound::Unlimited(true)));
        assert_eq!(status.available, None, "no number stands for unlimited");
        assert_eq!((status.used, status.held), (1_000_000, 1_000_000));
    }
}

async fn b85_zero_for_one_plan(world: &mut World) {
    let kind = |plan: &str, kind| (plan.to_owned(), v1::PlanMax { kind: Some(kind) });
    let plans = [
        kind("none", v1::plan_max::Kind::Amount(0)),
        kind("all", v1::plan_max::Kind::Unlimited(true)),
    ];
    let by_plan = v1::max::Kind::ByPlan(v1::MaxByPlan { plans: plans.into() });
    let cap = limit("cap", "units").per(&["user"]).bound(by_plan);
    let client = world.rules(Rules::of_units([cap]).plans(&["none", "all"], "none")).await;
    client.take("a", 1).send().await.denied(&["cap"]);
    client.put_on_plan("user", "s", "all").await.unwrap();
    client.take("a", 1).send().await.unwrap();
    client.put_on_plan("user", "s", "none").await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 1, 0));
    client.take("b", 1).send().await.denied(&["cap"]);
    client.commit("a").await.unwrap();
}

async fn b85_less_than_none_is_no_limit(world: &mut World) {
    let client = world.cap(1).await;
    let refuses = |refused: Result<v1::ApplyPolicyResponse, Refused>| {
        let refused = refused.refused(Reason::InvalidField);
        assert!(refused.fields()[0].starts_with("policy.limits[0].max"), "{refused:?}");
    };
    let of = |rule| client.apply(Rules::of_units([rule]));
    let cap = || limit("cap", "units").per(&["user"]);
    refuses(of(cap().max(-1)).await);
    refuses(of(cap().max(i64::MIN)).await);
    refuses(of(cap()).await);
    refuses(of(cap().bound(v1::max::Kind::Unlimited(false))).await);
    // The good one is still in force.
    client.take("one", 1).send().await.unwrap();
    client.take("two", 1).send().await.denied(&["cap"]);
}
