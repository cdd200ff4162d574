//! The shop: several limits at once, in the shop's own time zone, and orders
//! that are whole or not at all.

use quota_authority::api::Reason;

use super::bundled;
use crate::world::{Client, Denied, Reserve, World, at_once, cases, user, v1};

cases! {
    every_store: [story_an_order_is_whole_or_not, story_everybody_wants_the_last_one],
    manual_clock: [
        story_midnight_in_shanghai,
        story_ten_a_week,
        story_one_for_each_phone,
        story_a_device_is_observed,
    ],
}

/// An order of one of each item, with the type of each.
fn order(client: &Client, id: &str, user: &str, items: &[(&str, &str)]) -> Reserve {
    let order = client.reserve(id).with("user", user);
    items.iter().fold(order, |order, &(item, kind)| {
        order.item_of("purchases", 1, &[("item", item), ("item_type", kind)])
    })
}

fn game(client: &Client, id: &str, user: &str) -> Reserve {
    order(client, id, user, &[("sword", "game")])
}

/// Where a limit stands for user 42, who buys a sword: used, held.
async fn stands(client: &Client, limit: &str, more: &[(&str, &str)]) -> (i64, i64) {
    let mut dimensions = vec![("user", "42"), ("item", "sword"), ("item_type", "game")];
    dimensions.extend(more);
    let limits: Vec<v1::LimitStatus> = client.usage("purchases", &dimensions).await.unwrap();
    let status = limits.iter().find(|status| status.limit == limit).expect("the limit");
    (status.used, status.held)
}

async fn story_midnight_in_shanghai(world: &mut World) {
    // One minute to midnight of a Wednesday there.
    world.begin_at("2024-05-15T15:59:00Z").await;
    let client = bundled(world, "shop").await;
    for n in 0..3 {
        game(&client, &format!("wednesday {n}"), "42").committed().await.unwrap();
    }
    for at in ["2024-05-15T15:59:00Z", "2024-05-15T15:59:59.999Z"] {
        world.set(at).await;
        let refused = game(&client, "fourth", "42").send().await.denied(&["game-daily"]);
        assert_eq!(refused.metadata["retry_time"], "2024-05-15T16:00:00Z");
    }
    // Other users and other goods are not concerned.
    game(&client, "other", "7").committed().await.unwrap();
    order(&client, "book", "42", &[("book", "paper")]).committed().await.unwrap();
    world.set("2024-05-15T16:00:00Z").await;
    game(&client, "fourth", "42").committed().await.unwrap();
    // Midnight in London is nothing here.
    for n in 0..2 {
        game(&client, &format!("thursday {n}"), "42").committed().await.unwrap();
    }
    world.set("2024-05-16T00:00:00Z").await;
    game(&client, "fifth", "42").send().await.denied(&["game-daily"]);
    // Who has paid for it has no limit a day.
    client.put(user("42").plan("vip")).await.unwrap();
    game(&client, "fifth", "42").committed().await.unwrap();
}

async fn story_ten_a_week(world: &mut World) {
    // Monday has just begun there.
    world.begin_at("2024-05-12T16:00:00Z").await;
    let client = bundled(world, "shop").await;
    let mut bought = 0;
    for day in ["2024-05-12", "2024-05-13", "2024-05-14", "2024-05-15"] {
        world.set(&format!("{day}T16:00:00Z")).await;
        while bought < 10
            && game(&client, &format!("{day} {bought}"), "42").at_once().send().await.is_ok()
        {
            bought += 1;
        }
    }
    assert_eq!(bought, 10);
    assert_eq!(stands(&client, "game-weekly", &[]).await, (10, 0));
    assert_eq!(stands(&client, "game-daily", &[]).await, (1, 0));
    for at in ["2024-05-15T16:00:00Z", "2024-05-19T00:00:00Z", "2024-05-19T15:59:59.999Z"] {
        world.set(at).await;
        let refused = game(&client, "eleventh", "42").send().await.denied(&["game-weekly"]);
        assert_eq!(refused.metadata["retry_time"], "2024-05-19T16:00:00Z");
    }
    world.set("2024-05-19T16:00:00Z").await;
    game(&client, "eleventh", "42").committed().await.unwrap();
    assert_eq!(stands(&client, "game-weekly", &[]).await, (1, 0));
}

async fn story_an_order_is_whole_or_not(world: &mut World) {
    let client = bundled(world, "shop").await;
    let four = [("sword", "game"), ("shield", "game"), ("helmet", "game"), ("boots", "game")];
    let refused = order(&client, "order 1", "42", &four).send().await.denied(&["game-daily"]);
    assert_eq!(refused.metadata["requested"], "4");
    for limit in ["game-daily", "game-weekly", "purchases-per-minute"] {
        assert_eq!(stands(&client, limit, &[]).await, (0, 0), "{limit}");
    }
    // Fewer, under the same order id: nothing was made of the first.
    let two = [("sword", "game"), ("shield", "game"), ("book", "paper")];
    let made = order(&client, "order 1", "42", &two).send().await.unwrap();
    assert_eq!(made.reservation.unwrap().items.len(), 3);
    assert_eq!(stands(&client, "game-daily", &[]).await, (0, 2));
    // The same order again takes nothing twice; another one by that id is none.
    assert!(order(&client, "order 1", "42", &two).send().await.unwrap().replayed);
    assert_eq!(stands(&client, "game-daily", &[]).await, (0, 2));
    order(&client, "order 1", "42", &four).send().await.refused(Reason::ReservationIdReused);
    order(&client, "order 1", "7", &two).send().await.refused(Reason::ReservationIdReused);
    // A book alone would pass; with two swords it does not.
    let with_two = [("book", "paper"), ("sword", "game"), ("axe", "game")];
    order(&client, "order 2", "42", &with_two).send().await.denied(&["game-daily"]);
    order(&client, "order 2", "42", &with_two[..1]).committed().await.unwrap();
    // Payment fails: the whole order is rolled back, everywhere.
    client.release("order 1").await.unwrap();
    for limit in ["game-daily", "game-weekly"] {
        assert_eq!(stands(&client, limit, &[]).await, (0, 0), "{limit}");
    }
    order(&client, "order 3", "42", &four[..3]).committed().await.unwrap();
    order(&client, "order 1", "42", &two).send().await.refused(Reason::AlreadyReleased);
}

/// Each wants two; there is room for one such order and a half.
async fn story_everybody_wants_the_last_one(world: &mut World) {
    world.add_server().await;
    let client = bundled(world, "shop").await;
    let clients = [client.clone(), world.client(1).within("shop")];
    let calls = (0..40).map(|n| {
        let client = clients[n % 2].clone();
        let items = [("sword", "game"), ("shield", "game")];
        async move { order(&client, &format!("{n}"), "42", &items).at_once().send().await }
    });
    let admitted = at_once(calls).await.into_iter().flatten().count();
    assert_eq!(admitted, 1);
    assert_eq!(stands(&client, "game-daily", &[]).await, (2, 0));
    game(&client, "one", "42").committed().await.unwrap();
    game(&client, "two", "42").send().await.refused(Reason::QuotaExceeded);
}

async fn story_one_for_each_phone(world: &mut World) {
    world.begin_at("2024-05-15T01:02:03.004Z").await;
    let client = bundled(world, "shop").await;
    let by_phone = |id: &str, user: &str| game(&client, id, user).with("phone", "+86 1");
    by_phone("a", "42").committed().await.unwrap();
    // A second account with the same phone.
    let refused = by_phone("b", "7").send().await.denied(&["item-per-phone"]);
    assert_eq!(refused.metadata["key"], "item=sword phone=+86 1");
    assert_eq!(refused.metadata["retry_time"], "2024-05-16T01:02:03.004Z");
    // Of its own limits nothing was taken; another item or phone is free.
    let seven = [("user", "7"), ("item", "sword"), ("item_type", "game")];
    let limits = client.usage("purchases", &seven).await.unwrap();
    assert!(limits.iter().all(|status| status.used == 0 && status.held == 0), "{limits:?}");
    let other = order(&client, "c", "7", &[("shield", "game")]).with("phone", "+86 1");
    other.committed().await.unwrap();
    game(&client, "d", "7").with("phone", "+86 2").committed().await.unwrap();
    // Who gives no phone is still held to the rest.
    game(&client, "e", "7").committed().await.unwrap();
    game(&client, "f", "7").send().await.denied(&["game-daily"]);
    // Not at midnight, but 24 hours after it was bought.
    for at in ["2024-05-15T16:00:00Z", "2024-05-16T01:02:03.003Z"] {
        world.set(at).await;
        by_phone("b", "7").send().await.denied(&["item-per-phone"]);
    }
    world.set("2024-05-16T01:02:03.004Z").await;
    by_phone("b", "7").committed().await.unwrap();
    by_phone("g", "42").send().await.denied(&["item-per-phone"]);
}

async fn story_a_device_is_observed(world: &mut World) {
    world.begin_at("2024-05-15T01:00:00Z").await;
    let client = bundled(world, "shop").await;
    let on_device =
        |id: &str, user: &str| order(&client, id, user, &[("book", "paper")]).with("device", "d");
    // One device, many accounts: seen, and not refused.
    for n in 0..25 {
        on_device(&format!("{n}"), &format!("user {n}")).at_once().send().await.unwrap();
    }
    let dimensions = [("user", "9"), ("item", "book"), ("item_type", "paper"), ("device", "d")];
    let check = client.check(&[("purchases", 1)], &dimensions).await.unwrap();
    assert!(check.admitted);
    let of_device = |limits: &[v1::LimitStatus]| {
        limits.iter().find(|status| status.limit == "purchases-per-device").cloned().unwrap()
    };
    let status = of_device(&check.limits);
    assert!(status.exceeded && !status.enforced);
    assert_eq!((status.used, status.available), (25, Some(0)));
    // One account that is too fast is refused, and told when.
    for n in 0..30 {
        order(&client, &format!("fast {n}"), "42", &[("book", "paper")])
            .at_once()
            .send()
            .await
            .unwrap();
    }
    let refused = on_device("fast", "42").send().await.denied(&["purchases-per-minute"]);
    assert_eq!(refused.metadata["retry_time"], "2024-05-15T01:01:00Z");
    world.set("2024-05-15T01:01:00Z").await;
    on_device("fast", "42").committed().await.unwrap();
    // Within one bucket of 24 minutes all return together, with the last.
    for (at, used) in [("2024-05-16T01:00:59.999Z", 26), ("2024-05-16T01:01:00Z", 0)] {
        world.set(at).await;
        let usage = client.usage("purchases", &dimensions).await.unwrap();
        assert_eq!(of_device(&usage).used, used, "{at}");
    }
}
