//! Names, keys and dimensions: whatever a caller writes is that and nothing
//! else, or refused at once.

use quota_authority::api::Reason;

use crate::world::{Denied, Rules, World, cases, dims, limit, v1};

cases! {
    every_store: [
        b55_strange_subjects_have_counters_of_their_own,
        b55_strange_names_of_everything,
        b55_keys_that_run_into_each_other,
        b55_bad_names_are_refused_alike_everywhere,
        b55_bad_names_in_a_policy,
        b56_a_missing_dimension_is_no_bucket,
        b56_extra_dimensions_and_order,
        b56_an_optional_limit,
        b56_nothing_applies,
    ],
}

/// Values that something somewhere may take for more than a value.
const STRANGE: [&str; 28] = [
    "a.b",
    "$x",
    "a",
    "x.$.y",
    "ü",
    "u\u{308}",
    "A",
    " a",
    "a ",
    "a/b",
    "a%2Fb",
    "%",
    "%25",
    "/",
    "$ref",
    "$id",
    "$db",
    "$where",
    "_id",
    "null",
    "0",
    "00",
    "{\"$gt\":\"\"}",
    "a\u{200b}",
    "🦀",
    ".",
    "..",
    "'; DROP",
];

async fn b55_strange_subjects_have_counters_of_their_own(world: &mut World) {
    let client = world.cap(9).await;
    let longest = "ü".repeat(128);
    let nearly = format!("{}xx", "ü".repeat(127));
    let names: Vec<&str> = STRANGE.into_iter().chain([&*longest, &*nearly]).collect();
    for (n, name) in names.iter().enumerate() {
        let amount = i64::try_from(n).unwrap() % 5 + 1;
        let take = |suffix: &str, amount| {
            let id = format!("{name}{suffix}");
            let id = if id.len() > 256 { format!("long {n}{suffix}") } else { id };
            (id.clone(), client.reserve(&id).item("units", amount).with("user", name))
        };
        let (_, call) = take("", amount);
        let admitted = call.committed().await.unwrap();
        assert_eq!(admitted.limits[0].key["user"], **name);
        let (id, call) = take("!", 1);
        call.send().await.unwrap();
        client.release(&id).await.unwrap();
        let (_, call) = take("?", 10 - amount);
        call.send().await.denied(&["cap"]);
    }
    for (n, name) in names.iter().enumerate() {
        let amount = i64::try_from(n).unwrap() % 5 + 1;
        let usage = client.usage("units", &[("user", name)]).await.unwrap();
        assert_eq!((usage[0].used, usage[0].held), (amount, 0), "{name}");
    }
    let (_, counters) = world.records().await;
    assert_eq!(counters.len(), names.len());
}

async fn b55_strange_names_of_everything(world: &mut World) {
    for (n, name) in STRANGE.into_iter().enumerate() {
        let client = world.caller().within(name);
        let cap = limit(name, name).per(&[name]).only("k.$", &["a.b", "$x"]).max(3);
        let rules = Rules::new().metric(name, &[name, "k.$"]).limits([cap]);
        client.apply(rules).await.unwrap();
        let mut call = client.reserve(name).item(name, 1).with(name, name).with("k.$", "$x");
        call.request.resources = vec![name.to_owned()];
        call.request.labels = dims(&[(name, name)]);
        let reserved = call.send().await.unwrap().reservation.unwrap();
        assert_eq!((&*reserved.namespace, &*reserved.reservation_id), (name, name));
        let committed = client.commit(name).await.unwrap();
        assert_eq!(committed.limits[0].limit, name);
        let reservation = client.reservation(name).await.unwrap();
        assert_eq!(Some(&reservation), committed.reservation.as_ref());
        assert_eq!(reservation.items[0].dimensions, dims(&[(name, name), ("k.$", "$x")]));
        assert_eq!(
            (reservation.labels, reservation.resources),
            (dims(&[(name, name)]), vec![name.to_owned()])
        );
        let usage = client.usage(name, &[(name, name), ("k.$", "a.b")]).await.unwrap();
        assert_eq!((&*usage[0].limit, &*usage[0].metric, usage[0].used), (name, name, 1));
        client.put_on_plan(name, name, "").await.unwrap();
        let request = v1::GetPolicyRequest { namespace: name.to_owned(), revision: 0 };
        let policy = client.policy.clone().get_policy(request).await.unwrap().into_inner();
        assert_eq!(policy.policy.unwrap().limits[0].name, name);
        let held = client.reserve("second").item(name, 1).with(name, name).with("k.$", "a.b");
        held.send().await.unwrap();
        client.settle("second").release_with(name, false).await.unwrap();
        let left = i64::try_from(n).unwrap();
        assert!(left >= 0);
        let over = client.reserve("third").item(name, 3).with(name, name).with("k.$", "a.b");
        over.send().await.denied(&[name]);
    }
}

async fn b55_keys_that_run_into_each_other(world: &mut World) {
    let both = limit("both", "units").per(&["a", "b"]).max(3);
    let client = world.rules(Rules::new().metric("units", &["a", "b"]).limits([both])).await;
    let keys = [
        ("x", "y/z"),
        ("x/y", "z"),
        ("x%2Fy", "z"),
        ("x", "y%2Fz"),
        ("y", "x"),
        ("x", "y"),
        ("x/", "y"),
        ("x", "/y"),
        ("x.", "y"),
        ("x", ".y"),
        ("x=", "y"),
        ("x lifetime", "y"),
    ];
    for (n, (a, b)) in keys.into_iter().enumerate() {
        let call = client.reserve(&format!("{n}")).item("units", 3);
        call.with("a", a).with("b", b).send().await.unwrap();
    }
    for (a, b) in keys {
        let usage = client.usage("units", &[("a", a), ("b", b)]).await.unwrap();
        assert_eq!(usage[0].held, 3, "{a} {b}");
        assert_eq!(usage[0].key, dims(&[("a", a), ("b", b)]));
    }
}

async fn b55_bad_names_are_refused_alike_everywhere(world: &mut World) {
    let client = world.cap(9).await;
    let long = "x".repeat(300);
    let nearly = "x".repeat(257);
    let wide = "ü".repeat(129);
    let bad = ["", &long, &nearly, &wide, "a\0b", "a\nb", "\u{7f}", "\u{85}", "\t"];
    for bad in bad {
        let of_user = ["dimensions[user]"];
        let call = client.reserve("r").item("units", 1).with("user", bad);
        call.send().await.invalid(&of_user);
        client.usage("units", &[("user", bad)]).await.invalid(&of_user);
        client.check(&[("units", 1)], &[("user", bad)]).await.invalid(&of_user);
        let call = client.reserve("r").item_of("units", 1, &[("user", bad)]);
        call.send().await.invalid(&["items[0].dimensions[user]"]);

        let call = client.take("r", 1).with(bad, "x");
        call.send().await.invalid(&["dimensions"]);
        client.usage("units", &[("user", "s"), (bad, "x")]).await.invalid(&["dimensions"]);

        client.take(bad, 1).send().await.invalid(&["reservation_id"]);
        client.commit(bad).await.invalid(&["reservation_id"]);
        client.release(bad).await.invalid(&["reservation_id"]);
        client.reservation(bad).await.invalid(&["reservation_id"]);

        let nowhere = client.clone().within(bad);
        nowhere.take("r", 1).send().await.invalid(&["namespace"]);
        nowhere.commit("r").await.invalid(&["namespace"]);
        nowhere.release("r").await.invalid(&["namespace"]);
        nowhere.reservation("r").await.invalid(&["namespace"]);
        nowhere.usage("units", &[("user", "s")]).await.invalid(&["namespace"]);
        nowhere.check(&[("units", 1)], &[("user", "s")]).await.invalid(&["namespace"]);
        nowhere.put_on_plan("user", "s", "").await.refused(Reason::InvalidField);

        client
            .reserve("r")
            .item(bad, 1)
            .with("user", "s")
            .send()
            .await
            .invalid(&["items[0].metric"]);
        client.usage(bad, &[("user", "s")]).await.invalid(&["metric"]);
        client.settle("r").resources(&[bad]).commit().await.invalid(&["resources[0]"]);
        let put = client.put_on_plan(bad, bad, "").await.refused(Reason::InvalidField);
        assert_eq!(put.fields(), ["subject.kind", "subject.id"]);
    }
    // All that is wrong is said at once.
    let mut call = client.reserve("").item("", 0).with("user", "");
    call.request.ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let wrong = call.send().await;
    let all = ["reservation_id", "dimensions[user]", "items[0].metric", "items[0].amount", "ttl"];
    wrong.invalid(&all);
    let seventeen = (0..17)
        .fold(client.reserve("r").item("units", 1), |call, n| call.with(&format!("d{n}"), "x"));
    seventeen.send().await.refused(Reason::InvalidField);
    client.take("good", 1).send().await.unwrap();
    assert_eq!(client.stands("cap").await, (0, 1, 8));
}

async fn b55_bad_names_in_a_policy(world: &mut World) {
    let client = world.cap(9).await;
    // Longer than any status may be: the fault is named all the same.
    let (long, longest) = ("x".repeat(300), "x".repeat(100_000));
    for bad in ["", "a\nb", &long, &longest] {
        let rules = [
            Rules::of_units([limit(bad, "units").per(&["user"]).max(1)]),
            Rules::new().metric(bad, &["user"]).limits([limit("l", bad).per(&["user"]).max(1)]),
            Rules::new().metric("m", &[bad]).limits([limit("l", "m").per(&[bad]).max(1)]),
            Rules::of_units([limit("l", "units").per(&["user"]).only(bad, &["x"]).max(1)]),
            Rules::of_units([limit("l", "units").per(&["user"]).by_plan(&[(bad, 1)])])
                .plans(&[bad], ""),
        ];
        for (n, rules) in rules.into_iter().enumerate() {
            let refused = client.apply(rules).await.refused(Reason::InvalidField);
            assert!(!refused.violations.is_empty(), "no field is named: {n}, {} bytes", bad.len());
        }
    }
    client.take("still in force", 9).send().await.unwrap();
}

async fn b56_a_missing_dimension_is_no_bucket(world: &mut World) {
    let client = world.cap(1).await;
    client.take("u1", 1).send().await.unwrap();
    for n in 0..3 {
        let call = client.reserve(&format!("without {n}")).item("units", 1);
        call.send().await.invalid(&["items[0].dimensions[user]"]);
        let call = client.reserve(&format!("other {n}")).item("units", 1).with("User", "s");
        call.send().await.invalid(&["items[0].dimensions[user]"]);
        let call = client.reserve(&format!("empty {n}")).item("units", 1).with("user", "");
        call.send().await.invalid(&["dimensions[user]"]);
        // One item has it, the other has not: neither is admitted.
        let call = client.reserve(&format!("half {n}")).item_of("units", 1, &[("user", "t")]);
        call.item("units", 1).send().await.invalid(&["items[1].dimensions[user]"]);
    }
    client.usage("units", &[]).await.invalid(&["dimensions[user]"]);
    let (_, counters) = world.records().await;
    assert_eq!(counters.len(), 1, "nobody is counted but who was named");
}

async fn b56_extra_dimensions_and_order(world: &mut World) {
    let both = limit("both", "units").per(&["user", "item"]).max(1);
    let client = world.rules(Rules::new().metric("units", &["item", "user"]).limits([both])).await;
    let call = client.reserve("a").item("units", 1).with("user", "u1").with("item", "i1");
    call.send().await.unwrap();
    let same = [
        client.reserve("b").with("item", "i1").with("user", "u1").with("color", "red"),
        client.reserve("c").with("color", "blue").with("item", "i1").with("user", "u1"),
    ];
    for call in same {
        call.item("units", 1).send().await.denied(&["both"]);
    }
    let split = client.reserve("d").with("item", "i1").item_of("units", 1, &[("user", "u1")]);
    split.send().await.denied(&["both"]);
    // Said twice alike is said once; said twice otherwise is a mistake.
    let twice = client.reserve("e").with("item", "i1").with("user", "u1");
    twice.clone().item_of("units", 1, &[("user", "u1")]).send().await.denied(&["both"]);
    twice.item_of("units", 1, &[("user", "u2")]).send().await.invalid(&["items[0].dimensions"]);
    let crossed = client.reserve("f").item("units", 1).with("user", "i1").with("item", "u1");
    crossed.send().await.unwrap();
}

async fn b56_an_optional_limit(world: &mut World) {
    let rules = Rules::of_units([
        limit("user", "units").per(&["user"]).max(5),
        limit("phone", "units").per(&["phone"]).optional().max(1),
    ]);
    let client = world.rules(rules).await;
    for n in 0..3 {
        let admitted = client.take(&format!("{n}"), 1).send().await.unwrap();
        assert_eq!(admitted.limits.len(), 1, "no phone, no phone limit, no bucket");
    }
    client.take("phone", 1).with("phone", "1").send().await.unwrap();
    let other = client.reserve("other").item("units", 1).with("user", "t").with("phone", "1");
    other.send().await.denied(&["phone"]);
    // Without optional, nobody may write a limit that a caller could escape.
    let escaped = Rules::of_units([limit("phone", "units").per(&["phone"]).max(1)]);
    client.apply(escaped).await.invalid(&["policy.limits[0]"]);
    let escaped = Rules::of_units([limit("l", "units").per(&["user"]).only("kind", &["x"]).max(1)]);
    client.apply(escaped).await.invalid(&["policy.limits[0]"]);
}

async fn b56_nothing_applies(world: &mut World) {
    let rules = Rules::new().metric("units", &["user", "kind"]).metric("free", &["user"]);
    let only = limit("games", "units").per(&["user"]).only("kind", &["game"]).max(1);
    let client = world.rules(rules.limits([only])).await;
    client.take("a", 1).with("kind", "game").send().await.unwrap();
    let refused = client.take("b", 1).with("kind", "book").send().await;
    assert_eq!(refused.refused(Reason::NoLimitApplies).metadata["item"], "0");
    client.take("c", 1).with("kind", "Game").send().await.refused(Reason::NoLimitApplies);
    let free = client.reserve("d").item("free", 1).with("user", "s");
    free.send().await.refused(Reason::NoLimitApplies);
    // One item that nothing governs takes the other with it.
    let call = client.reserve("e").item("free", 1).with("user", "t").with("kind", "game");
    let refused = call.item("units", 1).send().await.refused(Reason::NoLimitApplies);
    assert_eq!((&*refused.metadata["item"], &*refused.metadata["metric"]), ("0", "free"));
    let usage = client.usage("units", &[("user", "t"), ("kind", "game")]).await.unwrap();
    assert_eq!((usage[0].used, usage[0].held), (0, 0));
    let unknown = client.reserve("f").item("Units", 1).with("user", "s").send().await;
    unknown.refused(Reason::MetricNotFound);
    client.usage("Units", &[("user", "s")]).await.refused(Reason::MetricNotFound);
    let nowhere = client.clone().within("nowhere");
    nowhere.take("g", 1).send().await.refused(Reason::NamespaceNotFound);
}
