//! Listings: complete, in order, and of nothing else.

use quota_authority::domain::name::SubjectKey;
use quota_authority::domain::policy::PolicyRevision;
use quota_authority::domain::subject::Subject;
use quota_authority::store::{ChangeSet, SharedStore, SubjectFilter};

use crate::Place;
use crate::records::{at, policy, put, remove, subject};

fn one(namespace: &str, kind: &str, id: &str, plan: &str) -> Subject {
    let (kind, plan) = (kind.to_owned(), plan.to_owned());
    Subject { kind, plan, ..subject(namespace, id) }
}

fn filter(namespace: &str, kind: Option<&str>, plans: Option<&[&str]>) -> SubjectFilter {
    SubjectFilter {
        namespace: namespace.to_owned(),
        kind: kind.map(str::to_owned),
        plans: plans.map(|plans| plans.iter().map(ToString::to_string).collect()),
    }
}

async fn put_all(store: &SharedStore, subjects: Vec<Subject>) {
    let subjects = subjects.into_iter().map(|subject| put(None, 1, subject)).collect();
    store.write(&ChangeSet { subjects, ..ChangeSet::default() }).await.unwrap();
}

/// Kind and id of all that are meant, read in pages of that size.
async fn list(store: &SharedStore, filter: &SubjectFilter, size: usize) -> Vec<(String, String)> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.subjects_after(filter, after.as_ref(), size).await.unwrap();
        assert!(page.len() <= size);
        let short = page.len() < size;
        assert!(page.iter().all(|row| row.version == 1 && row.value.namespace == filter.namespace));
        after = page.last().map(|row| row.value.key()).or(after);
        found.extend(page.into_iter().map(|row| (row.value.kind, row.value.id)));
        if short {
            return found;
        }
    }
}

pub async fn subjects_are_listed_by_namespace_kind_and_plan(place: &Place) {
    let store = place.open().await;
    let kinds = ["a", "a/b", "a%", "a b", "ab", "a0"];
    let ids = ["1", "2", "x/y", "%"];
    let namespaces = ["x", "xy", "x/y", "x%"];
    let of = |namespace: &'static str| {
        kinds.into_iter().flat_map(move |kind| ids.map(|id| one(namespace, kind, id, "pro")))
    };
    put_all(&store, namespaces.into_iter().flat_map(of).collect()).await;
    for namespace in namespaces {
        for size in [1, 3, 1000] {
            let all = list(&store, &filter(namespace, None, None), size).await;
            assert_eq!(all.len(), kinds.len() * ids.len(), "{namespace}");
            let mut groups: Vec<&str> = all.iter().map(|(kind, _)| kind.as_str()).collect();
            groups.dedup();
            assert_eq!(groups.len(), kinds.len(), "each kind together: {groups:?}");
        }
        for kind in kinds {
            let found = list(&store, &filter(namespace, Some(kind), None), 3).await;
            let found: Vec<&str> =
                found.iter().filter(|(of, _)| of == kind).map(|(_, id)| id.as_str()).collect();
            assert_eq!(found, ["%", "1", "2", "x/y"], "{namespace} {kind}");
        }
    }
    let none = filter("z", None, None);
    assert_eq!(store.subjects_after(&none, None, 10).await.unwrap(), []);
    let none = filter("x", Some("a%2Fb"), None);
    assert_eq!(store.subjects_after(&none, None, 10).await.unwrap(), []);
    let beyond = SubjectKey::new("xy", "a", "1");
    let found = store.subjects_after(&filter("x", None, None), Some(&beyond), 10).await.unwrap();
    assert_eq!(found, []);
}

pub async fn subjects_of_a_plan_are_found_among_many(place: &Place) {
    let store = place.open().await;
    let plan = |n: i32| match n % 100 {
        0 => "pro",
        50 => "",
        _ => "free",
    };
    let many = (0..900).map(|n| one("n", "user", &format!("{n:03}"), plan(n))).collect();
    put_all(&store, many).await;
    put_all(&store, vec![one("n", "team", "t", "pro")]).await;
    let ids = async |kind: Option<&str>, plans: &[&str], size: usize| {
        let found = list(&store, &filter("n", kind, Some(plans)), size).await;
        found.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    let pro = ["000", "100", "200", "300", "400", "500", "600", "700", "800"];
    assert_eq!(ids(Some("user"), &["pro"], 2).await, pro);
    assert_eq!(ids(None, &["pro"], 1000).await[1..], pro);
    assert_eq!(ids(Some("user"), &["pro", ""], 4).await.len(), 18);
    assert_eq!(ids(Some("user"), &[""], 4).await[0], "050");
    assert_eq!(ids(None, &["free"], 1000).await.len(), 882);
    assert!(ids(None, &["gold"], 5).await.is_empty());
    assert!(ids(None, &[], 5).await.is_empty());
}

pub async fn a_listing_goes_on_where_it_was_whatever_changes(place: &Place) {
    let store = place.open().await;
    let of = |ids: &[&str]| ids.iter().map(|id| subject("n", id)).collect::<Vec<_>>();
    put_all(&store, of(&["b", "d", "f", "h"])).await;
    let all = filter("n", None, None);
    let page = store.subjects_after(&all, None, 2).await.unwrap();
    let last = page.last().unwrap().value.key();
    // What is behind does not come again, what is ahead is not left out, also
    // where the last one itself has gone.
    put_all(&store, of(&["a", "e"])).await;
    let removed_subjects = vec![remove("d", 1), remove("h", 1)];
    store.write(&ChangeSet { removed_subjects, ..ChangeSet::default() }).await.unwrap();
    let page = store.subjects_after(&all, Some(&last), 5).await.unwrap();
    let ids: Vec<&str> = page.iter().map(|row| row.value.id.as_str()).collect();
    assert_eq!(ids, ["e", "f"]);
}

pub async fn revisions_are_listed_newest_first(place: &Place) {
    let store = place.open().await;
    assert_eq!(store.revisions_before("n", None, 5).await.unwrap(), []);
    let made = |namespace: &str, n: i64| PolicyRevision {
        create_time: at(1_700_000_000_000 + n),
        principal: format!("number {n}"),
        ..policy(namespace, n)
    };
    for n in 1..=23 {
        let policies = vec![made("n", n), made("n/1", n)];
        store.write(&ChangeSet { policies, ..ChangeSet::default() }).await.unwrap();
    }
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = store.revisions_before("n", before, 5).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.revision);
        found.extend(page);
    }
    let expected: Vec<_> = (1..=23).rev().map(|n| made("n", n).head()).collect();
    assert_eq!(found, expected);
    assert_eq!(store.revisions_before("n", None, 1000).await.unwrap(), expected);
    assert_eq!(store.revisions_before("n", Some(99), 1).await.unwrap(), expected[..1]);
    assert_eq!(store.revisions_before("n", Some(1), 5).await.unwrap(), []);
    assert_eq!(store.revisions_before("1", None, 5).await.unwrap(), []);
}
