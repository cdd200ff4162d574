//! Servers that are killed or paused in the middle of a transaction.

use std::time::Duration;

use futures_util::future::join_all;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::calls::{
    Call, assert_counters_equal_reservations, assert_exactly_max_admitted, clients,
    reserve_with_retries, servers,
};
use crate::support::{self, Server, eventually};

/// Nobody may wait longer than this for an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// 200 callers over three servers of which the last stops in its first
/// transaction: one caller brings it there, the others come once it has
/// `stopped`, each starting at another server.
async fn two_hundred_calls(
    servers: &mut [Server],
    user: &str,
    mut stopped: impl FnMut(&mut Server) -> bool,
) -> Vec<Call> {
    let clients = clients(servers).await;
    let call = |n: usize| {
        let (clients, user) = (clients.clone(), user.to_owned());
        tokio::spawn(async move {
            reserve_with_retries(clients, n, &user, &format!("{user}-{n}")).await
        })
    };
    let mut calls = vec![call(2)];
    eventually(LONGEST_WAIT, "the server to stop on its way", async || {
        stopped(&mut servers[2]).then_some(())
    })
    .await;
    calls.extend((0..200).filter(|n| *n != 2).map(call));
    join_all(calls).await.into_iter().map(|call| call.unwrap()).collect()
}

/// Whether the process stands still.
fn paused(server: &Server) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
    status.is_ok_and(|status| status.contains("State:\tT"))
}

fn assert_nobody_waited_long(calls: &[Call]) {
    let longest = calls.iter().map(|call| call.took).max().unwrap_or_default();
    assert!(longest < LONGEST_WAIT, "somebody waited {longest:?}");
}

/// A server dies between the write of the counters and the commit, so that its
/// transaction stays open with the counter locked; 20 times.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_between_counter_and_commit_holds_nobody_up() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let mut servers = servers(&uri, 2).await;
    for round in 1..=20 {
        let env = [("QUOTAD_FAIL_POINT", "before_commit@1:abort")];
        servers.push(Server::start(&["--store", &uri], &env).await);
        let user = format!("u{round}");
        let calls = two_hundred_calls(&mut servers, &user, |s| s.ended().is_some()).await;
        servers.pop();
        assert_exactly_max_admitted(&calls);
        assert_nobody_waited_long(&calls);
    }
    assert_counters_equal_reservations(&uri).await;
}

/// A server stands still at the same place. The others end its transaction;
/// when it goes on, it must not write what it had planned.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_holds_nobody_up_and_writes_nothing_stale_afterwards() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let mut servers = servers(&uri, 2).await;
    for round in 1..=3 {
        let env = [("QUOTAD_FAIL_POINT", "before_commit@1:pause")];
        servers.push(Server::start(&["--store", &uri], &env).await);
        let user = format!("u{round}");
        let calls = two_hundred_calls(&mut servers, &user, |s| paused(s)).await;
        assert_exactly_max_admitted(&calls);
        assert_nobody_waited_long(&calls);
        let mut paused = servers.pop().expect("the third server");
        paused.sigcont();
        // Every id once more, from the one that was paused: nothing new.
        let clients = clients(std::slice::from_ref(&paused)).await;
        let order = std::iter::once(2).chain((0..200).filter(|n| *n != 2));
        let again = join_all(order.map(|n| {
            let (clients, id) = (clients.clone(), format!("{user}-{n}"));
            let user = user.clone();
            tokio::spawn(async move { reserve_with_retries(clients, 0, &user, &id).await })
        }));
        let again: Vec<_> = again.await.into_iter().map(|call| call.unwrap()).collect();
        assert_exactly_max_admitted(&again);
        for (before, after) in calls.iter().zip(&again) {
            assert_eq!(before.outcome.is_ok(), after.outcome.is_ok(), "an answer has changed");
        }
        assert_counters_equal_reservations(&uri).await;
    }
}

/// `kill -9` at any moment, with callers under way.
#[tokio::test(flavor = "multi_thread")]
async fn killing_a_server_under_its_callers_loses_and_doubles_nothing() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let mut servers = servers(&uri, 2).await;
    for round in 0..8 {
        servers.push(Server::start(&["--store", &uri], &[]).await);
        let user = format!("u{round}");
        let clients = clients(&servers).await;
        let calls = (0..200).map(|n| {
            let (clients, user) = (clients.clone(), user.clone());
            tokio::spawn(async move {
                reserve_with_retries(clients, n, &user, &format!("{user}-{n}")).await
            })
        });
        let calls: Vec<_> = calls.collect();
        // Some calls have been answered, most have not: another moment each
        // round.
        eventually(Duration::from_secs(10), "some answers", async || {
            (calls.iter().filter(|call| call.is_finished()).count() > round * 5).then_some(())
        })
        .await;
        servers.pop().expect("the third server").kill9();
        let calls: Vec<_> = join_all(calls).await.into_iter().map(|call| call.unwrap()).collect();
        assert_exactly_max_admitted(&calls);
        assert_nobody_waited_long(&calls);
    }
    assert_counters_equal_reservations(&uri).await;
}

/// SIGTERM lets calls under way finish: nobody who is being served is cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_server_answers_what_it_has_taken_and_exits_in_order() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let mut servers = servers(&uri, 2).await;
    let clients = clients(&servers).await;
    // Somebody who watches its health hears of it, and does not hold it up.
    let mut health = HealthClient::new(servers[0].channel().await);
    let watched = health.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watched = watched.into_inner();
    let serving = watched.message().await.unwrap().unwrap().status;
    assert_eq!(serving, ServingStatus::Serving as i32);
    let calls = (0..100).map(|n| {
        let clients = clients.clone();
        tokio::spawn(async move { reserve_with_retries(clients, n, "u", &format!("u-{n}")).await })
    });
    let calls: Vec<_> = calls.collect();
    servers[0].sigterm();
    let calls: Vec<_> = join_all(calls).await.into_iter().map(|call| call.unwrap()).collect();
    assert_exactly_max_admitted(&calls);
    let gone = watched.message().await.unwrap().unwrap().status;
    assert_eq!(gone, ServingStatus::NotServing as i32);
    let status = servers[0].wait_exit(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}: {}", servers[0].log());
    assert!(servers[0].log().contains("drained"));
    assert_counters_equal_reservations(&uri).await;
}
