//! The last slot, over three servers.

use futures_util::future::join_all;
use quota_authority::proto::v1;

use crate::calls::{
    MAX, NAMESPACE, assert_counters_equal_reservations, assert_exactly_max_admitted, clients,
    reserve_with_retries, servers,
};
use crate::support;

/// B38: 200 callers on a limit of 10, over three processes, 50 rounds, with a
/// watcher who must never read more than the limit.
#[tokio::test(flavor = "multi_thread")]
async fn b38_of_two_hundred_callers_exactly_ten_are_admitted_in_fifty_rounds() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let servers = servers(&uri, 3).await;
    let clients = clients(&servers).await;
    for round in 0..50 {
        let user = format!("u{round}");
        let watcher = tokio::spawn({
            let (mut client, user) = (clients[round % 3].clone(), user.clone());
            async move {
                loop {
                    let request = v1::GetUsageRequest {
                        namespace: NAMESPACE.to_owned(),
                        metric: "m".to_owned(),
                        dimensions: [("user".to_owned(), user.clone())].into(),
                        ..v1::GetUsageRequest::default()
                    };
                    let usage = client.get_usage(request).await.unwrap().into_inner();
                    let limit = &usage.limits[0];
                    assert!(limit.used + limit.held <= MAX, "{limit:?}");
                    if limit.held == MAX {
                        break;
                    }
                }
            }
        });
        let calls = join_all((0..200).map(|n| {
            let (clients, user) = (clients.clone(), user.clone());
            tokio::spawn(async move {
                reserve_with_retries(clients, n, &user, &format!("{user}-{n}")).await
            })
        }));
        let calls: Vec<_> = calls.await.into_iter().map(|call| call.unwrap()).collect();
        assert_exactly_max_admitted(&calls);
        watcher.await.unwrap();
    }
    assert_counters_equal_reservations(&uri).await;
}
