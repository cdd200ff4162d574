//! The deployment, the collections and their indexes.
//!
//! Whatever identifies a record is its `_id`, one string, so that uniqueness
//! also holds on a cluster sharded by hashed `_id`. There is no index on a
//! field that changes when a reservation is committed: measured, a partial
//! index on the holds of a counter halves throughput.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, IndexOptions, ServerAddress};
use mongodb::{Client, Database, IndexModel};

use tokio::time::timeout;

use super::{ConnectError, error, list, trail, unreachable};
use crate::store::Retention;

/// The layout of the documents; raised when an older program could not read
/// or would damage what a newer one writes.
const SCHEMA_VERSION: i64 = 1;
/// How long a host may take to say what it is.
const HELLO: Duration = Duration::from_secs(5);

/// Refuses a deployment that cannot do transactions, with the way to mend it.
///
/// Asks each host by itself: a server that is in no replica set, or in one that
/// was never initiated, is no candidate for the driver's own selection.
pub(super) async fn check_deployment(options: &ClientOptions) -> Result<(), ConnectError> {
    let mut last = ConnectError::Unreachable("the URI names no host".to_owned());
    for host in &options.hosts {
        match hello(options, host).await {
            Ok(reply) => return fit(&reply, host),
            Err(error) if matches!(*error.kind, ErrorKind::Authentication { .. }) => {
                return Err(ConnectError::Unfit(format!("{host}: {}", error::brief(&error))));
            }
            Err(error) => {
                last = ConnectError::Unreachable(format!("{host}: {}", error::brief(&error)));
            }
        }
    }
    Err(last)
}

async fn hello(options: &ClientOptions, host: &ServerAddress) -> mongodb::error::Result<Document> {
    let mut direct = options.clone();
    direct.hosts = vec![host.clone()];
    direct.repl_set_name = None;
    direct.load_balanced = None;
    direct.direct_connection = Some(true);
    let client = Client::with_options(direct)?;
    // `ping` needs to be logged in, where `hello` does not: wrong credentials
    // show here and not at the first transaction.
    let ask = async {
        client.database("admin").run_command(doc! { "ping": 1 }).await?;
        client.database("admin").run_command(doc! { "hello": 1 }).await
    };
    let late = |_| Err(mongodb::error::Error::custom("no answer"));
    let reply = timeout(HELLO, ask).await.unwrap_or_else(late);
    client.shutdown().await;
    reply
}

fn fit(hello: &Document, host: &ServerAddress) -> Result<(), ConnectError> {
    let sharded = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
    if sharded || hello.contains_key("setName") {
        return Ok(());
    }
    let initiate = format!(
        "mongosh --host {host} --eval \
         'rs.initiate({{_id: \"rs0\", members: [{{_id: 0, host: \"{host}\"}}]}})'"
    );
    let message = if hello.get_bool("isreplicaset").unwrap_or(false) {
        format!("The replica set of MongoDB at {host} was never initiated. Run:\n\n  {initiate}\n")
    } else {
        format!(
            "MongoDB at {host} is a standalone server, which has no transactions. One node is \
             enough, but it must be a replica set. Start it with --replSet rs0 (or set \
             replication.replSetName: rs0 in mongod.conf), then run:\n\n  {initiate}\n"
        )
    };
    Err(ConnectError::Unfit(message))
}

/// Indexes that others have replaced: each that is left costs every write.
const REPLACED: [(&str, &str); 3] = [
    ("events", "namespace_1_time_-1"),
    ("reservations", "charges.counter_1_create_time_1"),
    ("reservations", "namespace_1_create_time_1"),
];

/// Creates collections and indexes that are missing, and checks the version
/// of what is there.
pub(super) async fn prepare(database: &Database) -> Result<(), ConnectError> {
    check_version(database).await?;
    let plain = |keys: Document| IndexModel::builder().keys(keys).build();
    let collections = [
        ("counters", vec![plain(list::COUNTERS.keys())]),
        ("reservations", list::RESERVATIONS.map(|index| plain(index.keys())).into()),
        ("resources", vec![]),
        ("subjects", vec![]),
        ("policies", vec![plain(doc! { "namespace": 1, "revision": -1 })]),
        ("events", trail::of_events()),
        ("refusals", trail::of_refusals()),
        ("servers", vec![]),
    ];
    for (name, indexes) in collections {
        // A transaction on a collection that does not exist would create it
        // under a lock that makes concurrent ones fail.
        let create = database.create_collection(name);
        let created = match name {
            "refusals" => create.capped(true).size(trail::REFUSALS).await,
            _ => create.await,
        };
        if let Err(error) = created
            && !error.to_string().contains("NamespaceExists")
        {
            return Err(unreachable(error));
        }
        for (_, replaced) in REPLACED.into_iter().filter(|(of, _)| *of == name) {
            drop_index(database, name, replaced).await.map_err(unreachable)?;
        }
        if !indexes.is_empty() {
            let collection = database.collection::<Document>(name);
            collection.create_indexes(indexes).await.map_err(unreachable)?;
        }
    }
    Ok(())
}

/// The indexes by which MongoDB removes what is due: collection, field, and how
/// long after the time in it.
const REMOVALS: [(&str, &str, Duration); 5] = [
    ("counters", "purge_at", Duration::ZERO),
    ("reservations", "purge_at", Duration::ZERO),
    ("resources", "purge_at", Duration::ZERO),
    ("events", "purge_at", Duration::ZERO),
    ("servers", "beat", Duration::from_hours(24)),
];

/// Creates those indexes; or drops them, since MongoDB goes by its own clock.
pub(super) async fn retain(
    database: &Database,
    retention: Retention,
) -> mongodb::error::Result<()> {
    for (name, field, after) in REMOVALS {
        let collection = database.collection::<Document>(name);
        match retention {
            Retention::Due => {
                let options = IndexOptions::builder().expire_after(after).build();
                let keys = doc! { field: 1 };
                let index = IndexModel::builder().keys(keys).options(options).build();
                collection.create_index(index).await?;
            }
            Retention::Nothing => drop_index(database, name, &format!("{field}_1")).await?,
        }
    }
    Ok(())
}

async fn drop_index(database: &Database, name: &str, index: &str) -> mongodb::error::Result<()> {
    match database.collection::<Document>(name).drop_index(index).await {
        Err(error) if !error.to_string().contains("IndexNotFound") => Err(error),
        _ => Ok(()),
    }
}

async fn check_version(database: &Database) -> Result<(), ConnectError> {
    let meta = database.collection::<Document>("meta");
    let ours = doc! { "$setOnInsert": { "version": SCHEMA_VERSION } };
    // Two servers that start at once may both try to insert; one of them
    // finds the other's document on the second attempt.
    for attempt in 0.. {
        match meta.update_one(doc! { "_id": "schema" }, ours.clone()).upsert(true).await {
            Ok(_) => break,
            Err(_) if attempt == 0 => {}
            Err(error) => return Err(unreachable(error)),
        }
    }
    let schema = meta.find_one(doc! { "_id": "schema" }).await.map_err(unreachable)?;
    let version = schema.and_then(|schema| schema.get_i64("version").ok());
    match version {
        Some(SCHEMA_VERSION) => Ok(()),
        Some(newer) if newer > SCHEMA_VERSION => Err(ConnectError::Unfit(format!(
            "The database {} has schema version {newer}, this program knows {SCHEMA_VERSION}: it \
             was used by a newer quotad. Run that version or a newer one.",
            database.name()
        ))),
        other => Err(ConnectError::Unfit(format!(
            "The database {} has an unknown schema version {other:?} in meta; this program knows \
             {SCHEMA_VERSION}.",
            database.name()
        ))),
    }
}
