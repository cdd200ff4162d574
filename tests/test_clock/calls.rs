//! Servers under a test clock, and the calls of these tests.

use std::time::Duration;

use prost_types::{Duration as Span, Timestamp};
use quota_authority::proto::testing::v1 as testing;
use quota_authority::proto::testing::v1::test_clock_service_client::TestClockServiceClient;
use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{Server, mongo};

/// 2024-01-31T23:59:50Z: ten seconds before a month ends.
pub const START: &str = "2024-01-31T23:59:50Z";
pub const START_SECONDS: i64 = 1_706_745_590;
const NAMESPACE: &str = "n";

/// Where records live, and what goes with the test.
pub enum Place {
    Memory,
    Embedded(TempDir),
    Mongo(String),
}

impl Place {
    pub fn embedded() -> Self {
        Self::Embedded(tempfile::tempdir().expect("a folder"))
    }

    pub fn mongo() -> Self {
        Self::Mongo(mongo().uri_for(&mongo().fresh_database()))
    }

    pub fn store(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Embedded(folder) => format!("embedded:{}", folder.path().display()),
            Self::Mongo(uri) => uri.clone(),
        }
    }

    pub async fn server_with(&self, flag: &str) -> (Server, Client) {
        let server = Server::start(&["--store", &self.store(), flag], &[]).await;
        let client = Client::of(&server).await;
        (server, client)
    }

    /// What a server logs that refuses to start.
    pub async fn refused(&self, flags: &[&str]) -> String {
        let store = self.store();
        let mut server = Server::spawn(&[&["--store", &store], flags].concat(), &[]);
        let status = server.wait_exit(Duration::from_secs(30)).await;
        assert!(!status.success(), "{}", server.log());
        server.log()
    }
}

/// Calls of one server.
#[derive(Clone)]
pub struct Client {
    pub clock: TestClockServiceClient<Channel>,
    quota: QuotaServiceClient<Channel>,
    policy: PolicyServiceClient<Channel>,
}

impl Client {
    pub async fn of(server: &Server) -> Self {
        let channel = server.channel().await;
        Self {
            clock: TestClockServiceClient::new(channel.clone()),
            quota: QuotaServiceClient::new(channel.clone()),
            policy: PolicyServiceClient::new(channel),
        }
    }

    pub async fn get(&self) -> i64 {
        let answer = self.clock.clone().get(testing::GetRequest {}).await;
        seconds(answer.expect("the time").into_inner().time)
    }

    pub async fn set(&self, seconds: i64) -> Result<i64, Status> {
        let request = testing::SetRequest { time: Some(Timestamp { seconds, nanos: 0 }) };
        let answer = self.clock.clone().set(request).await?.into_inner();
        Ok(self::seconds(answer.time))
    }

    pub async fn advance(&self, seconds: i64, nanos: i32) -> Result<Option<Timestamp>, Status> {
        let request = testing::AdvanceRequest { duration: Some(Span { seconds, nanos }) };
        Ok(self.clock.clone().advance(request).await?.into_inner().time)
    }

    /// A policy of at most `max` a month.
    pub async fn apply(&self, max: i64) {
        let month = v1::CalendarWindow {
            unit: v1::CalendarUnit::Month.into(),
            time_zone: "UTC".to_owned(),
            ..v1::CalendarWindow::default()
        };
        let policy = v1::Policy {
            namespace: NAMESPACE.to_owned(),
            metrics: [("m".to_owned(), v1::Metric::default())].into(),
            limits: vec![v1::Limit {
                name: "monthly".to_owned(),
                metric: "m".to_owned(),
                window: Some(v1::WindowRule { kind: Some(v1::window_rule::Kind::Calendar(month)) }),
                max: Some(v1::Max { kind: Some(v1::max::Kind::Amount(max)) }),
                ..v1::Limit::default()
            }],
            ..v1::Policy::default()
        };
        let request = v1::ApplyPolicyRequest { policy: Some(policy), ..Default::default() };
        self.policy.clone().apply_policy(request).await.expect("a sound policy");
    }

    pub async fn reserve(&self, id: &str, commit: bool) -> Result<v1::Reservation, Status> {
        let request = v1::ReserveRequest {
            namespace: NAMESPACE.to_owned(),
            reservation_id: id.to_owned(),
            items: vec![v1::Item { metric: "m".to_owned(), ..v1::Item::default() }],
            ttl: Some(Span { seconds: 5, nanos: 0 }),
            commit,
            ..v1::ReserveRequest::default()
        };
        let answer = self.quota.clone().reserve(request).await?.into_inner();
        Ok(answer.reservation.expect("a reservation"))
    }

    pub async fn commit(&self, id: &str) -> Result<(), Status> {
        let request = v1::CommitRequest {
            namespace: NAMESPACE.to_owned(),
            reservation_id: id.to_owned(),
            ..v1::CommitRequest::default()
        };
        self.quota.clone().commit(request).await.map(|_| ())
    }

    pub async fn max(&self) -> Option<i64> {
        let request = v1::GetUsageRequest {
            namespace: NAMESPACE.to_owned(),
            metric: "m".to_owned(),
            ..v1::GetUsageRequest::default()
        };
        let usage = self.quota.clone().get_usage(request).await.expect("the usage").into_inner();
        match usage.limits[0].bound {
            Some(v1::limit_status::Bound::Max(max)) => Some(max),
            _ => None,
        }
    }
}

fn seconds(time: Option<Timestamp>) -> i64 {
    time.expect("a time").seconds
}

pub fn reason(status: &Status) -> String {
    status.get_details_error_info().expect("every error has a reason").reason
}

/// The field and the words of an invalid request.
pub fn fault(status: &Status) -> (String, String) {
    assert_eq!((status.code(), &*reason(status)), (Code::InvalidArgument, "INVALID_FIELD"));
    let detail = status.get_details_bad_request().expect("the field");
    let fault = detail.field_violations[0].clone();
    (fault.field, fault.description)
}
