//! Deployments: the unfit are refused with the way to mend them.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::Client;
use quota_authority::server::{StoreAddress, StoreClock};
use quota_authority::store::Store as _;
use quota_authority::store::mongo::{ConnectError, MongoStore};

use crate::support::{self, Mongod, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_server_is_refused_with_the_command_that_mends_it() {
    let mongod = Mongod::standalone(&[]).await;
    let mut server = Server::spawn(&["--store", &mongod.uri()], &[]);
    let status = server.wait_exit(Duration::from_secs(30)).await;
    assert!(!status.success());
    let log = server.log();
    for part in ["standalone", "--replSet rs0", "rs.initiate", &mongod.address().to_string()] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_indexes_are_exactly_those_of_the_design() {
    let mongo = support::mongo();
    let database = mongo.fresh_database();
    let address = StoreAddress::MongoDb(mongo.uri_for(&database));
    let client = Client::with_uri_str(mongo.uri()).await.unwrap();
    let old = mongodb::IndexModel::builder().keys(doc! { "namespace": 1, "create_time": 1 });
    let reservations = client.database(&database).collection::<Document>("reservations");
    reservations.create_index(old.build()).await.unwrap();
    address.open(StoreClock::Own).await.unwrap().close().await;
    let database = client.database(&database);
    let mut found = BTreeSet::new();
    for name in database.list_collection_names().await.unwrap() {
        let indexes = database.collection::<Document>(&name).list_indexes().await.unwrap();
        for index in indexes.try_collect::<Vec<_>>().await.unwrap() {
            let options = index.options.unwrap_or_default();
            let ttl =
                options.expire_after.map_or_else(String::new, |after| format!(" ttl {after:?}"));
            let unique = if options.unique == Some(true) { " unique" } else { "" };
            found.insert(format!("{name} {}{ttl}{unique}", index.keys));
        }
    }
    let expected = [
        r#"counters { "_id": 1 }"#,
        r#"counters { "namespace": 1, "limit": 1, "window.end": 1, "_id": 1 }"#,
        r#"counters { "purge_at": 1 } ttl 0ns"#,
        r#"events { "_id": 1 }"#,
        r#"events { "namespace": 1, "reservation_id": 1, "time": -1, "_id": -1 }"#,
        r#"events { "namespace": 1, "subject": 1, "time": -1, "_id": -1 }"#,
        r#"events { "namespace": 1, "time": -1, "_id": -1 }"#,
        r#"events { "purge_at": 1 } ttl 0ns"#,
        r#"meta { "_id": 1 }"#,
        r#"policies { "_id": 1 }"#,
        r#"policies { "namespace": 1, "revision": -1 }"#,
        r#"refusals { "_id": 1 }"#,
        r#"refusals { "namespace": 1, "time": -1, "_id": -1 }"#,
        r#"reservations { "_id": 1 }"#,
        r#"reservations { "charges.counter": 1, "expire_time": 1 }"#,
        r#"reservations { "charges.series": 1, "create_time": 1, "_id": 1 }"#,
        r#"reservations { "namespace": 1, "create_time": 1, "_id": 1 }"#,
        r#"reservations { "purge_at": 1 } ttl 0ns"#,
        r#"resources { "_id": 1 }"#,
        r#"resources { "purge_at": 1 } ttl 0ns"#,
        r#"servers { "_id": 1 }"#,
        r#"servers { "beat": 1 } ttl 86400s"#,
        r#"subjects { "_id": 1 }"#,
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
    let refusals = database.list_collections().filter(doc! { "name": "refusals" }).await.unwrap();
    let refusals = refusals.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(
        (refusals[0].options.capped, refusals[0].options.size),
        (Some(true), Some(64 << 20))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_newer_program_is_refused() {
    let mongo = support::mongo();
    let database = mongo.fresh_database();
    let uri = mongo.uri_for(&database);
    MongoStore::connect(&uri).await.unwrap().close().await;
    let client = Client::with_uri_str(mongo.uri()).await.unwrap();
    let meta = client.database(&database).collection::<Document>("meta");
    let raise = doc! { "$set": { "version": 99_i64 } };
    meta.update_one(doc! { "_id": "schema" }, raise).await.unwrap();
    match MongoStore::connect(&uri).await {
        Err(ConnectError::Unfit(message)) => {
            assert!(message.contains("99") && message.contains("newer"), "{message}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was accepted"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_may_start_on_an_empty_database_at_once() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let starts = (0..6).map(|_| MongoStore::connect(&uri));
    for started in futures_util::future::join_all(starts).await {
        started.unwrap_or_else(|error| panic!("{error}")).close().await;
    }
}

/// Whatever the URI says, an acknowledged answer must survive.
#[tokio::test(flavor = "multi_thread")]
async fn a_weak_write_concern_in_the_uri_is_overruled() {
    let mongo = support::mongo();
    let database = mongo.fresh_database();
    let uri = mongo.uri_for(&database);
    let weak = format!("{uri}{}w=0", if uri.contains('?') { "&" } else { "?" });
    let (store, engine) = crate::within::engine(&weak, 5).await;
    engine.submit(crate::within::reserve("r"), None).await.unwrap();
    assert_eq!(crate::within::totals(&store).await, (0, 1));
}
