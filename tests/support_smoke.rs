//! The tests' own tools, tried out: what stands on them may trust them.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Document, doc};
use mongodb::error::{ErrorKind, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::{Client, ClientSession};
use support::{
    Fault, Mongod, Proxy, ReplicaSet, RequireTool as _, SharedMongo, eventually, grpcurl,
    grpcurl_binary, mongo, mongod_binary, with_database,
};

/// Writes two documents of two collections in one transaction.
async fn transfer(client: &Client, database: &str) -> mongodb::error::Result<ClientSession> {
    let database = client.database(database);
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    for name in ["left", "right"] {
        let collection = database.collection::<Document>(name);
        collection.insert_one(doc! { "_id": 1, "units": 3 }).session(&mut session).await?;
    }
    Ok(session)
}

async fn counts(client: &Client, database: &str) -> (u64, u64) {
    let database = client.database(database);
    let count = async |name| {
        database.collection::<Document>(name).count_documents(doc! {}).await.expect("a count")
    };
    (count("left").await, count("right").await)
}

#[tokio::test]
async fn a_transaction_commits_on_the_shared_server() {
    let Some(()) = SharedMongo::to_be_had().require_tool("mongod") else { return };
    let database = mongo().fresh_database();
    assert_ne!(database, mongo().fresh_database());
    let client = mongo().client().await;

    let mut aborted = transfer(&client, &database).await.expect("two writes");
    aborted.abort_transaction().await.expect("an abort");
    assert_eq!(counts(&client, &database).await, (0, 0));

    let mut committed = transfer(&client, &database).await.expect("two writes");
    committed.commit_transaction().await.expect("a commit");
    assert_eq!(counts(&client, &database).await, (1, 1));
}

#[tokio::test]
async fn a_lost_commit_reply_is_an_unknown_outcome() {
    let Some(_) = mongod_binary().require_tool("mongod") else { return };
    let set = ReplicaSet::start(1, &[]).await;
    let proxy = Proxy::start(set.member(0).address());
    let uri = format!("mongodb://{}/?directConnection=true", proxy.address());
    let client = Client::with_uri_str(uri).await.expect("a client");

    let mut session = transfer(&client, "lost").await.expect("two writes");
    proxy.set(Fault::DropReplies {
        every: 1,
        request: "commitTransaction".into(),
        reply: String::new(),
    });
    let error = session.commit_transaction().await.expect_err("every reply is lost");
    assert!(error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT), "{error}");
    assert_eq!(proxy.lost(), 2, "the driver sends a commit twice");

    proxy.set(Fault::Pass);
    session.commit_transaction().await.expect("the same commit again");
    assert_eq!(counts(&client, "lost").await, (1, 1));
}

#[tokio::test]
async fn the_proxy_holds_cuts_and_refuses() {
    let Some(_) = mongod_binary().require_tool("mongod") else { return };
    let server = Mongod::standalone(&[]).await;
    let proxy = Proxy::start(server.address());
    let uri = format!(
        "mongodb://{}/?directConnection=true&serverSelectionTimeoutMS=500&retryReads=false",
        proxy.address()
    );
    let client = Client::with_uri_str(uri).await.expect("a client");
    let database = client.database("admin");
    let ping = async || database.run_command(doc! { "ping": 1 }).await;
    ping().await.expect("all passes");

    proxy.set(Fault::BlackHole);
    let held = tokio::time::timeout(Duration::from_millis(300), ping()).await;
    assert!(held.is_err(), "nothing gets through");
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    ping().await.expect("late is not lost");

    proxy.set(Fault::Refuse);
    ping().await.expect_err("nobody gets in");
    proxy.set(Fault::Pass);
    eventually(Duration::from_secs(20), "the client to recover", async || ping().await.ok()).await;

    let before = proxy.connections();
    proxy.cut_all();
    eventually(Duration::from_secs(20), "new connections", async || {
        let _ = ping().await;
        (proxy.connections() > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn three_members_survive_their_primary() {
    let Some(_) = mongod_binary().require_tool("mongod") else { return };
    let set = ReplicaSet::start(3, &["transactionLifetimeLimitSeconds=5"]).await;
    let client = set.client().await;
    transfer(&client, "three").await.expect("two writes").commit_transaction().await.expect("ok");

    let first = set.primary().await;
    set.member(first).kill9();
    assert!(!set.member(first).is_running());
    let second = set.primary_other_than(first).await;
    assert_eq!(counts(&client, "three").await, (1, 1), "a majority had it");
    set.restart(first).await;

    set.member(second).stop();
    let third = set.primary_other_than(second).await;
    set.member(second).cont();
    assert_eq!(set.primary().await, third, "elected last");

    set.step_down(20).await;
    set.primary_other_than(third).await;
}

#[tokio::test]
async fn a_fail_point_strikes_and_is_cleared() {
    let Some(_) = mongod_binary().require_tool("mongod") else { return };
    let set = ReplicaSet::start(1, &[]).await;
    let client = set.client().await;
    let collection = client.database("trip").collection::<Document>("things");
    collection.insert_one(doc! { "_id": 1 }).await.expect("an insert");

    set.configure_fail_point(doc! {
        "configureFailPoint": "failCommand",
        "mode": "alwaysOn",
        "data": { "failCommands": ["insert"], "errorCode": 2 },
    })
    .await;
    let error = collection.insert_one(doc! { "_id": 2 }).await.expect_err("the fail point");
    let ErrorKind::Command(command) = *error.kind else { panic!("{error}") };
    assert_eq!(command.code, 2);

    set.fail_point_off("failCommand").await;
    collection.insert_one(doc! { "_id": 2 }).await.expect("an insert");

    set.step_down(2).await;
    assert_eq!(set.primary().await, 0, "the only member stands again");
}

#[tokio::test]
async fn a_standalone_server_starts_and_has_no_transactions() {
    let Some(_) = mongod_binary().require_tool("mongod") else { return };
    let server = Mongod::standalone(&[]).await;
    let hello = server.run(doc! { "hello": 1 }).await.expect("an answer");
    assert!(!hello.contains_key("setName"), "{hello}");
    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    transfer(&client, "alone").await.expect_err("no replica set, no transaction");

    server.kill9();
    server.restart().await;
    server.run(doc! { "ping": 1 }).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn grpcurl_speaks_to_a_tonic_server() {
    let Some(_) = grpcurl_binary().require_tool("grpcurl") else { return };
    let incoming = tonic::transport::server::TcpIncoming::bind(([127, 0, 0, 1], 0).into());
    let incoming = incoming.expect("a free port");
    let address = incoming.local_addr().expect("an address").to_string();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("here", tonic_health::ServingStatus::Serving).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let newer = reflection().build_v1().expect("a sound descriptor");
    // The grpcurl that pip brings knows only that one.
    let older = reflection().build_v1alpha().expect("a sound descriptor");
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(health)
            .add_service(newer)
            .add_service(older)
            .serve_with_incoming(incoming),
    );

    let call = |service: &str| {
        let body = format!(r#"{{"service": "{service}"}}"#);
        grpcurl(&["-plaintext", "-d", &body, &address, "grpc.health.v1.Health/Check"])
    };
    assert_eq!(call("here").json()["status"], "SERVING");
    let unknown = call("elsewhere");
    assert_eq!(unknown.status(), Some(tonic::Code::NotFound), "{unknown:?}");
}

#[test]
fn a_connection_string_takes_a_database() {
    let expected = BTreeMap::from([
        ("mongodb://a", "mongodb://a/db"),
        ("mongodb://a:1,b:2/", "mongodb://a:1,b:2/db"),
        ("mongodb://a/?replicaSet=rs0", "mongodb://a/db?replicaSet=rs0"),
        ("mongodb://u:p@a/old?x=/", "mongodb://u:p@a/db?x=/"),
    ]);
    for (uri, with) in expected {
        assert_eq!(with_database(uri, "db"), with);
    }
}
