//! The embedded store under `kill -9`: what was acknowledged is there when the
//! server comes back, and nothing is half there.

mod support;

use std::time::Duration;

use futures_util::future::join_all;
use quota_authority::domain::event::{Event, EventKind};
use quota_authority::domain::invariants;
use quota_authority::domain::time::Span;
use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use quota_authority::store::clock::Clock;
use quota_authority::store::embedded::EmbeddedStore;
use quota_authority::store::{ChangeSet, Retention, Store as _, TrailFilter};
use support::{Server, eventually};

const MAX: i64 = 100_000;

fn policy() -> v1::Policy {
    v1::Policy {
        namespace: "n".to_owned(),
        metrics: [("m".to_owned(), v1::Metric::default())].into(),
        limits: vec![v1::Limit {
            name: "l".to_owned(),
            metric: "m".to_owned(),
            window: Some(v1::WindowRule {
                kind: Some(v1::window_rule::Kind::Lifetime(v1::LifetimeWindow {})),
            }),
            max: Some(v1::Max { kind: Some(v1::max::Kind::Amount(MAX)) }),
            ..v1::Limit::default()
        }],
        ..v1::Policy::default()
    }
}

fn reserve(id: String) -> v1::ReserveRequest {
    v1::ReserveRequest {
        namespace: "n".to_owned(),
        reservation_id: id,
        items: vec![v1::Item { metric: "m".to_owned(), ..v1::Item::default() }],
        commit: true,
        ..v1::ReserveRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_9_and_nothing_is_half_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..5 {
        let mut server = Server::start(&["--store", &store], &[]).await;
        let channel = server.channel().await;
        if round == 0 {
            let request = v1::ApplyPolicyRequest { policy: Some(policy()), ..Default::default() };
            PolicyServiceClient::new(channel.clone()).apply_policy(request).await.unwrap();
        }
        let callers = (0..16).map(|caller| {
            let mut client = QuotaServiceClient::new(channel.clone());
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let id = format!("{round}-{caller}-{n}");
                    match client.reserve(reserve(id.clone())).await {
                        Ok(_) => acknowledged.push(id),
                        Err(_) => break,
                    }
                }
                acknowledged
            })
        });
        let callers: Vec<_> = callers.collect();
        let mut watcher = QuotaServiceClient::new(channel);
        let goal = i64::try_from(acknowledged.len()).unwrap() + 200;
        eventually(Duration::from_mins(1), "some use", async || {
            let request = v1::GetUsageRequest {
                namespace: "n".to_owned(),
                metric: "m".to_owned(),
                ..v1::GetUsageRequest::default()
            };
            let usage = watcher.get_usage(request).await.ok()?.into_inner();
            (usage.limits[0].used >= goal).then_some(())
        })
        .await;
        server.kill9();
        for caller in join_all(callers).await {
            acknowledged.extend(caller.unwrap());
        }

        let store = EmbeddedStore::open(folder.path(), Clock::System).unwrap();
        let counters = store.counters_after(None, 10).await.unwrap();
        let reservations = store.reservations_after(None, usize::MAX).await.unwrap();
        let breaches = invariants::breaches(&counters, &reservations, store.now());
        assert!(breaches.is_empty(), "{breaches:#?}");
        let there: std::collections::HashSet<String> =
            reservations.iter().map(|r| r.key.id().into_owned()).collect();
        assert!(acknowledged.len() >= 200, "something was acknowledged");
        for id in &acknowledged {
            assert!(there.contains(id), "{id} was acknowledged and is gone");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_folder_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    let _first = Server::start(&["--store", &store], &[]).await;
    let mut second = Server::spawn(&["--store", &store], &[]);
    let status = second.wait_exit(Duration::from_secs(30)).await;
    assert!(!status.success());
    assert!(second.log().contains("in use by another process"), "{}", second.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_found_at_start_and_nothing_is_served_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    let mut server = Server::start(&["--store", &store], &[]).await;
    let channel = server.channel().await;
    let request = v1::ApplyPolicyRequest { policy: Some(policy()), ..Default::default() };
    PolicyServiceClient::new(channel.clone()).apply_policy(request).await.unwrap();
    let mut client = QuotaServiceClient::new(channel);
    client.reserve(reserve("a-mark-to-be-found".to_owned())).await.unwrap();
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(20)).await.success());

    let file = folder.path().join("quota.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let mark = b"a-mark-to-be-found";
    let mut found = 0;
    for at in 0..bytes.len() - mark.len() {
        if &bytes[at..at + mark.len()] == mark {
            bytes[at] ^= 1;
            found += 1;
        }
    }
    assert!(found > 0, "the record is in the file");
    std::fs::write(&file, bytes).unwrap();
    let mut server = Server::spawn(&["--store", &store], &[]);
    let status = server.wait_exit(Duration::from_secs(30)).await;
    assert!(!status.success());
    assert!(server.log().contains("damaged"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_removed_once_they_are_due() {
    let folder = tempfile::tempdir().unwrap();
    let open = || EmbeddedStore::open(folder.path(), Clock::System).unwrap();
    let store = open();
    let now = store.now();
    let event = |principal: &str, purge_at| Event {
        purge_at,
        ..Event::new("n", EventKind::SubjectPut, principal, now)
    };
    let hour = Span::from_secs(3600);
    let events = vec![
        event("due", Some(now.minus(hour))),
        event("stays", Some(now.plus(hour))),
        event("for ever", None),
    ];
    store.write(&ChangeSet { events, ..ChangeSet::default() }).await.unwrap();
    let all = TrailFilter { namespace: "n".to_owned(), ..TrailFilter::default() };
    let found = async |store: &EmbeddedStore| {
        let found = store.events_before(&all, None, 10).await.unwrap();
        found.into_iter().map(|kept| kept.value.principal).collect::<Vec<_>>()
    };
    store.ping().await.unwrap();
    assert_eq!(found(&store).await, ["for ever", "stays", "due"], "nothing goes unasked");
    store.retain(Retention::Due).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(found(&store).await, ["for ever", "stays"]);
    drop(store);
    assert_eq!(found(&open()).await, ["for ever", "stays"]);
}
