//! A change made through one server is in force on another within a second.

use std::time::Duration;

use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use tonic::transport::Channel;

use crate::calls::{MAX, NAMESPACE, servers};
use crate::support::{self, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// The max that a server goes by for the user.
async fn max(client: &mut QuotaServiceClient<Channel>) -> i64 {
    let request = v1::GetUsageRequest {
        namespace: NAMESPACE.to_owned(),
        metric: "m".to_owned(),
        dimensions: [("user".to_owned(), "42".to_owned())].into(),
        ..v1::GetUsageRequest::default()
    };
    let usage = client.get_usage(request).await.expect("the usage").into_inner();
    match usage.limits[0].bound {
        Some(v1::limit_status::Bound::Max(max)) => max,
        _ => panic!("{usage:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_subjects_are_in_force_everywhere_within_a_second() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let servers = servers(&uri, 2).await;
    let mut admin = PolicyServiceClient::new(servers[0].channel().await);
    let mut other = QuotaServiceClient::new(servers[1].channel().await);
    assert_eq!(max(&mut other).await, MAX, "the other server has a copy");
    let current = v1::GetPolicyRequest { namespace: NAMESPACE.to_owned(), revision: 0 };
    let mut policy = admin.get_policy(current).await.unwrap().into_inner().policy.unwrap();
    for round in 1..=5 {
        let raised = MAX + round;
        policy.limits[0].max = Some(v1::Max { kind: Some(v1::max::Kind::Amount(raised)) });
        let request = v1::ApplyPolicyRequest { policy: Some(policy.clone()), ..Default::default() };
        admin.apply_policy(request).await.unwrap();
        let in_force = async || (max(&mut other).await == raised).then_some(());
        eventually(SECOND, "the policy to be in force", in_force).await;

        let add = v1::r#override::Change::Add(100 * round);
        let over = v1::Override { limit: "slots".to_owned(), change: Some(add), expire_time: None };
        let subject = v1::Subject {
            kind: "user".to_owned(),
            id: "42".to_owned(),
            overrides: vec![over],
            ..v1::Subject::default()
        };
        let namespace = NAMESPACE.to_owned();
        let request =
            v1::PutSubjectRequest { namespace, subject: Some(subject), ..Default::default() };
        admin.put_subject(request).await.unwrap();
        let expected = raised + 100 * round;
        let in_force = async || (max(&mut other).await == expected).then_some(());
        eventually(SECOND, "the subject to be in force", in_force).await;

        let kind = "user".to_owned();
        let subject = v1::Subject { kind, id: "42".to_owned(), ..v1::Subject::default() };
        let namespace = NAMESPACE.to_owned();
        let request =
            v1::PutSubjectRequest { namespace, subject: Some(subject), ..Default::default() };
        admin.put_subject(request).await.unwrap();
        let in_force = async || (max(&mut other).await == raised).then_some(());
        eventually(SECOND, "the override to be gone", in_force).await;
    }
}
