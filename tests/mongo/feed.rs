//! The feed, from a real change stream.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::StreamExt as _;
use quota_authority::domain::name::SubjectKey;
use quota_authority::domain::policy::PolicySpec;
use quota_authority::domain::subject::Subject;
use quota_authority::engine::{Engine, Settings};
use quota_authority::store::mongo::MongoStore;
use quota_authority::store::{Changed, Feed, SharedStore};
use std::sync::Arc;

use crate::support::{self, ReplicaSet, eventually};
use crate::within::{NAMESPACE, engine, reserve};

const SOON: Duration = Duration::from_secs(30);

fn subject(id: &str) -> Subject {
    Subject {
        namespace: NAMESPACE.to_owned(),
        kind: "user".to_owned(),
        id: id.to_owned(),
        frozen: true,
        ..Subject::default()
    }
}

async fn next(feed: &mut Feed) -> Changed {
    let next = tokio::time::timeout(SOON, feed.next()).await.expect("something is told");
    next.expect("a feed never ends")
}

/// A feed that is known to be open: what is changed from now on is told.
async fn open_feed(store: &SharedStore, engine: &Engine) -> Feed {
    let mut feed = store.changes();
    let mut tries = 0;
    eventually(SOON, "the feed to be open", async || {
        tries += 1;
        let warm = subject(&format!("warm {tries}"));
        let key = warm.key();
        engine.put_subject(warm, "", "test").await.expect("it is put");
        let told = tokio::time::timeout(Duration::from_millis(500), feed.next()).await;
        (told.ok()?.expect("a feed never ends") == Changed::Subject(key)).then_some(())
    })
    .await;
    feed
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tells_of_policies_and_subjects_and_of_nothing_else() {
    let mongo = support::mongo();
    let database = mongo.fresh_database();
    let (store, engine) = engine(&mongo.uri_for(&database), 5).await;
    let mut feed = open_feed(&store, &engine).await;
    // Neither reservations nor counters.
    engine.submit(reserve("r"), None).await.unwrap();
    engine.put_subject(subject("a/b"), "", "test").await.unwrap();
    let key = SubjectKey::new(NAMESPACE, "user", "a/b");
    assert_eq!(next(&mut feed).await, Changed::Subject(key.clone()));
    engine.put_subject(Subject { frozen: false, ..subject("a/b") }, "", "test").await.unwrap();
    assert_eq!(next(&mut feed).await, Changed::Subject(key.clone()), "changed");
    let spec = engine.policy(NAMESPACE, 0).await.unwrap().spec;
    let spec = PolicySpec { namespace: "n/2".to_owned(), ..spec };
    engine.apply_policy(spec, 0, false, "test").await.unwrap();
    assert_eq!(next(&mut feed).await, Changed::Policy("n/2".to_owned()));
    // One that is taken away by hand, too.
    let client = mongo.client().await;
    let subjects = client.database(&database).collection::<Document>("subjects");
    subjects.delete_one(doc! { "_id": key.as_str() }).await.unwrap();
    assert_eq!(next(&mut feed).await, Changed::Subject(key));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_where_it_broke_off() {
    let set = ReplicaSet::start(1, &[]).await;
    let (store, engine) = engine(&set.uri_for("feed"), 5).await;
    let mut feed = open_feed(&store, &engine).await;
    set.member(0).kill9();
    set.restart(0).await;
    eventually(SOON, "a subject to be put", async || {
        engine.put_subject(subject("after"), "", "test").await.ok()
    })
    .await;
    let key = Changed::Subject(SubjectKey::new(NAMESPACE, "user", "after"));
    eventually(SOON, "the change to be told", async || {
        (next(&mut feed).await == key).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_follows_it_once_the_engine_is_gone() {
    let mongo = support::mongo();
    let uri = mongo.uri_for(&mongo.fresh_database());
    let store: SharedStore = Arc::new(MongoStore::connect(&uri).await.unwrap());
    let (engine, batches) = Engine::start(Arc::clone(&store), Settings::default());
    drop(engine);
    batches.await.unwrap();
    let alone = async || (Arc::strong_count(&store) == 1).then_some(());
    eventually(SOON, "everybody to let go of the store", alone).await;
}
