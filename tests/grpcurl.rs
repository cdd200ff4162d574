//! The contract through somebody else's client: reflection, health, and error
//! details that an operator can read.

mod support;

use serde_json::{Value, json};
use support::{GrpcurlOutput, RequireTool as _, Server, grpcurl, grpcurl_binary};
use tonic::Code;

async fn server() -> Option<Server> {
    // Fetching the tool may take minutes; not on the runtime's own threads.
    let found = tokio::task::spawn_blocking(grpcurl_binary).await.expect("no panic");
    found.require_tool("grpcurl")?;
    Some(Server::start(&["--store", "memory"], &[]).await)
}

async fn call(server: &Server, method: &str, body: Value) -> GrpcurlOutput {
    let (address, method) = (server.address().to_string(), method.to_owned());
    let call = move || {
        grpcurl(&["-plaintext", "-emit-defaults", "-d", &body.to_string(), &address, &method])
    };
    tokio::task::spawn_blocking(call).await.expect("no panic")
}

fn policy() -> Value {
    json!({ "policy": {
        "namespace": "blog",
        "default_plan": "free",
        "plans": ["free", "pro"],
        "metrics": { "posts": { "requires": ["user"] } },
        "limits": [{
            "name": "posts-a-month",
            "metric": "posts",
            "per": ["user"],
            "window": { "calendar": { "unit": "CALENDAR_UNIT_MONTH", "time_zone": "UTC" } },
            "max": { "by_plan": { "plans": {
                "free": { "amount": 3 }, "pro": { "unlimited": true }
            } } }
        }]
    } })
}

fn reserve(id: &str, amount: i64) -> Value {
    json!({
        "namespace": "blog",
        "reservation_id": id,
        "items": [{ "metric": "posts", "amount": amount }],
        "dimensions": { "user": "42" }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_and_describes_the_contract() {
    let Some(server) = server().await else { return };
    let address = server.address().to_string();
    let ask = |args: Vec<String>| {
        let mut all = vec!["-plaintext".to_owned(), address.clone()];
        all.extend(args);
        tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = all.iter().map(String::as_str).collect();
            grpcurl(&args)
        })
    };
    let list = ask(vec!["list".to_owned()]).await.unwrap();
    for service in [
        "quota.v1.QuotaService",
        "quota.v1.PolicyService",
        "quota.v1.OperatorService",
        "grpc.health.v1.Health",
    ] {
        assert!(list.stdout.contains(service), "{service} is not in {}", list.stdout);
    }
    let of = |name: &str| ask(vec!["describe".to_owned(), name.to_owned()]);
    let described = of("quota.v1.ReserveRequest").await.unwrap();
    assert!(described.stdout.contains("reservation_id"), "{}", described.stdout);
    assert!(described.stdout.contains("RESERVATION_ID_REUSED"), "comments are there");
    let described = of("google.rpc.QuotaFailure").await.unwrap();
    assert!(described.stdout.contains("violations"), "{}", described.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_for_each_service() {
    let Some(server) = server().await else { return };
    for service in
        ["", "quota.v1.QuotaService", "quota.v1.PolicyService", "quota.v1.OperatorService"]
    {
        let body = json!({ "service": service });
        let answer = call(&server, "grpc.health.v1.Health/Check", body).await;
        assert_eq!(answer.json()["status"], "SERVING", "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_and_a_readable_refusal() {
    let Some(server) = server().await else { return };
    let applied = call(&server, "quota.v1.PolicyService/ApplyPolicy", policy()).await;
    assert_eq!(applied.json()["revision"], "1", "{applied:?}");
    for n in 1..=3 {
        let held =
            call(&server, "quota.v1.QuotaService/Reserve", reserve(&format!("p{n}"), 1)).await;
        let held = held.json();
        assert_eq!(held["reservation"]["state"], "RESERVATION_STATE_HELD");
        assert_eq!(held["limits"][0]["held"], "1");
        assert_eq!(held["limits"][0]["used"], (n - 1).to_string());
        let body = json!({
            "namespace": "blog", "reservation_id": format!("p{n}"),
            "resources": [format!("post/{n}")]
        });
        let done = call(&server, "quota.v1.QuotaService/Commit", body).await.json();
        assert_eq!(done["reservation"]["state"], "RESERVATION_STATE_COMMITTED");
    }
    let refused = call(&server, "quota.v1.QuotaService/Reserve", reserve("p4", 1)).await;
    assert_eq!(refused.status(), Some(Code::ResourceExhausted), "{refused:?}");
    let text = &refused.stderr;
    for part in [
        "QUOTA_EXCEEDED",
        "posts-a-month",
        "google.rpc.QuotaFailure",
        "retryDelay",
        "quota.v1.Refusal",
        "retryTime",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let by_resource = json!({ "namespace": "blog", "resource": "post/2" });
    let found = call(&server, "quota.v1.QuotaService/GetReservation", by_resource).await.json();
    assert_eq!(
        found["reservation"]["reservation_id"]
            .as_str()
            .or(found["reservation"]["reservationId"].as_str()),
        Some("p2")
    );
    let impossible = call(&server, "quota.v1.QuotaService/Reserve", reserve("p5", 1_000_000)).await;
    assert!(!impossible.stderr.contains("retryDelay"), "it can never fit: {}", impossible.stderr);
}
