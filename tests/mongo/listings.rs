//! How MongoDB finds what listings ask for: along an index, in its order.

use std::ops::ControlFlow;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use quota_authority::domain::counter::CounterId;
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::time::Time;
use quota_authority::domain::window::Window;
use quota_authority::store::{
    CounterFilter, CounterPlace, ReservationFilter, SharedStore, Windows,
};

use crate::support;
use crate::within::{commit, engine, reserve};

/// The stages of the winning plan of a query, and how many keys and documents
/// were looked at.
async fn explain(database: &mongodb::Database, find: &Document) -> (Vec<String>, i64, i64) {
    let explain = doc! { "explain": find.clone(), "verbosity": "executionStats" };
    let told = database.run_command(explain).await.unwrap();
    let plan = told.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap();
    let mut stages = Vec::new();
    gather(&Bson::Document(plan.clone()), &mut stages);
    let stats = told.get_document("executionStats").unwrap();
    let number = |name: &str| i64::from(stats.get_i32(name).unwrap());
    (stages, number("totalKeysExamined"), number("totalDocsExamined"))
}

fn gather(plan: &Bson, stages: &mut Vec<String>) {
    match plan {
        Bson::Document(stage) => {
            stages.extend(stage.get_str("stage").ok().map(str::to_owned));
            stage.values().for_each(|inner| gather(inner, stages));
        }
        Bson::Array(inner) => inner.iter().for_each(|inner| gather(inner, stages)),
        _ => {}
    }
}

/// What the store has sent to these collections since profiling began.
async fn sent(database: &mongodb::Database) -> Vec<Document> {
    use futures_util::TryStreamExt as _;
    let profile = database.collection::<Document>("system.profile");
    let found = profile.find(doc! { "op": "query" }).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let command = |entry: &Document| entry.get_document("command").unwrap().clone();
    let ours = |find: &Document| {
        matches!(find.get_str("find"), Ok("reservations" | "counters"))
            && find.get_document("filter").is_ok_and(|filter| {
                !filter.get_document("_id").is_ok_and(|ids| ids.contains_key("$in"))
            })
    };
    found.iter().map(command).filter(ours).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_listing_goes_along_an_index_in_its_order() {
    let mongo = support::mongo();
    let name = mongo.fresh_database();
    let (store, engine) = engine(&mongo.uri_for(&name), 1_000_000).await;
    for n in 0..60 {
        engine.submit(reserve(&format!("{n:02}")), None).await.unwrap();
        if n >= 20 {
            engine.submit(commit(&format!("{n:02}")), None).await.unwrap();
        }
    }
    let found = store.reservations_after(None, 1).await.unwrap();
    let counter = Arc::clone(&found[0].charges[0].counter);
    let client = mongo.client().await;
    let database = client.database(&name);
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    ask(&store, &counter).await;
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let sent = sent(&database).await;
    assert!(sent.len() >= 20, "{}", sent.len());
    for mut find in sent {
        for internal in ["lsid", "$clusterTime", "$db", "readConcern", "cursor"] {
            find.remove(internal);
        }
        let (stages, keys, documents) = explain(&database, &find).await;
        assert!(stages.iter().any(|stage| stage == "IXSCAN"), "{find}: {stages:?}");
        let filter = find.get_document("filter").unwrap();
        let live = filter.contains_key("state");
        // Live holds are asked for in small parts, which may be sorted.
        let slow = if live { &["COLLSCAN"][..] } else { &["COLLSCAN", "SORT"] };
        assert!(!stages.iter().any(|stage| slow.contains(&stage.as_str())), "{find}: {stages:?}");
        let limit = find.get_i64("limit").unwrap_or(60);
        let most = if live { 61 } else { limit };
        assert!(documents <= most && keys <= most + 12, "{find}: {keys} keys, {documents} docs");
    }
}

/// Every listing, from its beginning and from places within.
async fn ask(store: &SharedStore, counter: &Arc<CounterId>) {
    let first = store.reservations_after(None, 1).await.unwrap().remove(0);
    let namespace = first.key.namespace().into_owned();
    let (now, key) = (first.create_time, ReservationKey::new(&namespace, "30"));
    let places = [None, Some((now, &key)), Some((store.now(), &key))];
    let series = counter.series().to_owned();
    for series in [vec![], vec![series.clone()], vec![series, "other".to_owned()]] {
        for (from, until) in [(None, None), (Some(now), None), (Some(now), Some(Time::MAX))] {
            let filter = ReservationFilter {
                namespace: namespace.clone(),
                series: series.clone(),
                created_from: from,
                created_until: until,
            };
            for place in places {
                store.reservations_before(&filter, place, 10).await.unwrap();
            }
        }
    }
    for windows in [Windows::Endless, Windows::EndingAt(now), Windows::EndingAfter(now)] {
        let limit = counter.limit.clone();
        let (namespace, generation) = (namespace.clone(), counter.generation);
        let filter = CounterFilter { namespace, limit, generation, windows };
        let place = |end| CounterPlace { end, text: counter.text.clone() };
        for place in [None, Some(place(None)), Some(place(Some(now)))] {
            store.counters_of(&filter, place.as_ref(), 10).await.unwrap();
        }
    }
    let other = CounterId { window: Window::Lifetime, ..CounterId::clone(counter) };
    for counters in [vec![Arc::clone(counter)], vec![Arc::clone(counter), Arc::new(other)]] {
        for held_after in [None, Some(now)] {
            let mut visit = |_| ControlFlow::Continue(());
            store.charged(&counters, held_after, &mut visit).await.unwrap();
        }
    }
}
