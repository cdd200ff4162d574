//! Servers, callers who retry as the contract tells them to, and what must
//! hold afterwards.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quota_authority::domain::invariants;
use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use quota_authority::store::Store as _;
use quota_authority::store::mongo::MongoStore;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::support::Server;

pub const NAMESPACE: &str = "cluster";
pub const LIMIT: &str = "slots";
pub const MAX: i64 = 10;

/// `count` servers over one database.
pub async fn servers(uri: &str, count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start(&["--store", uri], &[]).await);
    }
    apply_policy(&servers[0]).await;
    servers
}

/// A lifetime limit of [`MAX`] for each user.
pub async fn apply_policy(server: &Server) {
    let policy = v1::Policy {
        namespace: NAMESPACE.to_owned(),
        metrics: [("m".to_owned(), v1::Metric { requires: vec!["user".to_owned()] })].into(),
        limits: vec![v1::Limit {
            name: LIMIT.to_owned(),
            metric: "m".to_owned(),
            per: vec!["user".to_owned()],
            window: Some(v1::WindowRule {
                kind: Some(v1::window_rule::Kind::Lifetime(v1::LifetimeWindow {})),
            }),
            max: Some(v1::Max { kind: Some(v1::max::Kind::Amount(MAX)) }),
            ..v1::Limit::default()
        }],
        ..v1::Policy::default()
    };
    let request = v1::ApplyPolicyRequest { policy: Some(policy), ..Default::default() };
    let mut client = PolicyServiceClient::new(server.channel().await);
    client.apply_policy(request).await.expect("a sound policy");
}

pub fn reserve_request(user: &str, id: &str) -> v1::ReserveRequest {
    v1::ReserveRequest {
        namespace: NAMESPACE.to_owned(),
        reservation_id: id.to_owned(),
        items: vec![v1::Item { metric: "m".to_owned(), ..v1::Item::default() }],
        dimensions: HashMap::from([("user".to_owned(), user.to_owned())]),
        ..v1::ReserveRequest::default()
    }
}

/// What a caller got in the end, and how long that took.
pub struct Call {
    pub outcome: Result<v1::ReserveResponse, Status>,
    pub took: Duration,
}

/// Reserves as the contract tells a caller to: with a deadline, and with the
/// same id at the next server when a call comes to no answer.
pub async fn reserve_with_retries(
    mut clients: Vec<QuotaServiceClient<Channel>>,
    first: usize,
    user: &str,
    id: &str,
) -> Call {
    let started = Instant::now();
    for attempt in first.. {
        let mut request = Request::new(reserve_request(user, id));
        request.set_timeout(Duration::from_secs(2));
        let server = attempt % clients.len();
        let outcome = clients[server].reserve(request).await.map(tonic::Response::into_inner);
        let again = matches!(&outcome, Err(status) if retryable(status));
        if !again || started.elapsed() > Duration::from_secs(30) {
            return Call { outcome, took: started.elapsed() };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("there is always a next server")
}

/// Whether a call came to no answer. A server that was killed shows as
/// UNAVAILABLE, or as UNKNOWN or CANCELLED where the connection broke; one that
/// drains says GOAWAY, which this client reports as an INTERNAL of its own.
pub fn retryable(status: &Status) -> bool {
    let gone = status.code() == Code::Internal && status.message().starts_with("h2 protocol error");
    gone || matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled
    )
}

/// Asserts that `calls` ended with exactly [`MAX`] admitted, all others
/// refused for the limit by name.
pub fn assert_exactly_max_admitted(calls: &[Call]) {
    let admitted = calls.iter().filter(|call| call.outcome.is_ok()).count();
    for status in calls.iter().filter_map(|call| call.outcome.as_ref().err()) {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let info = status.get_details_error_info().expect("every error has a reason");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("QUOTA_EXCEEDED", "quota.v1"));
        assert_eq!(info.metadata["limit"], LIMIT);
        assert!(status.message().contains(LIMIT), "{}", status.message());
    }
    assert_eq!(admitted, usize::try_from(MAX).unwrap());
}

/// Reads the collections and checks I1 to I3: counters equal the sum of the
/// reservations, and nothing is over its limit or negative.
pub async fn assert_counters_equal_reservations(uri: &str) {
    let store = MongoStore::connect(uri).await.expect("the database of the test");
    let (mut reservations, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = store.reservations_after(after.as_deref(), 1000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.key.as_str().to_owned());
        reservations.extend(page);
    }
    let (mut counters, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = store.counters_after(after.as_deref(), 1000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id.text.clone());
        counters.extend(page);
    }
    assert!(!counters.is_empty() && !reservations.is_empty(), "something was counted");
    let breaches = invariants::breaches(&counters, &reservations, store.now());
    assert!(breaches.is_empty(), "{breaches:#?}");
    store.close().await;
}

pub async fn clients(servers: &[Server]) -> Vec<QuotaServiceClient<Channel>> {
    let mut clients = Vec::new();
    for server in servers {
        clients.push(QuotaServiceClient::new(server.channel().await));
    }
    clients
}
