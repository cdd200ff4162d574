//! The store is down: callers hear it in time, health says so, and all is
//! well again by itself.

use std::time::{Duration, Instant};

use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::support::{ReplicaSet, Server, eventually};

fn reserve(id: &str) -> Request<v1::ReserveRequest> {
    let mut request = Request::new(v1::ReserveRequest {
        namespace: "n".to_owned(),
        reservation_id: id.to_owned(),
        items: vec![v1::Item { metric: "m".to_owned(), ..v1::Item::default() }],
        ..v1::ReserveRequest::default()
    });
    request.set_timeout(Duration::from_secs(2));
    request
}

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
            max: Some(v1::Max { kind: Some(v1::max::Kind::Amount(100)) }),
            ..v1::Limit::default()
        }],
        ..v1::Policy::default()
    }
}

fn assert_unavailable_with_advice(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let info = status.get_details_error_info().expect("every error has a reason");
    assert!(
        ["STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"].contains(&info.reason.as_str()),
        "{}",
        info.reason
    );
    let retry = status.get_details_retry_info().expect("advice when to try again");
    assert!(retry.retry_delay.is_some_and(|delay| delay > Duration::ZERO));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_told_in_time_and_ends_by_itself() {
    let set = ReplicaSet::start(1, &[]).await;
    let server = Server::start(&["--store", &set.uri_for("outage")], &[]).await;
    let channel = server.channel().await;
    let mut quota = QuotaServiceClient::new(channel.clone());
    let mut health = HealthClient::new(channel.clone());
    let mut policies = PolicyServiceClient::new(channel);
    let request = v1::ApplyPolicyRequest { policy: Some(policy()), ..Default::default() };
    policies.apply_policy(request).await.unwrap();
    quota.reserve(reserve("before")).await.unwrap();

    // Paused, it holds connections open and says nothing, which is worse than
    // being gone; then it is gone.
    for (round, gone) in [false, true].into_iter().enumerate() {
        let member = set.member(0);
        if gone {
            member.kill9();
        } else {
            member.stop();
        }
        for n in 0..3 {
            let started = Instant::now();
            let status = quota.reserve(reserve(&format!("during-{round}-{n}"))).await.unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(2), "later than the deadline");
            assert_unavailable_with_advice(&status);
        }
        let mut usage = Request::new(v1::GetUsageRequest {
            namespace: "n".to_owned(),
            metric: "m".to_owned(),
            ..v1::GetUsageRequest::default()
        });
        usage.set_timeout(Duration::from_secs(1));
        assert_unavailable_with_advice(&quota.get_usage(usage).await.unwrap_err());
        await_health(&mut health, ServingStatus::NotServing).await;

        if gone {
            set.restart(0).await;
        } else {
            member.cont();
        }
        await_health(&mut health, ServingStatus::Serving).await;
        for n in 0..3 {
            // The ids of the outage are safe to send again.
            let id = format!("during-{round}-{n}");
            eventually(Duration::from_secs(20), "a grant after the outage", async || {
                quota.reserve(reserve(&id)).await.ok()
            })
            .await;
        }
    }
    let usage = v1::GetUsageRequest {
        namespace: "n".to_owned(),
        metric: "m".to_owned(),
        ..v1::GetUsageRequest::default()
    };
    let usage = quota.get_usage(usage).await.unwrap().into_inner();
    assert_eq!(usage.limits[0].held, 7, "each id counts once");
}

async fn await_health<T>(health: &mut HealthClient<T>, wanted: ServingStatus)
where
    T: tonic::client::GrpcService<tonic::body::Body> + Clone,
    T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T::ResponseBody: tonic::codegen::Body<Data = tonic::codegen::Bytes> + Send + 'static,
    <T::ResponseBody as tonic::codegen::Body>::Error:
        Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    for service in ["", "quota.v1.QuotaService"] {
        let what = format!("{service:?} to be {wanted:?}");
        eventually(Duration::from_secs(30), &what, async || {
            let request = HealthCheckRequest { service: service.to_owned() };
            let status = health.check(request).await.ok()?.into_inner().status;
            (status == wanted as i32).then_some(())
        })
        .await;
    }
}
