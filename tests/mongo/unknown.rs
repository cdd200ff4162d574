//! Outcomes that are unknown: the commit is applied and its reply lost, or it
//! is not applied and nobody can tell. Never twice, never a refusal.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use quota_authority::engine::Error;

use crate::support::ReplicaSet;
use crate::within::{commit, engine, reserve, totals};

/// Every commit of a transaction goes wrong so, `times` times.
fn fail_commits(times: i32, how: Document) -> Document {
    let mut data = doc! { "failCommands": ["commitTransaction"], "appName": "quotad" };
    data.extend(how);
    doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": data }
}

/// The commit is applied, but the reply says that it may not last.
fn applied_but_unknown() -> Document {
    doc! { "writeConcernError": { "code": 91, "errmsg": "Replication is being shut down" } }
}

/// The connection breaks before the commit gets through.
fn lost() -> Document {
    doc! { "closeConnection": true }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_is_lost_is_applied_once() {
    let set = ReplicaSet::start(1, &[]).await;
    let (store, engine) = engine(&set.uri_for("unknown"), 1000).await;
    let mut made = 0;
    for how in [applied_but_unknown(), lost()] {
        // Once: the driver sends it again. Five times: we do. Two hundred:
        // nobody gets it through before we go and look.
        for times in [1, 5, 200] {
            set.configure_fail_point(fail_commits(times, how.clone())).await;
            let calls = (0..20).map(|n| engine.submit(reserve(&format!("{made}-{n}")), None));
            let outcomes = join_all(calls).await;
            set.fail_point_off("failCommand").await;
            for (n, outcome) in outcomes.into_iter().enumerate() {
                match outcome {
                    Ok(answer) => assert!(!answer.replayed, "it is the first answer"),
                    Err(Error::OutcomeUnknown | Error::Unavailable(_)) => {}
                    Err(other) => panic!("{other}"),
                }
                // Whatever was said, the same id sent again tells.
                let again = engine.submit(reserve(&format!("{made}-{n}")), None).await;
                again.expect("the same id is always safe to send again");
            }
            made += 20;
            assert_eq!(totals(&store).await, (0, made));
        }
    }
    let commits = (0..20).map(|n| engine.submit(commit(&format!("0-{n}")), None));
    set.configure_fail_point(fail_commits(5, applied_but_unknown())).await;
    for outcome in join_all(commits).await {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    assert_eq!(totals(&store).await, (20, made - 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_fail_write_nothing_and_refuse_nobody() {
    let set = ReplicaSet::start(1, &[]).await;
    let (store, engine) = engine(&set.uri_for("statements"), 1000).await;
    engine.submit(reserve("first"), None).await.unwrap();
    for (command, how) in [
        ("update", doc! { "closeConnection": true }),
        ("insert", doc! { "closeConnection": true }),
        ("update", doc! { "errorCode": 112, "errorLabels": ["TransientTransactionError"] }),
        ("insert", doc! { "errorCode": 251, "errorLabels": ["TransientTransactionError"] }),
        ("find", doc! { "closeConnection": true }),
    ] {
        let mut data = doc! { "failCommands": [command], "appName": "quotad" };
        data.extend(how.clone());
        let mode = doc! { "times": 3 };
        let point = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        set.configure_fail_point(point).await;
        let id = format!("{command} {how}");
        // A caller who retries as he is told gets through.
        let mut tries = 0;
        loop {
            match engine.submit(reserve(&id), None).await {
                Ok(_) => break,
                Err(Error::Unavailable(_) | Error::OutcomeUnknown) => tries += 1,
                Err(other) => panic!("{other}"),
            }
            assert!(tries < 10, "{id}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        set.fail_point_off("failCommand").await;
    }
    assert_eq!(totals(&store).await, (0, 6));
}
