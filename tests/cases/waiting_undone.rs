//! A grant that its caller does not live to hear of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::decide;
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::reservation::{DEFAULT_TTL, ItemRequest, Request};
use quota_authority::domain::time::Span;
use quota_authority::engine::{Engine, Settings};
use quota_authority::store::SharedStore;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::memory::MemoryStore;

use crate::support::eventually;
use crate::world::{Denied, PausedStore, START, World, instant, v1};

const SOON: Duration = Duration::from_secs(10);

fn reserve(id: &str, commit: bool) -> decide::Reserve {
    decide::Reserve {
        key: ReservationKey::new("case", id),
        request: Arc::new(Request {
            items: vec![ItemRequest {
                metric: "units".to_owned(),
                amount: 1,
                dimensions: BTreeMap::from([("user".to_owned(), "s".to_owned())]),
            }],
            ttl: DEFAULT_TTL,
            commit,
            resources: Vec::new(),
            labels: BTreeMap::new(),
            adjustment: false,
        }),
        principal: "test".to_owned(),
    }
}

/// A caller who goes right after his Reserve was written, and before he is
/// told.
async fn goes_too_soon(store: &SharedStore, id: &str, commit: bool, wait: Span) {
    let paused = PausedStore::new(Arc::clone(store));
    let (engine, _batches) = Engine::start(Arc::clone(&paused) as SharedStore, Settings::default());
    paused.arm_for_write();
    let call = tokio::spawn({
        let (engine, reserve) = (Arc::clone(&engine), reserve(id, commit));
        async move { engine.reserve(reserve, wait, None).await }
    });
    paused.reached().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    paused.release();
    // Whatever is undone is undone by now.
    let other = reserve("another", false);
    let _ = engine.submit(decide::Command::Reserve(other), None).await;
    engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_undone_and_its_id_is_free_again() {
    let clock = Clock::Manual(ManualClock::at(instant(START)));
    let store: SharedStore = Arc::new(MemoryStore::new(clock));
    World::over(Arc::clone(&store), Settings::default())
        .await
        .play(async |world: &mut World| {
            let client = world.cap(5).await;
            for (n, commit) in [false, true].into_iter().enumerate() {
                let id = format!("gone {n}");
                goes_too_soon(&store, &id, commit, Span::from_secs(60)).await;
                eventually(SOON, "it to be undone", async || client.reservation(&id).await.err())
                    .await;
                let other = client.take(&id, 3).send().await.unwrap();
                assert!(!other.replayed);
                client.release(&id).await.unwrap();
            }
            client.release("another").await.unwrap();
            assert_eq!(client.stands("cap").await, (0, 0, 5));
            // One that was not to wait is there for its caller to ask for.
            goes_too_soon(&store, "kept", false, Span::ZERO).await;
            assert_eq!(client.state("kept").await, v1::ReservationState::Held);
            client.take("kept", 2).send().await.refused(Reason::ReservationIdReused);
        })
        .await;
}
