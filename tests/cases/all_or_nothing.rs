//! One call, several limits: all are charged or none.

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;

use crate::world::{Client, Denied, Rules, World, cases, limit};

cases! {
    every_store: [
        b28_all_or_nothing,
        b28_all_or_nothing_in_any_order,
        b28_items_on_one_counter_are_summed,
        b28_every_failing_limit_is_named,
        b28_an_observed_limit_counts_and_never_refuses,
        b71_every_matching_limit_is_charged,
        b80_nested_limits,
        b70_several_leases_in_one_call,
    ],
}

const MINUTE: Span = Span::from_secs(60);

/// `group` counts everything, `special` only the special kind.
fn group_and_special(special_first: bool) -> Rules {
    let group = limit("group", "calls").per(&["user"]).max(10);
    let special = limit("special", "calls").per(&["user"]).only("kind", &["special"]).max(3);
    let limits = if special_first { [special, group] } else { [group, special] };
    Rules::new().metric("calls", &["user", "kind"]).limits(limits)
}

async fn calls(client: &Client, kind: &str, count: usize) -> (usize, usize) {
    let (mut admitted, mut denied) = (0, 0);
    for n in 0..count {
        let id = format!("{kind}-{n}");
        let call = client.reserve(&id).item("calls", 1).with("user", "s").with("kind", kind);
        match call.committed().await {
            Ok(_) => admitted += 1,
            refused => {
                refused.denied(&[if kind == "special" { "special" } else { "group" }]);
                denied += 1;
            }
        }
    }
    (admitted, denied)
}

async fn group_and_special_play(world: &World, special_first: bool) {
    let client = world.rules(group_and_special(special_first)).await;
    assert_eq!(calls(&client, "special", 5).await, (3, 2));
    let limits = client.usage("calls", &[("user", "s"), ("kind", "special")]).await.unwrap();
    let used = |name: &str| limits.iter().find(|status| status.limit == name).unwrap().used;
    assert_eq!((used("group"), used("special")), (3, 3));
    assert_eq!(calls(&client, "plain", 8).await, (7, 1));
}

async fn b28_all_or_nothing(world: &mut World) {
    group_and_special_play(world, false).await;
}

async fn b28_all_or_nothing_in_any_order(world: &mut World) {
    group_and_special_play(world, true).await;

    // Two metrics in one call: the item that does not fit takes the other with
    // it, whichever stands first.
    let small = limit("small", "few").per(&["user"]).max(1);
    let large = limit("large", "many").per(&["user"]).max(100);
    let rules = Rules::new().metric("few", &["user"]).metric("many", &["user"]);
    let client = world.caller().within("pairs");
    client.apply(rules.limits([large, small])).await.unwrap();
    for (n, order) in [["few", "many"], ["many", "few"]].into_iter().enumerate() {
        let call = client.reserve(&format!("two-{n}")).with("user", "s");
        call.item(order[0], 2).item(order[1], 2).send().await.denied(&["small"]);
        let many = client.usage("many", &[("user", "s")]).await.unwrap();
        assert_eq!((many[0].used, many[0].held), (0, 0), "{order:?}");
    }
    let call = client.reserve("fits").with("user", "s").item("few", 1).item("many", 100);
    assert_eq!(call.send().await.unwrap().limits.len(), 2);
}

async fn b28_items_on_one_counter_are_summed(world: &mut World) {
    let client = world.cap(5).await;
    let refused = client.take("a", 3).item("units", 3).send().await.denied(&["cap"]);
    assert_eq!(refused.refusal.unwrap().limits[0].requested, 6);
    let refused = client.take("b", 3).item("units", i64::MAX).send().await;
    refused.refused(Reason::InvalidField);
    assert_eq!(client.stands("cap").await, (0, 0, 5));
    let admitted = client.take("c", 3).item("units", 2).send().await.unwrap();
    assert_eq!(admitted.limits.len(), 1, "one counter, one status");
    assert_eq!(admitted.reservation.unwrap().charges[0].amount, 5);
    assert_eq!(client.stands("cap").await, (0, 5, 0));
    // Settled item by item, on the same counter.
    client.commit_some("c", &[1, 2]).await.unwrap();
    assert_eq!(client.stands("cap").await, (3, 0, 2));
}

async fn b28_every_failing_limit_is_named(world: &mut World) {
    let never = limit("never", "units").per(&["user"]).max(2);
    let later = limit("later", "units").per(&["user"]).max(3).fixed(MINUTE);
    let roomy = limit("roomy", "units").per(&["user"]).max(9);
    let client = world.rules(Rules::of_units([roomy, later, never])).await;
    client.take("first", 2).send().await.unwrap();
    // Most binding first: what can never pass stands before what can.
    let refused = client.take("second", 3).send().await.denied(&["never", "later"]);
    assert_eq!(refused.retry, None);
    assert_eq!(refused.metadata["limits_exceeded"], "2");
    assert_eq!(client.stands("roomy").await, (0, 2, 7));
    let check = client.check(&[("units", 3)], &[("user", "s")]).await.unwrap();
    assert!(!check.admitted);
    let exceeded = check.limits.iter().filter(|status| status.exceeded);
    assert_eq!(
        exceeded.map(|status| status.limit.as_str()).collect::<Vec<_>>(),
        ["later", "never"]
    );
}

async fn b28_an_observed_limit_counts_and_never_refuses(world: &mut World) {
    let shadow = limit("shadow", "units").per(&["user"]).max(1).observed();
    let real = limit("real", "units").per(&["user"]).max(3);
    let client = world.rules(Rules::of_units([shadow, real])).await;
    let seen = async |id: &str, amount: i64| {
        let limits = client.take(id, amount).send().await.unwrap().limits;
        limits.iter().map(|status| status.exceeded).collect::<Vec<_>>()
    };
    assert_eq!(seen("fits", 1).await, [false, false]);
    client.release("fits").await.unwrap();
    // Admitted all the same, and told so.
    assert_eq!(seen("a", 2).await, [true, false]);
    client.take("b", 2).send().await.denied(&["real"]);
    let limits = client.usage("units", &[("user", "s")]).await.unwrap();
    let shadow = limits.iter().find(|status| status.limit == "shadow").unwrap();
    assert_eq!((shadow.held, shadow.available, shadow.enforced), (2, Some(0), false));
    client.release("a").await.unwrap();
    assert_eq!(client.stands("shadow").await, (0, 0, 1));
}

async fn b71_every_matching_limit_is_charged(world: &mut World) {
    let rules = Rules::new().metric("calls", &["org", "int"]).limits([
        limit("org", "calls").per(&["org"]).max(5),
        limit("integrator", "calls").per(&["org", "int"]).max(3),
    ]);
    let client = world.rules(rules).await;
    let call = async |int: &str, n: usize| {
        let id = format!("{int}-{n}");
        let call = client.reserve(&id).item("calls", 1).with("org", "o").with("int", int);
        call.committed().await
    };
    for n in 0..3 {
        assert_eq!(call("i", n).await.unwrap().limits.len(), 2);
    }
    call("i", 3).await.denied(&["integrator"]);
    let limits = client.usage("calls", &[("org", "o"), ("int", "i")]).await.unwrap();
    assert_eq!(limits.iter().map(|status| status.used).collect::<Vec<_>>(), [3, 3]);
    for n in 0..2 {
        call("j", n).await.unwrap();
    }
    call("j", 2).await.denied(&["org"]);
    let limits = client.usage("calls", &[("org", "o"), ("int", "j")]).await.unwrap();
    assert_eq!(limits.iter().map(|status| status.used).collect::<Vec<_>>(), [5, 2]);
}

async fn b80_nested_limits(world: &mut World) {
    let rules = Rules::new().metric("seats", &["tenant", "department", "user"]).limits([
        limit("tenant", "seats").per(&["tenant"]).max(10),
        limit("department", "seats").per(&["tenant", "department"]).max(8),
        limit("user", "seats").per(&["tenant", "user"]).max(20),
    ]);
    let client = world.rules(rules).await;
    let seats = |id: &str, department: &str, amount| {
        let call = client.reserve(id).item("seats", amount).with("tenant", "t");
        call.with("department", department).with("user", "u")
    };
    let committed = seats("d1", "d1", 8).committed().await.unwrap();
    assert_eq!(committed.limits.iter().map(|status| status.used).collect::<Vec<_>>(), [8, 8, 8]);
    seats("d2-3", "d2", 3).send().await.denied(&["tenant"]);
    let admitted = seats("d2-2", "d2", 2).send().await.unwrap();
    assert_eq!(admitted.limits[0].available, Some(0));
    // A department with room has none where its tenant is full, and the user's
    // larger number gives no extra.
    seats("d2-1", "d2", 1).send().await.denied(&["tenant"]);
    seats("d1-9", "d1", 9).send().await.denied(&["tenant", "department"]);
    client.release("d2-2").await.unwrap();
    seats("d1-2", "d1", 2).send().await.denied(&["department"]);
    seats("d3-2", "d3", 2).send().await.unwrap();
}

async fn b70_several_leases_in_one_call(world: &mut World) {
    let lock = limit("writer", "edit").per(&["doc"]).max(1);
    let client = world.rules(Rules::new().metric("edit", &["doc"]).limits([lock])).await;
    let all = |id: &str, ttl: Span| {
        let call = client.reserve(id).ttl(ttl);
        ["A", "B", "C", "D"].iter().fold(call, |call, doc| call.item_of("edit", 1, &[("doc", doc)]))
    };
    let each = async |round: &str, docs: &[&str]| {
        for doc in docs {
            let id = format!("{round}-{doc}");
            client.reserve(&id).item("edit", 1).with("doc", doc).send().await.expect(doc);
        }
    };
    let release = async |round: &str, docs: &[&str]| {
        for doc in docs {
            client.release(&format!("{round}-{doc}")).await.unwrap();
        }
    };
    let granted = all("all-1", MINUTE).send().await.unwrap();
    let charges = granted.reservation.unwrap().charges;
    assert_eq!(charges.len(), 4);
    assert!(charges.iter().all(|charge| charge.amount == 1 && charge.fencing_token > 0));
    let taken = client.reserve("x").item("edit", 1).with("doc", "C").send().await;
    assert_eq!(taken.denied(&["writer"]).refusal.unwrap().limits[0].key["doc"], "C");
    client.release("all-1").await.unwrap();
    each("first", &["A", "B", "C", "D"]).await;
    release("first", &["A", "B", "C", "D"]).await;

    let short = Span::from_secs(1);
    all("all-2", short).send().await.unwrap();
    world.pass(Span::from_millis(1032)).await;
    each("second", &["A", "B", "C", "D"]).await;
    release("second", &["A", "B", "D"]).await;

    // C is held by another: nothing of the four is taken.
    let refused = all("all-3", MINUTE).send().await.denied(&["writer"]);
    assert_eq!(refused.refusal.unwrap().limits[0].key["doc"], "C");
    each("third", &["A", "B", "D"]).await;
}
