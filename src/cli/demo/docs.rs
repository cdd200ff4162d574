//! Documents: one writer at a time.

use super::stage::{Stage, dimensions, usage_of};
use crate::cli::output::Failure;
use crate::proto::v1;

const POLICY: &str = include_str!("../../../deploy/policies/docs.yaml");
const STORY: &str = "docs";
const DOCS: &str = "docs";

/// Plays it.
pub(super) async fn play(stage: &mut Stage) -> Result<(), Failure> {
    let about = "DOCS. One writer at a time for each document: a lock is a limit of 1 whose \
                 reservations\nare held and released, and never committed.";
    stage.begin(about, POLICY).await?;
    stage.say("Writer A takes document 7; writer B tries.")?;
    let first = stage.one((STORY, "writer A"), lock("a-1", 2), true).await?;
    let _ = stage.one((STORY, "writer B meanwhile"), lock("b-1", 60), false).await?;
    stage.say("A works on and renews his lock. B waits for it, until A is done and lets go.")?;
    stage.extend(DOCS, "a-1", 60).await?;
    let waiting = stage.wait_for((STORY, "writer B waits"), waiting("b-1", 1));
    stage.someone_waits(&usage_of(DOCS, "edit", &[("doc", "7")])).await?;
    stage.release(DOCS, "a-1", "done").await?;
    let second = stage.granted(waiting).await?;
    stage.say("B crashes before he is done: his lock of 1 s lapses by itself.")?;
    let tokens = [first, second].map(|answer| answer.ok().as_ref().map_or(0, token));
    stage.tell(&format!("fencing tokens: A {}, then B {}", tokens[0], tokens[1]))?;
    stage.expect("tokens that grow", 1, i64::from(tokens[0] < tokens[1]));
    stage.expires(&usage_of(DOCS, "edit", &[("doc", "7")])).await?;
    stage.say("Writer C gets it; what B may still send carries an older token.")?;
    let _ = stage.one((STORY, "writer C"), lock("c-1", 60), true).await?;
    stage.release(DOCS, "c-1", "done").await
}

fn token(answer: &v1::ReserveResponse) -> i64 {
    let charges = answer.reservation.iter().flat_map(|reservation| &reservation.charges);
    charges.map(|charge| charge.fencing_token).max().unwrap_or_default()
}

/// Asks for document 7, and waits for it.
fn waiting(id: &str, seconds: i64) -> v1::ReserveRequest {
    let wait = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    v1::ReserveRequest { wait, ..lock(id, seconds) }
}

/// Asks for document 7.
fn lock(id: &str, seconds: i64) -> v1::ReserveRequest {
    v1::ReserveRequest {
        namespace: DOCS.to_owned(),
        reservation_id: id.to_owned(),
        items: vec![v1::Item { metric: "edit".to_owned(), ..v1::Item::default() }],
        dimensions: dimensions(&[("doc", "7")]),
        ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..v1::ReserveRequest::default()
    }
}
