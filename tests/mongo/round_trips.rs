//! What a warm call asks of MongoDB, counted by MongoDB.

use std::collections::BTreeMap;
use std::time::Instant;

use bson::{Document, doc};

use crate::support::ReplicaSet;
use crate::within::{commit, engine, reserve};

const CALLS: i64 = 200;

/// How often each command was run.
async fn counts(set: &ReplicaSet) -> BTreeMap<&'static str, i64> {
    let client = set.client().await;
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    let total = |name: &'static str| {
        let count = commands.get_document(name).and_then(|of: &Document| of.get_i64("total"));
        (name, count.unwrap_or(0))
    };
    ["find", "aggregate", "insert", "update", "commitTransaction", "abortTransaction"]
        .map(total)
        .into()
}

/// One at a time, warm: a Reserve is an insert, an update and a commit, a
/// Commit two updates and a commit. Nothing is read. What the heartbeat and
/// the confirming of copies ask goes by time, not by calls, and is allowed for.
#[tokio::test(flavor = "multi_thread")]
async fn one_reserve_at_a_time_costs_three_round_trips() {
    let set = ReplicaSet::start(1, &[]).await;
    let (_store, engine) = engine(&set.uri_for("trips"), 1_000_000).await;
    engine.submit(reserve("warm"), None).await.unwrap();
    for (name, call) in [("reserve", reserve as fn(&str) -> _), ("commit", commit)] {
        let (before, started) = (counts(&set).await, Instant::now());
        for n in 0..CALLS {
            engine.submit(call(&format!("r{n}")), None).await.unwrap();
        }
        let after = counts(&set).await;
        let beats = i64::try_from(started.elapsed().as_millis() / 400).unwrap() + 2;
        let delta = |name: &str| after[name] - before[name];
        let per_call: i64 = after.keys().map(|name| delta(name)).sum();
        assert_eq!(delta("commitTransaction"), CALLS, "{name}: one transaction each");
        assert_eq!(delta("abortTransaction"), 0, "{name}");
        assert!(delta("find") <= 4 * beats, "{name}: reads {} in {beats} beats", delta("find"));
        assert!(
            per_call <= 3 * CALLS + 5 * beats,
            "{name}: {per_call} commands for {CALLS} calls, {beats} beats"
        );
    }
}
