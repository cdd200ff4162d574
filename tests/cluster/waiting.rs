//! One lock for twenty callers of two servers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quota_authority::proto::v1;
use tonic::Request;

use crate::calls::{
    MAX, NAMESPACE, assert_counters_equal_reservations, clients, reserve_request, servers,
};
use crate::support;

/// What each of them works once he has the lock.
const WORK: Duration = Duration::from_millis(50);

/// A Reserve of all there is.
fn lock(id: &str) -> v1::ReserveRequest {
    let mut request = reserve_request("42", id);
    request.items[0].amount = Some(MAX);
    request.wait = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    request
}

/// Whoever has the lock gives it back through the other server, so that every
/// waiter is woken from elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_wait_at_two_servers_and_all_are_served() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let servers = servers(&uri, 2).await;
    let clients = clients(&servers).await;
    clients[0].clone().reserve(lock("first")).await.unwrap();
    let released = Arc::new(Mutex::new(Instant::now()));
    let gaps = Arc::new(Mutex::new(Vec::new()));
    let release = |id: &str| v1::ReleaseRequest {
        namespace: NAMESPACE.to_owned(),
        reservation_id: id.to_owned(),
        ..v1::ReleaseRequest::default()
    };
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let (clients, released, gaps) = (clients.clone(), released.clone(), gaps.clone());
            let id = format!("{n}");
            tokio::spawn(async move {
                let (mut here, mut there) = (clients[n % 2].clone(), clients[(n + 1) % 2].clone());
                let granted = here.reserve(Request::new(lock(&id))).await.expect("a lock");
                gaps.lock().unwrap().push(released.lock().unwrap().elapsed());
                assert!(!granted.into_inner().replayed);
                tokio::time::sleep(WORK).await;
                *released.lock().unwrap() = Instant::now();
                there.release(release(&id)).await.expect("the lock is given back");
            })
        })
        .collect();
    let waiting = async || {
        let mut waiting = 0;
        for client in &clients {
            let request = v1::GetUsageRequest {
                namespace: NAMESPACE.to_owned(),
                metric: "m".to_owned(),
                dimensions: [("user".to_owned(), "42".to_owned())].into(),
                ..v1::GetUsageRequest::default()
            };
            let usage = client.clone().get_usage(request).await.unwrap().into_inner();
            waiting += usage.limits[0].waiting;
        }
        (waiting == 20).then_some(())
    };
    support::eventually(Duration::from_secs(30), "all to wait", waiting).await;
    *released.lock().unwrap() = Instant::now();
    clients[1].clone().release(release("first")).await.unwrap();
    for call in calls {
        let ended = tokio::time::timeout(Duration::from_mins(1), call).await;
        ended.expect("everybody is served").unwrap();
    }
    let mut gaps = gaps.lock().unwrap().clone();
    gaps.sort();
    assert_eq!(gaps.len(), 20);
    eprintln!(
        "from release to the next grant, at two servers: median {:?}, 95th percentile {:?}, \
         longest {:?}",
        gaps[10], gaps[18], gaps[19]
    );
    assert_counters_equal_reservations(&uri).await;
}
