//! Policies, plans and exceptions that change while people are counted.

use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::support::eventually;
use crate::world::{Client, Denied, Rules, World, at_once, cases, limit, text, user, v1};
use v1::CalendarUnit::{Day, Month};

cases! {
    every_store: [
        b20_denied_calls_are_not_counted,
        b31_a_lowered_limit,
        b31_a_limit_removed_and_put_back,
        b31_a_change_while_units_are_held,
        b31_a_bad_policy_changes_nothing,
        b61_a_change_reaches_every_server,
        b32_unknown_plans,
        b32_overrides_and_frozen_subjects,
        b32_frozen_whatever_the_limit_counts_by,
        b32_deleted_subjects,
        b34_one_subject_put_by_many_at_once,
        b34_a_first_policy_sent_again,
        b32_a_subject_whose_plan_has_gone,
    ],
    manual_clock: [b31_raised_and_lowered_within_a_day, b31_another_length, b32_plan_change],
}

async fn tries(client: &Client, round: &str, count: usize) -> usize {
    let mut admitted = 0;
    for n in 0..count {
        match client.take(&format!("{round} {n}"), 1).committed().await {
            Ok(_) => admitted += 1,
            refused => drop(refused.denied(&["cap"])),
        }
    }
    admitted
}

fn cap(max: i64) -> Rules {
    Rules::of_units([limit("cap", "units").per(&["user"]).max(max).calendar(Month, "UTC")])
}

async fn b20_denied_calls_are_not_counted(world: &mut World) {
    let client = world.rules(cap(10)).await;
    assert_eq!(tries(&client, "before", 50).await, 10);
    assert_eq!(client.stands("cap").await, (10, 0, 0));
    let applied = client.apply(cap(20)).await.unwrap();
    assert_eq!((applied.revision, applied.changed), (2, true));
    assert!(applied.restarted_limits.is_empty());
    assert_eq!(tries(&client, "after", 15).await, 10);
    assert_eq!(client.stands("cap").await, (20, 0, 0));
    // What was refused may come again under its own id.
    client.apply(cap(21)).await.unwrap();
    client.take("before 49", 1).committed().await.unwrap();
}

async fn b31_raised_and_lowered_within_a_day(world: &mut World) {
    let day =
        |max| Rules::of_units([limit("cap", "units").per(&["user"]).max(max).calendar(Day, "")]);
    let client = world.rules(day(10)).await;
    client.take("eight", 8).committed().await.unwrap();
    client.apply(day(20)).await.unwrap();
    assert_eq!(client.stands("cap").await, (8, 0, 12));
    // The same day in other words is no other window.
    let small = limit("cap", "units").per(&["user"]).max(20).calendar(Day, "utc");
    let applied = client.apply(Rules::of_units([small])).await.unwrap();
    assert!(applied.changed && applied.restarted_limits.is_empty());
    assert_eq!(client.stands("cap").await, (8, 0, 12));
    client.apply(day(9)).await.unwrap();
    assert_eq!(client.stands("cap").await, (8, 0, 1));
    client.take("ninth", 1).committed().await.unwrap();
    client.take("tenth", 1).send().await.denied(&["cap"]);
    world.pass(Span::from_days(1)).await;
    assert_eq!(client.stands("cap").await, (0, 0, 9));
}

async fn b31_a_lowered_limit(world: &mut World) {
    let client = world.cap(10).await;
    client.take("used", 4).committed().await.unwrap();
    client.take("held", 4).send().await.unwrap();
    client.take("back", 1).send().await.unwrap();
    world.cap(5).await;
    // Nothing is shown below zero, and nothing new gets in.
    assert_eq!(client.stands("cap").await, (4, 5, 0));
    client.take("one", 1).send().await.denied(&["cap"]);
    // What was admitted is settled as ever.
    client.release("back").await.unwrap();
    let committed = client.commit("held").await.unwrap();
    assert_eq!((committed.limits[0].used, committed.limits[0].available), (8, Some(0)));
    client.take("one", 1).send().await.denied(&["cap"]);
    world.cap(9).await;
    client.take("one", 1).send().await.unwrap();
    client.take("two", 1).send().await.denied(&["cap"]);
}

async fn b31_another_length(world: &mut World) {
    let fixed = |seconds| {
        let rule = limit("cap", "units").per(&["user"]).max(10).fixed(Span::from_secs(seconds));
        Rules::of_units([rule])
    };
    let client = world.rules(fixed(60)).await;
    client.take("five", 5).committed().await.unwrap();
    client.take("held", 1).send().await.unwrap();
    let applied = client.apply(fixed(10)).await.unwrap();
    assert_eq!(applied.restarted_limits, ["cap"]);
    // In force at once, from fresh counters.
    let now = client.usage("units", &[("user", "s")]).await.unwrap();
    let window = now[0].window.as_ref().unwrap();
    assert_eq!(
        window.end_time.as_ref().unwrap().seconds - window.start_time.as_ref().unwrap().seconds,
        10
    );
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    client.take("ten", 10).committed().await.unwrap();
    // What is held of the old counters is settled there.
    let old = client.commit("held").await.unwrap();
    assert_eq!((old.limits[0].used, old.limits[0].held), (6, 0));
    assert_eq!(client.stands("cap").await, (10, 0, 0));
    world.pass(Span::from_secs(15)).await;
    assert_eq!(client.stands("cap").await, (0, 0, 10));
    client.take("again", 10).send().await.unwrap();
    world.pass(Span::from_secs(75)).await;
    assert_eq!(client.stands("cap").await, (0, 0, 10));
}

async fn b31_a_limit_removed_and_put_back(world: &mut World) {
    let one = || limit("one", "units").per(&["user"]).max(10);
    let other = || limit("other", "units").per(&["user"]).max(100);
    let client = world.rules(Rules::of_units([one(), other()])).await;
    client.take("four", 4).committed().await.unwrap();
    client.take("held", 2).send().await.unwrap();
    client.apply(Rules::of_units([other()])).await.unwrap();
    client.take("free", 50).committed().await.unwrap();
    client.commit("held").await.unwrap();
    // Removed by mistake, it comes back with what it had counted.
    client.apply(Rules::of_units([one(), other()])).await.unwrap();
    assert_eq!(client.stands("one").await, (6, 0, 4));
    client.take("five", 5).send().await.denied(&["one"]);
    client.take("last", 4).send().await.unwrap();
    assert_eq!(client.stands("other").await, (56, 4, 40));
}

async fn b31_a_change_while_units_are_held(world: &mut World) {
    let rules = |per: &[&str]| {
        let rule = limit("cap", "units").per(per).max(3);
        Rules::new().metric("units", &["user", "team"]).limits([rule])
    };
    let client = world.rules(rules(&["user"])).await;
    let take = |id: &str, amount| client.take(id, amount).with("team", "t");
    take("old", 3).send().await.unwrap();
    let applied = client.apply(rules(&["team"])).await.unwrap();
    assert_eq!(applied.restarted_limits, ["cap"]);
    take("new", 3).send().await.unwrap();
    // Given back to the counter it came from, not to the one of that name now.
    let released = client.release("old").await.unwrap();
    assert_eq!(released.limits[0].held, 0);
    take("more", 1).send().await.denied(&["cap"]);
    let usage = client.usage("units", &[("user", "s"), ("team", "t")]).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held), (0, 3));
    client.commit_some("new", &[1]).await.unwrap();
    take("more", 2).send().await.unwrap();
}

async fn b31_a_bad_policy_changes_nothing(world: &mut World) {
    let client = world.cap(1).await;
    let bad = Rules::of_units([
        limit("cap", "units").per(&["user"]).max(100),
        limit("cap", "units").per(&["user"]).max(100),
        limit("lost", "nothing").max(1),
    ]);
    let refused = client.apply(bad).await.refused(Reason::InvalidField);
    assert_eq!(refused.fields(), ["policy.limits[1].name", "policy.limits[2].metric"]);
    client.take("one", 1).send().await.unwrap();
    client.take("two", 1).send().await.denied(&["cap"]);
    let request = v1::GetPolicyRequest { namespace: client.namespace.clone(), revision: 0 };
    let policy = client.policy.clone().get_policy(request).await.unwrap().into_inner();
    assert_eq!(policy.revision.unwrap().revision, 1);
    // The same content once more is no new revision.
    let cap = limit("cap", "units").per(&["user"]).max(1);
    let again = client.apply(Rules::of_units([cap])).await.unwrap();
    assert_eq!((again.revision, again.changed), (1, false));
}

async fn b61_a_change_reaches_every_server(world: &mut World) {
    world.add_server().await;
    let (first, second) = (world.client(0), world.client(1));
    let cap = |max| Rules::of_units([limit("cap", "units").per(&["user"]).max(max)]);
    first.apply(cap(3)).await.unwrap();
    for n in 0..3 {
        first.take(&format!("{n}"), 1).committed().await.unwrap();
        assert_eq!(second.stands("cap").await.0, n + 1, "at once on the other");
    }
    second.take("fourth", 1).send().await.denied(&["cap"]);
    first.apply(cap(5)).await.unwrap();
    first.take("fifth", 1).send().await.unwrap();
    let second_sees = async |what: &str, admitted: bool| {
        eventually(Duration::from_secs(3), what, async || {
            let check = second.check(&[("units", 1)], &[("user", "s")]).await.unwrap();
            (check.admitted == admitted).then_some(())
        })
        .await;
    };
    second_sees("the raise to be in force", true).await;
    second.take("fourth", 1).send().await.unwrap();
    second.take("sixth", 1).send().await.denied(&["cap"]);
    second.release("fourth").await.unwrap();
    first.apply(cap(3)).await.unwrap();
    second_sees("the lowering to be in force", false).await;
    for client in [&first, &second] {
        client.take("seventh", 1).send().await.denied(&["cap"]);
    }
}

async fn b32_plan_change(world: &mut World) {
    world.begin_at("2024-05-10T00:00:00Z").await;
    let plans = [("starter", 20_000), ("growth", 50_000), ("pro", 100_000)];
    let rule = limit("cap", "units").per(&["user"]).by_plan(&plans).calendar(Month, "UTC");
    let rules = Rules::of_units([rule]).plans(&["starter", "growth", "pro"], "");
    let client = world.rules(rules).await;
    client.put_on_plan("user", "s", "starter").await.unwrap();
    client.take("starter", 20_000).committed().await.unwrap();
    client.take("over", 1).send().await.denied(&["cap"]);
    client.put_on_plan("user", "s", "pro").await.unwrap();
    client.take("over", 1).committed().await.unwrap();
    assert_eq!(client.stands("cap").await, (20_001, 0, 79_999));
    client.take("more", 39_999).committed().await.unwrap();
    client.take("held", 10).send().await.unwrap();
    client.put_on_plan("user", "s", "growth").await.unwrap();
    assert_eq!(client.stands("cap").await, (60_000, 10, 0));
    client.release("held").await.unwrap();
    let refused = client.take("down", 1).send().await.denied(&["cap"]);
    let status = &refused.refusal.as_ref().unwrap().limits[0];
    assert_eq!((status.used, status.available), (60_000, Some(0)));
    assert_eq!(text(status.retry_time.as_ref()), "2024-06-01T00:00:00Z");
    assert_eq!(refused.metadata["retry_time"], "2024-06-01T00:00:00Z");
    assert_eq!(client.stands("cap").await, (60_000, 0, 0));
    world.set("2024-06-01T00:00:00Z").await;
    assert_eq!(client.stands("cap").await, (0, 0, 50_000));
    client.take("down", 1).committed().await.unwrap();
}

async fn b32_unknown_plans(world: &mut World) {
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("free", 1)]);
    let client = world.rules(Rules::of_units([rule]).plans(&["free"], "")).await;
    let refused = client.take("a", 1).send().await.refused(Reason::UnknownPlan);
    assert_eq!(refused.metadata["subject"], "user/s");
    client.usage("units", &[("user", "s")]).await.refused(Reason::UnknownPlan);
    client.check(&[("units", 1)], &[("user", "s")]).await.refused(Reason::UnknownPlan);
    let refused = client.put_on_plan("user", "s", "gold").await;
    refused.invalid(&["subject.plan"]);
    client.put_on_plan("user", "s", "free").await.unwrap();
    client.take("a", 1).send().await.unwrap();
    // A plan that goes with its subjects still on it lets nobody new in.
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("gold", 9)]);
    client.apply(Rules::of_units([rule]).plans(&["gold"], "gold")).await.unwrap();
    let refused = client.take("b", 1).send().await.refused(Reason::UnknownPlan);
    assert_eq!(refused.metadata["plan"], "free");
    client.commit("a").await.unwrap();
}

async fn b32_overrides_and_frozen_subjects(world: &mut World) {
    let client = world.cap(2).await;
    let put = async |change: Option<v1::r#override::Change>, frozen: bool| {
        let over = |change| v1::Override {
            limit: "cap".into(),
            change: Some(change),
            ..Default::default()
        };
        let subject = v1::Subject {
            kind: "user".into(),
            id: "s".into(),
            overrides: change.map(over).into_iter().collect(),
            frozen,
            ..v1::Subject::default()
        };
        let (namespace, etag) = (client.namespace.clone(), String::new());
        let request = v1::PutSubjectRequest { namespace, subject: Some(subject), etag };
        client.policy.clone().put_subject(request).await.map_err(crate::world::Refused::from)
    };
    put(Some(v1::r#override::Change::Add(1)), false).await.unwrap();
    client.take("three", 3).send().await.unwrap();
    put(Some(v1::r#override::Change::Set(0)), false).await.unwrap();
    client.take("one", 1).send().await.denied(&["cap"]);
    assert_eq!(client.stands("cap").await, (0, 3, 0));
    put(Some(v1::r#override::Change::Set(-1)), false).await.invalid(&["subject.overrides[0].set"]);
    put(Some(v1::r#override::Change::Set(9)), true).await.unwrap();
    let refused = client.take("one", 1).send().await.refused(Reason::SubjectFrozen);
    assert_eq!(refused.metadata["subject"], "user/s");
    client.take("one", 1).at_once().send().await.refused(Reason::SubjectFrozen);
    // Of others nothing is known, and what is held is settled.
    client.reserve("t").item("units", 1).with("user", "t").send().await.unwrap();
    client.commit_some("three", &[2]).await.unwrap();
    assert!(client.take("three", 3).send().await.unwrap().replayed);
    put(None, false).await.unwrap();
    client.take("one", 1).send().await.denied(&["cap"]);
}

/// Every Reserve that names a frozen subject is refused, also where the limit
/// counts by more than him.
async fn b32_frozen_whatever_the_limit_counts_by(world: &mut World) {
    let rules = Rules::new().metric("units", &["user", "item"]);
    let rule = limit("cap", "units").per(&["user", "item"]).max(5);
    let client = world.rules(rules.limits([rule])).await;
    client.take("before", 1).with("item", "i").send().await.unwrap();
    let (kind, id) = ("user".to_owned(), "s".to_owned());
    let subject = v1::Subject { kind, id, frozen: true, ..v1::Subject::default() };
    let (namespace, etag) = (client.namespace.clone(), String::new());
    let request = v1::PutSubjectRequest { namespace, subject: Some(subject), etag };
    client.policy.clone().put_subject(request).await.unwrap();
    let frozen = client.take("after", 1).with("item", "i").send().await;
    frozen.refused(Reason::SubjectFrozen);
}

/// A subject that was deleted is one that was never seen; what it used stays.
async fn b32_deleted_subjects(world: &mut World) {
    world.add_server().await;
    let (client, other) = (world.client(0), world.client(1));
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("free", 2), ("pro", 9)]);
    client.apply(Rules::of_units([rule]).plans(&["free", "pro"], "free")).await.unwrap();
    let gone = client.delete_subject("user", "s", "").await.refused(Reason::SubjectNotFound);
    assert_eq!((gone.metadata["kind"].as_str(), gone.metadata["id"].as_str()), ("user", "s"));
    client.put_on_plan("user", "s", "pro").await.unwrap();
    client.take("five", 5).committed().await.unwrap();
    client.delete_subject("user", "s", "1").await.refused(Reason::PolicyRevisionMismatch);
    client.delete_subject("user", "s", "").await.unwrap();
    assert_eq!(client.stands("cap").await, (5, 0, 0), "in force at once");
    client.take("one", 1).send().await.denied(&["cap"]);
    let request = v1::GetSubjectRequest {
        namespace: client.namespace.clone(),
        kind: "user".into(),
        id: "s".into(),
    };
    let shown = client.policy.clone().get_subject(request).await;
    shown.map_err(crate::world::Refused::from).refused(Reason::SubjectNotFound);
    client.delete_subject("user", "s", "").await.refused(Reason::SubjectNotFound);
    client.delete_subject("", "\n", "").await.invalid(&["kind", "id"]);

    // Deleted and put again where the other server does not see it.
    client.put_on_plan("user", "s", "pro").await.unwrap();
    let other_sees = async |what: &str, available: i64| {
        eventually(Duration::from_secs(3), what, async || {
            (other.stands("cap").await.2 == available).then_some(())
        })
        .await;
    };
    other_sees("the plan to be in force", 4).await;
    for round in 0..3 {
        client.delete_subject("user", "s", "").await.unwrap();
        client.put_on_plan("user", "s", "free").await.unwrap();
        other_sees(&format!("the lower plan to be in force, {round}"), 0).await;
        client.put_on_plan("user", "s", "pro").await.unwrap();
        other_sees(&format!("the higher plan to be in force, {round}"), 4).await;
    }
    client.delete_subject("user", "s", "").await.unwrap();
    other_sees("the deletion to be in force", 0).await;
}

/// Write conflicts are nobody's business but the servers'.
async fn b34_one_subject_put_by_many_at_once(world: &mut World) {
    let client = world.cap(1).await;
    let puts = (0..60).map(|n| {
        let client = client.clone();
        async move { client.put(user("s").label("n", &n.to_string())).await.map(|_| ()) }
    });
    for put in at_once(puts).await {
        put.unwrap();
    }
    client.take("counted", 1).send().await.unwrap();
}

/// Who sends again what made the first revision is not told that there is one.
async fn b34_a_first_policy_sent_again(world: &mut World) {
    let client = world.caller();
    let apply = async |rules: Rules| {
        let policy = Some(v1::Policy { namespace: client.namespace.clone(), ..rules.0 });
        let request =
            v1::ApplyPolicyRequest { policy, expected_revision: -1, validate_only: false };
        let answer = client.policy.clone().apply_policy(request).await?.into_inner();
        Ok::<_, crate::world::Refused>((answer.revision, answer.changed))
    };
    assert_eq!(apply(cap(1)).await.unwrap(), (1, true));
    assert_eq!(apply(cap(1)).await.unwrap(), (1, false));
    let refused = apply(cap(2)).await.refused(Reason::PolicyRevisionMismatch);
    assert_eq!((&*refused.metadata["expected"], &*refused.metadata["actual"]), ("none", "1"));
    client.take("counted", 1).send().await.unwrap();
}

async fn b32_a_subject_whose_plan_has_gone(world: &mut World) {
    let by = |plans: &[&str]| {
        let plans: Vec<(&str, i64)> = plans.iter().map(|plan| (*plan, 1)).collect();
        let rule = limit("cap", "units").per(&["user"]).by_plan(&plans);
        Rules::of_units([rule])
    };
    let client = world.rules(by(&["new", "old"]).plans(&["new", "old"], "new")).await;
    client.put(user("s").plan("old")).await.unwrap();
    client.apply(by(&["new"]).plans(&["new"], "new")).await.unwrap();
    // It may be frozen, but nobody else comes onto that plan.
    client.put(user("s").plan("old").frozen()).await.unwrap();
    client.put(user("t").plan("old")).await.invalid(&["subject.plan"]);
    client.take("frozen", 1).send().await.refused(Reason::SubjectFrozen);
    client.reserve("other").item("units", 1).with("user", "t").send().await.unwrap();
}
