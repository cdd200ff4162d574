//! What a hand does in a Mongo shell, found and mended.

use std::sync::Arc;

use bson::{Bson, Document, doc};
use mongodb::Collection;
use quota_authority::domain::recount::Kind;
use quota_authority::engine::{AuditQuery, Engine, Finding};
use tokio::sync::mpsc;

use crate::support::{self, SharedMongo};
use crate::within::{NAMESPACE, commit, engine, reserve};

/// What an audit finds; a repair where that is wanted.
async fn audit(engine: &Arc<Engine>, repair: bool) -> Vec<Finding> {
    let repair = repair.then(|| ("test".to_owned(), "a test".to_owned()));
    let query =
        AuditQuery { namespace: NAMESPACE.to_owned(), limit: None, repair, progress: false };
    let (told, mut steps) = mpsc::channel(16);
    tokio::spawn(Arc::clone(engine).audit(query, told));
    let mut found = Vec::new();
    while let Some(step) = steps.recv().await {
        found.extend(step.expect("an audit that ends").finding);
    }
    found
}

fn told(found: &[Finding]) -> Vec<(Kind, i64, i64)> {
    let one = |found: &Finding| {
        (found.difference.kind, found.difference.stored, found.difference.expected)
    };
    found.iter().map(one).collect()
}

/// One committed, one held; and its counters.
async fn at_work(mongo: &SharedMongo) -> (Arc<Engine>, Collection<Document>) {
    let database = mongo.fresh_database();
    let (_store, engine) = engine(&mongo.uri_for(&database), 100).await;
    for id in ["a", "b"] {
        engine.submit(reserve(id), None).await.unwrap();
    }
    engine.submit(commit("a"), None).await.unwrap();
    (engine, mongo.client().await.database(&database).collection("counters"))
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_numbers_typed_in_a_shell() {
    let (engine, counters) = at_work(support::mongo()).await;
    assert!(audit(&engine, false).await.is_empty());
    // A shell writes 37 as an integer of 32 bits.
    let typed = doc! { "$set": { "used": Bson::Int32(37) } };
    counters.update_one(doc! {}, typed).await.unwrap();
    assert_eq!(told(&audit(&engine, false).await), [(Kind::Used, 37, 1)]);
    assert_eq!(told(&audit(&engine, true).await), [(Kind::Used, 37, 1)]);
    assert!(audit(&engine, false).await.is_empty());
    engine.submit(commit("b"), None).await.unwrap();
    assert!(audit(&engine, false).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_mends_a_counter_below_nothing() {
    let (engine, counters) = at_work(support::mongo()).await;
    for below in [Bson::Int32(-1), Bson::Int64(-9)] {
        counters.update_one(doc! {}, doc! { "$set": { "used": below.clone() } }).await.unwrap();
        let units = below.as_i32().map_or(-9, i64::from);
        assert_eq!(told(&audit(&engine, false).await), [(Kind::Used, units, 1)]);
        assert_eq!(told(&audit(&engine, true).await), [(Kind::Used, units, 1)]);
        assert!(audit(&engine, false).await.is_empty());
    }
    engine.submit(commit("b"), None).await.unwrap();
    assert!(audit(&engine, false).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_finds_a_counter_that_was_deleted() {
    let (engine, counters) = at_work(support::mongo()).await;
    let before = counters.find_one(doc! {}).await.unwrap().unwrap();
    counters.delete_one(doc! {}).await.unwrap();
    assert_eq!(told(&audit(&engine, false).await), [(Kind::MissingCounter, 0, 2)]);
    assert_eq!(told(&audit(&engine, true).await), [(Kind::MissingCounter, 0, 2)]);
    assert!(audit(&engine, false).await.is_empty());
    let after = counters.find_one(doc! {}).await.unwrap().unwrap();
    for field in ["_id", "used", "holds", "limit", "key", "token"] {
        assert_eq!(after.get(field), before.get(field), "{field}");
    }
    engine.submit(commit("b"), None).await.unwrap();
    engine.submit(reserve("c"), None).await.unwrap();
    assert!(audit(&engine, false).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_tells_of_a_counter_that_cannot_be_read_and_goes_on() {
    let (engine, counters) = at_work(support::mongo()).await;
    // Another one before it and one behind, whose numbers are off.
    let whole = counters.find_one(doc! {}).await.unwrap().unwrap();
    let id = whole.get_str("_id").unwrap().to_owned();
    counters.update_one(doc! {}, doc! { "$set": { "used": "many" } }).await.unwrap();
    let found = audit(&engine, false).await;
    assert_eq!(told(&found), [(Kind::Damaged, 0, 0)]);
    assert_eq!(found[0].counter.counter.text, id);
    assert_eq!(found[0].counter.counter.limit, whole.get_str("limit").unwrap());
    assert_eq!(told(&audit(&engine, true).await), [(Kind::Damaged, 0, 0)], "a person must look");
    counters.replace_one(doc! {}, whole).await.unwrap();
    assert!(audit(&engine, false).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_goes_on_behind_a_reservation_that_cannot_be_read() {
    let mongo = support::mongo();
    let database = mongo.fresh_database();
    let (_store, engine) = engine(&mongo.uri_for(&database), 100).await;
    engine.submit(reserve("a"), None).await.unwrap();
    let reservations: Collection<Document> =
        mongo.client().await.database(&database).collection("reservations");
    reservations.update_one(doc! {}, doc! { "$set": { "state": "weird" } }).await.unwrap();
    let found = audit(&engine, false).await;
    assert!(!found.is_empty(), "it is told, and the audit ends");
    assert!(found.iter().all(|found| found.difference.kind == Kind::Damaged), "{found:#?}");
    assert_eq!(found[0].counter.counter.limit, "l");
    assert_eq!(found[0].counter.counter.key["user"], "u");
}
