//! Listings, page by page.

use std::collections::BTreeSet;

use quota_authority::api::Reason;

use crate::world::{Client, Denied, Refused, Rules, World, cases, limit, v1};

cases! {
    every_store: [subjects_page_by_page, subjects_by_plan, revisions_page_by_page],
}

fn plans() -> Rules {
    let rule = limit("cap", "units").per(&["user"]).by_plan(&[("free", 2), ("pro", 9)]);
    Rules::of_units([rule]).plans(&["free", "pro"], "free")
}

struct Asked<'a> {
    kind: &'a str,
    plan: &'a str,
    size: i32,
    token: &'a str,
}

const ALL: Asked<'_> = Asked { kind: "", plan: "", size: 0, token: "" };

async fn subjects(client: &Client, asked: Asked<'_>) -> Result<(Vec<String>, String), Refused> {
    let request = v1::ListSubjectsRequest {
        namespace: client.namespace.clone(),
        kind: asked.kind.to_owned(),
        plan: asked.plan.to_owned(),
        page_size: asked.size,
        page_token: asked.token.to_owned(),
    };
    let answer = client.policy.clone().list_subjects(request).await?.into_inner();
    assert!(answer.subjects.iter().all(|subject| !subject.etag.is_empty()));
    let name = |subject: &v1::Subject| format!("{}/{}", subject.kind, subject.id);
    Ok((answer.subjects.iter().map(name).collect(), answer.next_page_token))
}

async fn revisions(client: &Client, size: i32, token: &str) -> Result<(Vec<i64>, String), Refused> {
    let request = v1::ListPolicyRevisionsRequest {
        namespace: client.namespace.clone(),
        page_size: size,
        page_token: token.to_owned(),
    };
    let answer = client.policy.clone().list_policy_revisions(request).await?.into_inner();
    for revision in &answer.revisions {
        assert!(revision.create_time.is_some() && !revision.principal.is_empty(), "{revision:?}");
    }
    let numbers = answer.revisions.iter().map(|revision| revision.revision).collect();
    Ok((numbers, answer.next_page_token))
}

async fn subjects_page_by_page(world: &mut World) {
    let client = world.caller();
    subjects(&client, ALL).await.refused(Reason::NamespaceNotFound);
    client.apply(plans()).await.unwrap();
    assert_eq!(subjects(&client, ALL).await.unwrap(), (vec![], String::new()));
    for n in 0..12 {
        client.put_on_plan("user", &format!("{n:02}"), "pro").await.unwrap();
    }
    for kind in ["use", "user/", "users"] {
        client.put_on_plan(kind, "x", "pro").await.unwrap();
    }
    let users = |size, token| Asked { kind: "user", plan: "", size, token };
    let (first, token) = subjects(&client, users(5, "")).await.unwrap();
    assert_eq!(first, ["user/00", "user/01", "user/02", "user/03", "user/04"]);
    // What happens between two pages moves nobody to the wrong one.
    client.delete_subject("user", "04", "").await.unwrap();
    client.delete_subject("user", "10", "").await.unwrap();
    client.put_on_plan("user", "000", "pro").await.unwrap();
    let (second, last) = subjects(&client, users(1000, &token)).await.unwrap();
    assert_eq!(second, ["05", "06", "07", "08", "09", "11"].map(|id| format!("user/{id}")));
    assert_eq!(last, "");
    let (exact, token) = subjects(&client, users(11, "")).await.unwrap();
    assert_eq!((exact.len(), token.as_str()), (11, ""), "a full page may be the last");
    let (all, _) = subjects(&client, ALL).await.unwrap();
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (14, 14));

    let (_, token) = subjects(&client, users(2, "")).await.unwrap();
    let wrong = |asked| subjects(&client, asked);
    wrong(Asked { token: &token, ..ALL }).await.invalid(&["page_token"]);
    let on_plan = Asked { plan: "pro", ..users(0, &token) };
    wrong(on_plan).await.invalid(&["page_token"]);
    let mangled: String = token.chars().rev().collect();
    wrong(users(0, &mangled)).await.invalid(&["page_token"]);
    let (_, of_revisions) = revisions(&client, 1, "").await.unwrap();
    assert_eq!(of_revisions, "");
    wrong(users(-1, "nonsense")).await.invalid(&["page_size", "page_token"]);
    wrong(users(1001, &token)).await.invalid(&["page_size"]);
    let elsewhere = client.clone().within("elsewhere");
    elsewhere.apply(plans()).await.unwrap();
    subjects(&elsewhere, users(0, &token)).await.invalid(&["page_token"]);
    assert_eq!(subjects(&elsewhere, ALL).await.unwrap().0, Vec::<String>::new());
    client.take("one", 1).send().await.unwrap();
}

async fn subjects_by_plan(world: &mut World) {
    let client = world.rules(plans()).await;
    for (id, plan) in [("a", "pro"), ("b", "free"), ("c", ""), ("d", "pro")] {
        client.put_on_plan("user", id, plan).await.unwrap();
    }
    client.put_on_plan("team", "t", "pro").await.unwrap();
    let on = async |kind: &'static str, plan: &'static str| {
        subjects(&client, Asked { kind, plan, ..ALL }).await.unwrap().0
    };
    assert_eq!(on("", "pro").await, ["team/t", "user/a", "user/d"]);
    assert_eq!(on("user", "pro").await, ["user/a", "user/d"]);
    assert_eq!(on("", "free").await, ["user/b", "user/c"], "one without a plan is on the default");
    assert!(on("", "gold").await.is_empty());
    let (first, token) = subjects(&client, Asked { plan: "pro", size: 2, ..ALL }).await.unwrap();
    assert_eq!(first, ["team/t", "user/a"]);
    let rest = subjects(&client, Asked { plan: "pro", token: &token, ..ALL }).await.unwrap();
    assert_eq!(rest, (vec!["user/d".to_owned()], String::new()));
    // Another default, other subjects.
    client.apply(plans().plans(&["free", "pro"], "pro")).await.unwrap();
    assert_eq!(on("user", "pro").await, ["user/a", "user/c", "user/d"]);
    assert_eq!(on("user", "free").await, ["user/b"]);
    client.take("three", 3).send().await.unwrap();
}

async fn revisions_page_by_page(world: &mut World) {
    let client = world.caller();
    revisions(&client, 0, "").await.refused(Reason::NamespaceNotFound);
    for max in 1..=12 {
        let cap = limit("cap", "units").per(&["user"]).max(max);
        client.apply(Rules::of_units([cap])).await.unwrap();
    }
    let (first, token) = revisions(&client, 5, "").await.unwrap();
    assert_eq!(first, [12, 11, 10, 9, 8]);
    client.apply(plans()).await.unwrap();
    let (second, token) = revisions(&client, 5, &token).await.unwrap();
    assert_eq!(second, [7, 6, 5, 4, 3]);
    let (third, last) = revisions(&client, 5, &token).await.unwrap();
    assert_eq!((third.as_slice(), last.as_str()), ([2, 1].as_slice(), ""));
    assert_eq!(revisions(&client, 0, "").await.unwrap().0.len(), 13);
    revisions(&client, 5000, "x").await.invalid(&["page_size", "page_token"]);
    let elsewhere = client.clone().within("elsewhere");
    revisions(&elsewhere, 5, &token).await.invalid(&["page_token"]);
    client.take("one", 1).send().await.unwrap();
}
