//! The blog: so many posts in each subscription period, by plan.

use quota_authority::api::Reason;

use super::bundled;
use crate::world::{Client, Denied, Owner, Reserve, World, at_once, bounds, cases, text, user, v1};

cases! {
    every_store: [story_everybody_publishes_at_once],
    manual_clock: [
        story_a_subscription_from_15_august,
        story_upgrades_and_downgrades,
        story_deletes_edits_and_imports,
        story_without_a_subscription,
    ],
}

const AUGUST: (&str, &str, &str) = ("in_1", "2024-08-15T00:00:00Z", "2024-09-15T00:00:00Z");
const SEPTEMBER: (&str, &str, &str) = ("in_2", "2024-09-15T00:00:00Z", "2024-10-15T00:00:00Z");

fn post(client: &Client, id: &str) -> Reserve {
    posts(client, id, 1)
}

fn posts(client: &Client, id: &str, count: i64) -> Reserve {
    client.reserve(id).item("posts", count).with("user", "42")
}

async fn usage(client: &Client) -> v1::LimitStatus {
    client.usage("posts", &[("user", "42")]).await.unwrap().remove(0)
}

/// What the billing system tells: plan, and this period and the next.
fn subscribed(plan: &str) -> Owner {
    user("42").plan(plan).periods(&[AUGUST, SEPTEMBER])
}

/// A hundred requests of a free user at once: three posts are created, each
/// with its name; the others see a refusal that says so.
async fn story_everybody_publishes_at_once(world: &mut World) {
    world.add_server().await;
    let client = bundled(world, "blog").await;
    let subscribed = user("42").plan("free");
    let period = ("", "2001-08-15T00:00:00Z", "2199-09-15T00:00:00Z");
    client.put(subscribed.periods(&[period])).await.unwrap();
    let clients = [client.clone(), world.client(1).within("blog")];
    let calls = (0..100).map(|n| {
        let client = clients[n % 2].clone();
        async move {
            let id = format!("request {n}");
            post(&client, &id).send().await?;
            let commit = client.settle(&id).resources(&[&format!("post/{n}")]);
            commit.commit().await
        }
    });
    let mut created = 0;
    for call in at_once(calls).await {
        match call {
            Ok(_) => created += 1,
            refused => {
                let refused = refused.denied(&["posts-per-period"]);
                assert_eq!(refused.metadata["max"], "3");
            }
        }
    }
    assert_eq!(created, 3);
    let status = usage(&client).await;
    assert_eq!((status.used, status.held, status.available), (3, 0, Some(0)));
}

async fn story_a_subscription_from_15_august(world: &mut World) {
    world.begin_at("2024-08-15T00:00:00Z").await;
    let client = bundled(world, "blog").await;
    client.put(subscribed("free")).await.unwrap();
    for n in 0..3 {
        let created = post(&client, &format!("august {n}")).committed().await.unwrap();
        let window = created.limits[0].window.as_ref();
        assert_eq!(bounds(window), (AUGUST.1.to_owned(), AUGUST.2.to_owned()));
    }
    // The month of the calendar ends; the period does not.
    for at in ["2024-08-15T00:00:01Z", "2024-09-01T00:00:00Z", "2024-09-14T23:59:59.999Z"] {
        world.set(at).await;
        let refused = post(&client, "fourth").send().await.denied(&["posts-per-period"]);
        assert_eq!(refused.metadata["retry_time"], "2024-09-15T00:00:00Z");
        assert_eq!(refused.metadata["used"], "3");
    }
    world.set("2024-09-15T00:00:00Z").await;
    post(&client, "fourth").committed().await.unwrap();
    let status = usage(&client).await;
    assert_eq!((status.used, status.available), (1, Some(2)));
    assert_eq!(bounds(status.window.as_ref()), (SEPTEMBER.1.to_owned(), SEPTEMBER.2.to_owned()));
    let august = client.usage_at("posts", &[("user", "42")], Some("2024-08-20T00:00:00Z")).await;
    assert_eq!(august.unwrap()[0].used, 3);
    // Nothing was told of the one after it: nobody publishes on a guess.
    world.set("2024-10-15T00:00:00Z").await;
    post(&client, "lapsed").send().await.refused(Reason::PeriodUnavailable);
}

async fn story_upgrades_and_downgrades(world: &mut World) {
    world.begin_at("2024-08-20T10:00:00Z").await;
    let client = bundled(world, "blog").await;
    client.put(subscribed("free")).await.unwrap();
    posts(&client, "free", 3).committed().await.unwrap();
    post(&client, "basic").send().await.denied(&["posts-per-period"]);
    // Up, in the middle of the period: at once, and what was used still is.
    client.put(subscribed("basic")).await.unwrap();
    post(&client, "basic").committed().await.unwrap();
    assert_eq!(usage(&client).await.available, Some(16));
    posts(&client, "to twenty", 16).committed().await.unwrap();
    post(&client, "pro").send().await.denied(&["posts-per-period"]);
    client.put(subscribed("pro")).await.unwrap();
    posts(&client, "pro", 40).committed().await.unwrap();
    post(&client, "held").send().await.unwrap();
    // Down: what is there stays, what is held is created, nothing new gets in.
    client.put(subscribed("free")).await.unwrap();
    let status = usage(&client).await;
    assert_eq!((status.used, status.held, status.available), (60, 1, Some(0)));
    client.commit("held").await.unwrap();
    let refused = post(&client, "after").send().await.denied(&["posts-per-period"]);
    assert_eq!(refused.metadata["retry_time"], AUGUST.2);
    assert_eq!(refused.metadata["max"], "3");
    // The new period is not exhausted by the old one.
    world.set(AUGUST.2).await;
    let status = usage(&client).await;
    assert_eq!((status.used, status.available), (0, Some(3)));
    posts(&client, "after", 3).committed().await.unwrap();
    post(&client, "fourth").send().await.denied(&["posts-per-period"]);
}

async fn story_deletes_edits_and_imports(world: &mut World) {
    world.begin_at("2024-08-20T10:00:00Z").await;
    let client = bundled(world, "blog").await;
    client.put(subscribed("free")).await.unwrap();
    // Somebody begins a post and thinks better of it: the slot is free again.
    posts(&client, "drafts", 3).send().await.unwrap();
    post(&client, "one more").send().await.denied(&["posts-per-period"]);
    client.release("drafts").await.unwrap();
    assert_eq!(usage(&client).await.available, Some(3));
    // The backend dies while it creates one: so it is after a minute.
    let crashed = posts(&client, "crashed", 2).send().await.unwrap();
    posts(&client, "import", 2).send().await.denied(&["posts-per-period"]);
    world.set(&text(crashed.reservation.unwrap().expire_time.as_ref())).await;
    // An import has no other door: it is counted like all else.
    posts(&client, "too many", 4).send().await.denied(&["posts-per-period"]);
    posts(&client, "import", 3).committed().await.unwrap();
    // An edit asks for nothing, and takes nothing.
    client
        .reserve("edit")
        .item("edits", 1)
        .with("user", "42")
        .send()
        .await
        .refused(Reason::MetricNotFound);
    assert_eq!(usage(&client).await.used, 3);
    // A call that does not say for whom is refused, not let through.
    let nobody = client.reserve("nobody").item("posts", 1).send().await;
    nobody.invalid(&["items[0].dimensions[user]"]);
    // Sent twice, it is created once.
    let again = posts(&client, "import", 3).send().await.unwrap();
    assert!(again.replayed);
    assert_eq!(usage(&client).await.used, 3);
}

async fn story_without_a_subscription(world: &mut World) {
    world.begin_at("2024-08-31T23:59:59Z").await;
    let client = bundled(world, "blog").await;
    posts(&client, "august", 3).committed().await.unwrap();
    let refused = post(&client, "september").send().await.denied(&["posts-per-period"]);
    assert_eq!(refused.metadata["retry_time"], "2024-09-01T00:00:00Z");
    world.set("2024-09-01T00:00:00Z").await;
    post(&client, "september").committed().await.unwrap();
    // He subscribes: his own period begins, and is fresh.
    client.put(subscribed("basic")).await.unwrap();
    let status = usage(&client).await;
    assert_eq!((status.used, status.available), (0, Some(20)));
    assert_eq!(bounds(status.window.as_ref()).0, AUGUST.1);
}
