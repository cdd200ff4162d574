//! Watching usage: every change is told, soon, and a watch ends for a reason.

use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::Span;
use quota_authority::engine::Settings;
use quota_authority::store::SharedStore;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::memory::MemoryStore;
use tonic::Streaming;

use crate::waiting::{LONG, waits};
use crate::world::{
    Client, Denied, Refused, Rules, START, World, cases, dims, instant, limit, user, v1,
};

cases! {
    every_store: [
        every_change_is_told,
        what_another_server_does_is_told,
        a_server_that_goes_says_so,
        b88_a_faulty_watch_is_refused_at_once,
    ],
    manual_clock: [what_lapses_is_told],
}

/// Enough for anything that is to happen at once, with every core busy.
const SOON: Duration = Duration::from_secs(10);

struct Watching(Streaming<v1::WatchUsageResponse>);

impl Watching {
    async fn of(client: &Client, user: &str) -> Result<Self, Refused> {
        let request = v1::WatchUsageRequest {
            namespace: client.namespace.clone(),
            metric: "units".to_owned(),
            dimensions: dims(&[("user", user)]),
        };
        Ok(Self(client.quota.clone().watch_usage(request).await?.into_inner()))
    }

    async fn next(&mut self) -> Result<v1::LimitStatus, Refused> {
        let next = tokio::time::timeout(SOON, self.0.message()).await.expect("news soon");
        let reading = next?.expect("a stream that ends says why");
        reading.read_time.expect("the time of the reading");
        Ok(reading.limits[0].clone())
    }

    /// Reads on until it says that.
    async fn until(&mut self, told: impl Fn(&v1::LimitStatus) -> bool) {
        let news = async { while !told(&self.next().await.expect("news")) {} };
        tokio::time::timeout(SOON, news).await.expect("it is told");
    }
}

async fn every_change_is_told(world: &mut World) {
    let client = world.cap(5).await;
    let mut watching = Watching::of(&client, "s").await.unwrap();
    let first = watching.next().await.unwrap();
    assert_eq!((first.used, first.held, first.available), (0, 0, Some(5)));
    client.take("a", 2).send().await.unwrap();
    let next = watching.next().await.unwrap();
    assert_eq!((next.used, next.held, next.available), (0, 2, Some(3)));
    // What others do is no news.
    client.reserve("other").item("units", 1).with("user", "t").send().await.unwrap();
    client.commit("a").await.unwrap();
    let next = watching.next().await.unwrap();
    assert_eq!((next.used, next.held, next.available), (2, 0, Some(3)));
    client.put(user("s").add("cap", 2, None)).await.unwrap();
    watching.until(|limit| limit.available == Some(5)).await;
    client.apply(Rules::of_units([limit("cap", "units").per(&["user"]).max(9)])).await.unwrap();
    watching.until(|limit| limit.available == Some(9)).await;
    client.take("all", 9).send().await.unwrap();
    let waiting = waits(&client, "W");
    watching.until(|limit| limit.waiting == 1).await;
    drop(waiting);
    watching.until(|limit| limit.waiting == 0).await;
}

async fn what_another_server_does_is_told(world: &mut World) {
    world.add_server().await;
    let client = world.cap(5).await;
    let mut watching = Watching::of(&world.client(1), "s").await.unwrap();
    assert_eq!(watching.next().await.unwrap().held, 0);
    for n in 1..=5 {
        client.take(&format!("{n}"), 1).send().await.unwrap();
        watching.until(|limit| limit.held == n).await;
    }
}

async fn a_server_that_goes_says_so(world: &mut World) {
    let client = world.cap(5).await;
    client.take("a", 2).send().await.unwrap();
    let mut watching = Watching::of(&client, "s").await.unwrap();
    assert_eq!(watching.next().await.unwrap().held, 2);
    drop(client);
    let begun = std::time::Instant::now();
    world.restart().await;
    assert!(begun.elapsed() < SOON, "a watch holds nothing up");
    let ended = watching.next().await.refused(Reason::StoreUnavailable);
    assert!(ended.message.contains("shutting down; call again"), "{}", ended.message);
}

async fn b88_a_faulty_watch_is_refused_at_once(world: &mut World) {
    let client = world.cap(5).await;
    client.take("a", 2).send().await.unwrap();
    let refused = |client: Client, user: &'static str| async move {
        Watching::of(&client, user).await.map(drop)
    };
    refused(client.clone(), "").await.invalid(&["dimensions[user]"]);
    refused(client.clone().within(""), "s").await.invalid(&["namespace"]);
    let nowhere = client.clone().within("nowhere");
    refused(nowhere, "s").await.refused(Reason::NamespaceNotFound);
}

async fn what_lapses_is_told(world: &mut World) {
    let client = world.cap(5).await;
    client.take("a", 2).ttl(Span::from_secs(2)).send().await.unwrap();
    let mut watching = Watching::of(&client, "s").await.unwrap();
    assert_eq!(watching.next().await.unwrap().held, 2);
    world.pass(Span::from_secs(3)).await;
    watching.until(|limit| limit.held == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_watch() {
    let clock = Clock::Manual(ManualClock::at(instant(START)));
    let store: SharedStore = std::sync::Arc::new(MemoryStore::new(clock));
    let settings = Settings { watchers: 1, ..Settings::default() };
    World::over(store, settings)
        .await
        .play(async |world: &mut World| {
            let client = world.cap(1).await;
            client.take("A", 1).wait(LONG).send().await.unwrap();
            let mut first = Watching::of(&client, "s").await.unwrap();
            first.next().await.unwrap();
            Watching::of(&client, "s").await.map(drop).refused(Reason::Overloaded);
            drop(first);
            crate::support::eventually(SOON, "the place to be free", async || {
                Watching::of(&client, "s").await.ok()
            })
            .await;
        })
        .await;
}
