//! A shop: several limits at once, all of them or none.

use super::stage::{Stage, dimensions, usage_of};
use crate::cli::output::Failure;
use crate::proto::v1;

const POLICY: &str = include_str!("../../../deploy/policies/shop.yaml");
const STORY: &str = "shop";
const SHOP: &str = "shop";
const PHONE: &str = "+86 139 0000 0000";

/// Plays it.
pub(super) async fn play(stage: &mut Stage) -> Result<(), Failure> {
    let about = "SHOP. Game items: 3 a day and 10 a week for each account, by the calendar of \
                 Shanghai, and\neach item once in any 24 hours for each phone number.";
    stage.begin(about, POLICY).await?;
    stage.say("100 callers at once each try to buy one sword for user anna.")?;
    let rush = (1..=100).map(|n| order(&format!("rush-{n}"), "anna", None, &["sword"])).collect();
    stage.rush((STORY, "100 callers at once, 3 a day"), rush, 3).await?;
    one_phone(stage).await?;
    rolled_back(stage).await
}

async fn one_phone(stage: &mut Stage) -> Result<(), Failure> {
    stage.say("User ben orders a sword and a shield in one call, with his phone number.")?;
    let phone = Some(PHONE);
    let first = order("order-1", "ben", phone, &["sword", "shield"]);
    let step = "an order of two items";
    let _ = stage.one((STORY, step), first.clone(), true).await?;
    stage.say("His answer is lost; he sends the order again, under the same order id.")?;
    let again = stage.one((STORY, "the same order again"), first, true).await?;
    let replayed = i64::from(again.is_ok_and(|answer| answer.replayed));
    stage.expect("the same order again: replayed", 1, replayed);
    stage.commit(commit("order-1")).await?;
    stage.say("Another account, same phone: a bow and a shield. He gets neither.")?;
    let second = order("order-2", "carl", phone, &["bow", "shield"]);
    let step = "another account, same phone";
    let _ = stage.one((STORY, step), second, false).await?;
    stage.say("The bow alone is free.")?;
    let third = order("order-3", "carl", phone, &["bow"]);
    let _ = stage.one((STORY, "the bow alone"), third, true).await?;
    Ok(())
}

async fn rolled_back(stage: &mut Stage) -> Result<(), Failure> {
    stage.say("User dora orders three items; her payment fails, and the order is rolled back.")?;
    let items = ["helmet", "boots", "cape"];
    let order = order("order-4", "dora", None, &items);
    let _ = stage.one((STORY, "an order of three, rolled back"), order, true).await?;
    stage.release(SHOP, "order-4", "the payment failed").await?;
    let usage =
        usage_of(SHOP, "purchases", &[("user", "dora"), ("item", "helmet"), ("item_type", "game")]);
    let now = stage.usage(&usage).await?;
    let available = now.available.unwrap_or_default();
    stage.tell(&format!("used {}, held {}; available {available} of 3", now.used, now.held))?;
    stage.expect("items available after the rollback", 3, available);
    Ok(())
}

/// Asks for game items of a user; the order's id is the reservation's.
fn order(id: &str, user: &str, phone: Option<&str>, items: &[&str]) -> v1::ReserveRequest {
    let item = |name: &&str| v1::Item {
        metric: "purchases".to_owned(),
        amount: None,
        dimensions: dimensions(&[("item", name)]),
    };
    let mut shared = dimensions(&[("user", user), ("item_type", "game")]);
    shared.extend(phone.map(|phone| ("phone".to_owned(), phone.to_owned())));
    v1::ReserveRequest {
        namespace: SHOP.to_owned(),
        reservation_id: id.to_owned(),
        items: items.iter().map(item).collect(),
        dimensions: shared,
        ..v1::ReserveRequest::default()
    }
}

fn commit(id: &str) -> v1::CommitRequest {
    v1::CommitRequest {
        namespace: SHOP.to_owned(),
        reservation_id: id.to_owned(),
        ..v1::CommitRequest::default()
    }
}
