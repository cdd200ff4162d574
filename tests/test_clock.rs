//! The test clock through gRPC, on the real binary: what it moves, who sees it,
//! and which stores it stays away from.

mod support;

#[path = "test_clock/calls.rs"]
mod calls;

use std::time::Duration;

use bson::{Document, doc};
use calls::{Client, Place, START, START_SECONDS, fault, reason};
use futures_util::TryStreamExt as _;
use prost_types::Duration as Span;
use quota_authority::proto::testing::v1 as testing;
use support::{Server, grpcurl};
use tonic::{Code, Request};

/// A hold runs out at its instant and no earlier; a month ends in one call.
async fn time_is_what_the_clock_says(place: Place) {
    let (_server, client) = place.server_with(&format!("--test-clock={START}")).await;
    assert_eq!(client.get().await, START_SECONDS);
    client.apply(2).await;
    client.reserve("used", true).await.expect("room");
    let held = client.reserve("held", false).await.expect("room");
    let expire_time = held.expire_time.expect("it expires");
    let span = (expire_time.seconds - START_SECONDS, expire_time.nanos);
    assert_eq!((span.0, held.create_time.map(|t| t.seconds)), (5, Some(START_SECONDS)));
    let before = client.advance(span.0, span.1 - 1_000_000).await.expect("it is moved");
    let before = before.expect("a time");
    assert_eq!((before.seconds, before.nanos), (expire_time.seconds, span.1 - 1_000_000));
    assert_eq!(reason(&client.reserve("no room", false).await.unwrap_err()), "QUOTA_EXCEEDED");
    assert_eq!(client.advance(0, 1_000_000).await.expect("it is moved"), Some(expire_time));
    assert_eq!(reason(&client.commit("held").await.unwrap_err()), "RESERVATION_EXPIRED");
    client.reserve("its room", true).await.expect("room at that instant");
    assert_eq!(reason(&client.reserve("full", true).await.unwrap_err()), "QUOTA_EXCEEDED");
    client.advance(10, 0).await.expect("it is moved");
    client.reserve("next month", true).await.expect("a month of its own");
    client.set(START_SECONDS + 366 * 86_400).await.expect("it is set");
    client.reserve("next year", true).await.expect("a month of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_is_what_the_clock_says_in_memory() {
    time_is_what_the_clock_says(Place::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_is_what_the_clock_says_embedded() {
    time_is_what_the_clock_says(Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_is_what_the_clock_says_on_mongo() {
    time_is_what_the_clock_says(Place::mongo()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_move_is_refused_by_field_and_bound() {
    let (_server, client) = Place::Memory.server_with(&format!("--test-clock={START}")).await;
    let (field, says) = fault(&client.set(START_SECONDS - 1).await.unwrap_err());
    assert_eq!(field, "time");
    assert!(says.contains(START) && says.contains("never set back"), "{says}");
    let (field, says) = fault(&client.advance(300_000_000_000, 0).await.unwrap_err());
    assert_eq!(field, "duration");
    assert!(says.contains("beyond the year 9999") && says.contains(START), "{says}");
    for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MAX, 0)] {
        assert_eq!(fault(&client.advance(seconds, nanos).await.unwrap_err()).0, "duration");
    }
    assert_eq!(fault(&client.set(253_402_300_800).await.unwrap_err()).0, "time");
    let nothing = client.clock.clone().set(testing::SetRequest { time: None }).await;
    assert_eq!(fault(&nothing.unwrap_err()), ("time".to_owned(), "must be given".to_owned()));
    let nothing = client.clock.clone().advance(testing::AdvanceRequest { duration: None }).await;
    assert_eq!(fault(&nothing.unwrap_err()).0, "duration");
    assert_eq!(client.get().await, START_SECONDS, "it stands where it stood");
}

/// What one server was told, the very next call of another obeys.
#[tokio::test(flavor = "multi_thread")]
async fn servers_on_one_database_share_the_clock() {
    let place = Place::mongo();
    let (_one, one) = place.server_with(&format!("--test-clock={START}")).await;
    let (_other, other) = place.server_with("--test-clock").await;
    assert_eq!(other.get().await, START_SECONDS);
    one.apply(1).await;
    other.reserve("first", true).await.expect("room");
    for month in 1..=12 {
        let id = format!("month {month}");
        assert_eq!(reason(&other.reserve(&id, true).await.unwrap_err()), "QUOTA_EXCEEDED");
        one.advance(31 * 86_400, 0).await.expect("it is moved");
        other.reserve(&id, true).await.unwrap_or_else(|status| panic!("{id}: {status}"));
    }
    let moves = (0..20).map(|n| {
        let client = if n % 2 == 0 { one.clone() } else { other.clone() };
        async move { client.advance(1, 0).await.expect("it is moved") }
    });
    let before = one.get().await;
    futures_util::future::join_all(moves).await;
    assert_eq!((one.get().await, other.get().await), (before + 20, before + 20), "each counts");
    other.set(before + 19).await.expect_err("never back, whoever moved it");
}

/// A second of the test clock is a second: what one server was given, another
/// looks up again.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_in_force_elsewhere_a_second_of_the_clock_later() {
    let place = Place::mongo();
    let (_one, one) = place.server_with(&format!("--test-clock={START}")).await;
    let (_other, other) = place.server_with("--test-clock").await;
    for max in 1..=20 {
        one.apply(max).await;
        one.advance(1, 0).await.expect("it is moved");
        assert_eq!(other.max().await, Some(max));
    }
}

async fn a_restart_keeps_the_time(place: Place) {
    let (mut server, client) = place.server_with(&format!("--test-clock={START}")).await;
    client.apply(2).await;
    client.advance(3600, 0).await.expect("it is moved");
    client.reserve("r", true).await.expect("room");
    drop(client);
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());

    // Refused without the flag, under the name of what would be right.
    let log = place.refused(&[]).await;
    assert!(log.contains("2024-02-01T00:59:50Z") && log.contains("--test-clock"), "{log}");

    let (mut server, client) = place.server_with("--test-clock").await;
    assert_eq!(client.get().await, START_SECONDS + 3600);
    client.reserve("r", true).await.expect("a replay");
    drop(client);
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());

    // An earlier instant is noted and not obeyed; a later one is.
    let (mut server, client) = place.server_with(&format!("--test-clock={START}")).await;
    assert_eq!(client.get().await, START_SECONDS + 3600);
    assert!(server.log().contains("never set back"), "{}", server.log());
    assert!(server.log().contains("a test clock is in use"), "{}", server.log());
    drop(client);
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());
    let (_server, client) = place.server_with("--test-clock=2030-01-01T00:00:00Z").await;
    assert_eq!(client.get().await, 1_893_456_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_time_embedded() {
    a_restart_keeps_the_time(Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_time_on_mongo() {
    a_restart_keeps_the_time(Place::mongo()).await;
}

async fn a_store_of_the_real_clock_is_refused(place: Place) {
    let (mut server, client) = place.server_with("--log=info").await;
    client.apply(2).await;
    let unimplemented = client.set(START_SECONDS).await.unwrap_err();
    assert_eq!(unimplemented.code(), Code::Unimplemented, "not served without the flag");
    client.reserve("r", true).await.expect("room");
    drop(client);
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());
    let log = place.refused(&["--test-clock"]).await;
    assert!(log.contains("use an empty database or folder"), "{log}");
    // Refusing left no clock behind.
    place.server_with("--log=info").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_the_real_clock_is_refused_embedded() {
    a_store_of_the_real_clock_is_refused(Place::embedded()).await;
}

/// How many indexes remove records by MongoDB's own clock.
async fn removing_indexes(uri: &str) -> usize {
    let client = mongodb::Client::with_uri_str(uri).await.expect("a sound URI");
    let database = client.default_database().expect("the URI names one");
    let mut found = 0;
    for name in database.list_collection_names().await.expect("its collections") {
        let indexes = database.collection::<Document>(&name).list_indexes().await.expect("indexes");
        let indexes: Vec<_> = indexes.try_collect().await.expect("indexes");
        let expires = |index: &&mongodb::IndexModel| {
            index.options.as_ref().is_some_and(|options| options.expire_after.is_some())
        };
        found += indexes.iter().filter(expires).count();
    }
    found
}

/// Of counters, reservations, resources, events and servers.
const REMOVING: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_real_clock_is_refused_and_keeps_its_retention() {
    let place = Place::mongo();
    let uri = place.store();
    a_store_of_the_real_clock_is_refused(place).await;
    assert_eq!(removing_indexes(&uri).await, REMOVING);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_by_the_real_clock_under_a_test_clock() {
    let place = Place::mongo();
    // Used, though nothing was reserved: its indexes are there.
    place.server_with("--log=info").await;
    assert_eq!(removing_indexes(&place.store()).await, REMOVING);
    place.refused(&[&format!("--test-clock={START}")]).await;
    assert_eq!(removing_indexes(&place.store()).await, REMOVING);
    // Without the mark of its clock, as a store that was made before there were
    // any: nothing is dated in it, so the test clock may have it.
    let mongo = mongodb::Client::with_uri_str(place.store()).await.expect("a sound URI");
    let meta = mongo.default_database().expect("the URI names one").collection::<Document>("meta");
    meta.delete_one(doc! { "_id": "real_clock" }).await.expect("meta");
    let (_server, client) = place.server_with(&format!("--test-clock={START}")).await;
    assert_eq!(removing_indexes(&place.store()).await, 0);
    client.apply(1).await;
    client.reserve("r", false).await.expect("room");
    // Years ago by MongoDB's clock; a readable clock beside it.
    let clock = meta.find_one(doc! { "_id": "test_clock" }).await.expect("meta");
    let time = clock.and_then(|clock| clock.get_datetime("time").ok().copied());
    assert_eq!(time.map(bson::DateTime::timestamp_millis), Some(START_SECONDS * 1000));
    // Refusing a server without the flag makes no index either.
    place.refused(&[]).await;
    assert_eq!(removing_indexes(&place.store()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_may_be_asked_for_by_the_environment_and_begins_at_the_present() {
    let env = [("QUOTAD_TEST_CLOCK", "now")];
    let server = Server::start(&["--store", "memory"], &env).await;
    let client = Client::of(&server).await;
    let time = client.get().await;
    assert!(time > 1_700_000_000, "{time}");
    assert_eq!(client.get().await, time, "it stands still");
    let mut wrong = Server::spawn(&["--store", "memory"], &[("QUOTAD_TEST_CLOCK", "yesterday")]);
    assert_eq!(wrong.wait_exit(Duration::from_secs(30)).await.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_described_and_healthy_where_it_is_served_and_unknown_elsewhere() {
    let (server, _client) = Place::Memory.server_with("--test-clock").await;
    let service = "quota.testing.v1.TestClockService";
    let address = server.address().to_string();
    let listed = grpcurl(&["-plaintext", &address, "list"]);
    assert!(listed.stdout.contains(service), "{listed:?}");
    let asked = format!("{{\"service\":\"{service}\"}}");
    let health = grpcurl(&["-plaintext", "-d", &asked, &address, "grpc.health.v1.Health/Check"]);
    assert!(health.stdout.contains("SERVING"), "{health:?}");
    let (server, _client) = Place::Memory.server_with("--log=info").await;
    let listed = grpcurl(&["-plaintext", &server.address().to_string(), "list"]);
    assert!(listed.stdout.contains("quota.v1.QuotaService"), "{listed:?}");
    assert!(!listed.stdout.contains(service), "{listed:?}");
}

/// A caller who is about to go hears so, rather than his own deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_obeys_its_deadline() {
    let set = support::ReplicaSet::start(1, &[]).await;
    let store = support::with_database(&set.uri(), "quotad");
    let server = Server::start(&["--store", &store, "--test-clock"], &[]).await;
    let mut client = Client::of(&server).await;
    set.member(0).stop();
    let mut call =
        Request::new(testing::AdvanceRequest { duration: Some(Span { seconds: 1, nanos: 0 }) });
    call.set_timeout(Duration::from_secs(1));
    let late = client.clock.advance(call).await.unwrap_err();
    set.member(0).cont();
    assert_eq!(late.code(), Code::Unavailable, "{late}");
    assert_eq!(reason(&late), "OUTCOME_UNKNOWN");
    assert!(late.message().contains("Get tells"), "{late}");
}
