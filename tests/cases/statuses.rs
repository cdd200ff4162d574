//! What went wrong, told so that no client retries what cannot succeed or gives
//! up on what would.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use quota_authority::engine::Settings;
use quota_authority::store::clock::Clock;
use quota_authority::store::faulty::{Fault, FaultyStore};
use quota_authority::store::memory::MemoryStore;
use tonic::Code;

use crate::support::eventually;
use crate::world::{Denied, Refused, Rules, World, at_once, cases, limit, v1};

cases! {
    every_store: [
        b88_status_codes,
        b88_many_failing_limits_fit_into_a_status,
        b88_long_keys_fit_into_a_status,
        b88_fields_of_unknown_value_are_refused,
    ],
}

async fn b88_status_codes(world: &mut World) {
    let client = world.cap(5).await;
    client.take("full", 5).ttl(Span::from_secs(1)).send().await.unwrap();
    let denied = client.take("r", 1).send().await.denied(&["cap"]);
    let status = &denied.refusal.as_ref().unwrap().limits[0];
    assert_eq!((status.available, status.held), (Some(0), 5));
    assert!(status.retry_time.is_some() && denied.retry.is_some());
    let impossible = client.take("r", 6).send().await.denied(&["cap"]);
    assert_eq!((impossible.code, impossible.retry), (denied.code, None));
    let metric = client.reserve("r").item("other", 1).with("user", "s").send().await;
    let bad = client.take("r", 0).send().await;
    let mismatch = client.take("full", 4).send().await;
    let unknown = client.commit("nobody").await;
    let exceeds = client.commit_some("full", &[6]).await;
    world.pass(Span::from_secs(2)).await;
    let expired = client.commit("full").await;
    let lost = client.take("full", 5).ttl(Span::from_secs(1)).send().await;
    let refusals = [
        metric.refused(Reason::MetricNotFound),
        bad.refused(Reason::InvalidField),
        mismatch.refused(Reason::ReservationIdReused),
        unknown.refused(Reason::ReservationNotFound),
        exceeds.refused(Reason::AmountExceedsHold),
        expired.refused(Reason::ReservationExpired),
        lost.refused(Reason::ReservationExpired),
    ];
    let reasons: BTreeSet<_> = refusals.iter().map(|refused| refused.reason as i32).collect();
    assert_eq!(reasons.len(), refusals.len() - 1, "distinct, but for the two that expired");
    for refused in &refusals {
        assert_eq!(refused.retry, None, "no use to try again: {refused:?}");
        // What client libraries repeat by themselves.
        let repeated = [Code::Unavailable, Code::Aborted, Code::DeadlineExceeded, Code::Unknown];
        assert!(!repeated.contains(&refused.code) && refused.code != Code::ResourceExhausted);
        assert!(!refused.metadata.is_empty(), "{refused:?}");
    }
}

async fn b88_many_failing_limits_fit_into_a_status(world: &mut World) {
    let name = |n: usize| format!("{n:03} {}", "ü".repeat(120));
    let limits = (0..200).map(|n| limit(&name(n), "units").per(&["user"]).max(1));
    let client = world.rules(Rules::of_units(limits)).await;
    client.take("one", 1).send().await.unwrap();
    let refused = client.take("two", 1).send().await.refused(Reason::QuotaExceeded);
    let refusal = refused.refusal.unwrap();
    assert_eq!(refusal.total, 200, "all are counted");
    assert!((1..200).contains(&refusal.limits.len()), "as many as fit are there");
    assert_eq!(refused.quota_failure.unwrap().violations.len(), refusal.limits.len());
    assert_eq!(refused.metadata["limits_exceeded"], "200");
    // As many faults as a request can have.
    let bad = (0..64).fold(client.reserve(""), |call, _| call.item("", 0));
    let refused = bad.send().await.refused(Reason::InvalidField);
    assert!(refused.violations.len() > 10);
}

async fn b88_long_keys_fit_into_a_status(world: &mut World) {
    let names: Vec<String> = (0..16).map(|n| format!("{n:0256}")).collect();
    let per: Vec<&str> = names.iter().map(String::as_str).collect();
    let rules = Rules::new().metric("units", &per);
    let client = world.rules(rules.limits([limit("long", "units").per(&per).max(1)])).await;
    let value = "v".repeat(256);
    let take = |id: &str| {
        let call = client.reserve(id).item("units", 1);
        per.iter().fold(call, |call, name| call.with(name, &value))
    };
    let admitted = take("one").send().await.unwrap();
    assert_eq!(admitted.limits[0].key.len(), 16);
    take("two").send().await.denied(&["long"]);
}

/// What cannot be honoured is refused, never passed over.
async fn b88_fields_of_unknown_value_are_refused(world: &mut World) {
    let client = world.cap(5).await;
    let mut call = client.take("r", 1);
    for seconds in [-1, 86_401] {
        call.request.wait = Some(prost_types::Duration { seconds, nanos: 0 });
        call.clone().send().await.invalid(&["wait"]);
    }
    call.request.wait = Some(prost_types::Duration::default());
    call.send().await.unwrap();
    for if_expired in [4, -1, i32::MAX] {
        let request = v1::CommitRequest {
            namespace: client.namespace.clone(),
            reservation_id: "r".to_owned(),
            if_expired,
            ..v1::CommitRequest::default()
        };
        let refused = client.quota.clone().commit(request).await.map_err(Refused::from);
        refused.invalid(&["if_expired"]);
    }
    assert_eq!(client.stands("cap").await, (0, 1, 4));
    client.commit("r").await.unwrap();
}

fn faulty() -> Arc<FaultyStore> {
    FaultyStore::new(Arc::new(MemoryStore::new(Clock::System)), 1, 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b88_the_store_is_down() {
    let store = faulty();
    let world = World::over(Arc::clone(&store) as _, Settings::default()).await;
    let play = async |world: &mut World| {
        let client = world.cap(5).await;
        client.take("held", 2).send().await.unwrap();
        client.take("gone", 1).send().await.unwrap();
        store.set_down(true);
        let answers = [
            client.take("r", 1).send().await.map(drop),
            // Refused or replayed, had anybody been able to tell.
            client.take("r", 9).send().await.map(drop),
            client.take("held", 2).send().await.map(drop),
            client.commit("held").await.map(drop),
            client.commit("nobody").await.map(drop),
            client.release("gone").await.map(drop),
            client.reservation("held").await.map(drop),
            client.usage("units", &[("user", "s")]).await.map(drop),
            client.check(&[("units", 1)], &[("user", "s")]).await.map(drop),
        ];
        for (n, answer) in answers.into_iter().enumerate() {
            let refused = answer.expect_err("the store is down");
            let reasons = [Reason::StoreUnavailable, Reason::OutcomeUnknown];
            assert!(reasons.contains(&refused.reason), "{n}: {refused:?}");
            assert!(refused.retry.is_some(), "{n}: {refused:?}");
        }
        store.set_down(false);
        // It recovers by itself, and nothing was changed meanwhile.
        assert_eq!(client.stands("cap").await, (0, 3, 2));
        client.take("r", 1).send().await.unwrap();
        client.commit("held").await.unwrap();
        client.release("gone").await.unwrap();
    };
    world.play(play).await;
}

/// A write that took effect though its reply was lost is the caller's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b88_a_lost_reply_is_not_an_error() {
    let store = faulty();
    let world = World::over(Arc::clone(&store) as _, Settings::default()).await;
    let play = async |world: &mut World| {
        let client = world.cap(5).await;
        for (n, fault) in
            [Fault::AppliedUnknown, Fault::LostUnknown, Fault::Conflict].into_iter().enumerate()
        {
            let id = format!("{n}");
            store.next([fault]);
            assert!(!client.take(&id, 1).send().await.unwrap().replayed, "{fault:?}");
            store.next([fault]);
            assert!(!client.commit(&id).await.unwrap().replayed, "{fault:?}");
        }
        assert_eq!(client.stands("cap").await, (3, 0, 2));
        store.next([Fault::Failed]);
        let refused = client.take("r", 1).send().await.refused(Reason::StoreUnavailable);
        assert!(refused.retry.is_some());
        client.take("r", 1).send().await.unwrap();
    };
    world.play(play).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b88_overloaded() {
    let store = faulty();
    let settings = Settings { queue: 4, queue_per_namespace: 2, batch: 1, ..Settings::default() };
    let world = World::over(Arc::clone(&store) as _, settings).await;
    let play = async |world: &mut World| {
        let client = world.cap(1000).await;
        store.next([Fault::Delay; 200]);
        let take = |n: usize| client.take(&format!("{n}"), 1).send();
        let answers = at_once((0..100).map(take)).await;
        let overloaded = answers.iter().filter(|answer| answer.is_err()).count();
        assert!((1..100).contains(&overloaded), "{overloaded} of 100");
        for answer in answers.iter().filter(|answer| answer.is_err()) {
            let refused = answer.clone().refused(Reason::Overloaded);
            assert!(refused.retry.is_some());
        }
        // Nothing was begun for those, and the same ids get through later.
        let admitted = i64::try_from(100 - overloaded).unwrap();
        assert_eq!(client.stands("cap").await, (0, admitted, 1000 - admitted));
        for n in 0..100 {
            eventually(Duration::from_secs(10), "the same id to get through", async || {
                take(n).await.ok()
            })
            .await;
        }
        assert_eq!(client.stands("cap").await, (0, 100, 900));
    };
    world.play(play).await;
}
