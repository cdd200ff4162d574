//! A blog on subscription: so many posts a billing period.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use super::stage::{Stage, dimensions, usage_of};
use crate::cli::output::Failure;
use crate::proto::v1;

const POLICY: &str = include_str!("../../../deploy/policies/blog.yaml");
const STORY: &str = "blog";
const BLOG: &str = "blog";
/// A user of the story.
const ANNA: &str = "42";
/// Another, of whom the server is told nothing.
const BEN: &str = "7";

/// Plays it.
pub(super) async fn play(stage: &mut Stage) -> Result<(), Failure> {
    let about = "BLOG. So many posts a billing period: free 3, basic 20, pro 100. The billing system \
                 tells\nwhich plan a user is on and when his periods begin and end.";
    stage.begin(about, POLICY).await?;
    let periods = Periods::around(stage.now(&usage(BEN)).await?);
    subscribed(stage, &periods).await?;
    upgraded(stage, &periods).await?;
    renewed(stage, &periods).await?;
    crashed(stage).await?;
    sent_twice(stage).await?;
    given_back(stage).await
}

/// A subscription from the 15th of one month to the 15th of the next, and what
/// follows when it is renewed before its end.
struct Periods {
    start: Timestamp,
    now: Timestamp,
    end: Timestamp,
}

impl Periods {
    fn around(now: Timestamp) -> Self {
        let today = now.to_zoned_datetime(TimeZone::UTC).date();
        let back = if today.day() >= 15 { 0.months() } else { 1.months() };
        let midnight = |date: Option<Date>| {
            let date = date.and_then(|date| date.to_zoned_datetime(TimeZone::UTC).ok());
            date.map_or(now, |midnight| midnight.timestamp())
        };
        let first = today.first_of_month().checked_sub(back).ok();
        let start = first.and_then(|first| first.checked_add(14.days()).ok());
        let end = start.and_then(|start| start.checked_add(1.month()).ok());
        Self { start: midnight(start), now, end: midnight(end) }
    }
}

async fn subscribed(stage: &mut Stage, periods: &Periods) -> Result<(), Failure> {
    let days = |at: Timestamp| at.to_zoned_datetime(TimeZone::UTC).strftime("%-d %B").to_string();
    let (from, to) = (days(periods.start), days(periods.end));
    stage.say(&format!("User 42 is on plan free, his period goes from {from} to {to} (UTC)."))?;
    stage.say("100 callers at once each try to publish one post for him.")?;
    stage.put(BLOG, anna("free", &[(periods.start, periods.end)])).await?;
    let step = "100 callers at once, plan free";
    stage.rush((STORY, step), posts(ANNA, "rush", 100), 3).await?;
    settled(stage, ANNA, 3).await?;
    stage.say("Later user 42 tries a fourth.")?;
    let step = "a fourth post";
    // The refusal is told, and that is all that comes of it.
    let _ = stage.one((STORY, step), post(ANNA, "fourth"), false).await?;
    stage.say("User 42 edits a post. An edit costs nothing, so nothing is asked for.")?;
    let used = stage.usage(&usage(ANNA)).await?.used;
    stage.tell(&format!("used is still {used} of 3"))?;
    stage.expect("posts used after an edit", 3, used);
    Ok(())
}

async fn upgraded(stage: &mut Stage, periods: &Periods) -> Result<(), Failure> {
    stage.say("The billing system tells of an upgrade to basic; 100 callers try again at once.")?;
    let period = [(periods.start, periods.end)];
    stage.put(BLOG, anna("basic", &period)).await?;
    let step = "100 callers at once, upgraded to basic";
    stage.rush((STORY, step), posts(ANNA, "upgraded", 100), 17).await?;
    settled(stage, ANNA, 20).await?;
    stage.say("And of a downgrade to free. What is used stays used.")?;
    stage.put(BLOG, anna("free", &period)).await?;
    let step = "one more, downgraded to free";
    let _ = stage.one((STORY, step), post(ANNA, "downgraded"), false).await?;
    Ok(())
}

async fn renewed(stage: &mut Stage, periods: &Periods) -> Result<(), Failure> {
    stage.say(
        "User 42 renews early: the billing system ends his period now and begins the next one.",
    )?;
    let renewed = [(periods.start, periods.now), (periods.now, periods.end)];
    stage.put(BLOG, anna("free", &renewed)).await?;
    let step = "100 callers at once, a new period";
    stage.rush((STORY, step), posts(ANNA, "renewed", 100), 3).await?;
    settled(stage, ANNA, 3).await
}

async fn crashed(stage: &mut Stage) -> Result<(), Failure> {
    stage.say(
        "User 7, unknown to the billing system, is on the default plan, free, and has calendar \
         months.\nHis backend holds a post for one second and crashes before it settles.",
    )?;
    let ttl = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    stage.crash_after(v1::ReserveRequest { ttl, ..post(BEN, "crashed") }).await?;
    stage.expires(&usage(BEN)).await?;
    settled(stage, BEN, 0).await
}

async fn sent_twice(stage: &mut Stage) -> Result<(), Failure> {
    stage.say("He publishes one; every answer is lost, so he sends each call twice, same id.")?;
    let mut replays = 0;
    for step in ["one post", "the same call again"] {
        let answer = stage.one((STORY, step), post(BEN, "retried"), true).await?;
        replays += i64::from(answer.is_ok_and(|answer| answer.replayed));
    }
    for _ in 0..2 {
        replays += i64::from(stage.commit(commit("retried")).await?);
    }
    let used = stage.usage(&usage(BEN)).await?.used;
    stage.tell(&format!("{replays} of 4 answers were replays; used {used}"))?;
    stage.expect("replayed answers", 2, replays);
    settled(stage, BEN, 1).await
}

async fn given_back(stage: &mut Stage) -> Result<(), Failure> {
    stage.say("He holds another, but cannot create the post, so he releases it.")?;
    let _ = stage.one((STORY, "a post, given back"), post(BEN, "given-up"), true).await?;
    let held = stage.usage(&usage(BEN)).await?.held;
    stage.release(BLOG, "given-up", "the post was not created").await?;
    let now = stage.usage(&usage(BEN)).await?;
    let available = now.available.unwrap_or_default();
    stage.tell(&format!("held {held}, then {}; available {available} of 3", now.held))?;
    stage.expect("posts held before the release", 1, held);
    settled(stage, BEN, 1).await
}

/// So much is used, and nothing is held any more.
async fn settled(stage: &mut Stage, user: &str, posts: i64) -> Result<(), Failure> {
    let now = stage.usage(&usage(user)).await?;
    stage.expect(&format!("posts used by user {user}"), posts, now.used);
    stage.expect(&format!("posts held by user {user}"), 0, now.held);
    Ok(())
}

fn anna(plan: &str, periods: &[(Timestamp, Timestamp)]) -> v1::Subject {
    let instant =
        |at: Timestamp| Some(prost_types::Timestamp { seconds: at.as_second(), nanos: 0 });
    let period = |&(start, end): &(Timestamp, Timestamp)| v1::BillingPeriod {
        id: String::new(),
        start_time: instant(start),
        end_time: instant(end),
    };
    let periods = periods.iter().map(period).collect();
    v1::Subject {
        kind: "user".to_owned(),
        id: ANNA.to_owned(),
        plan: plan.to_owned(),
        billing: Some(v1::Billing { periods, anchor: None, on_lapse: v1::OnLapse::Roll.into() }),
        ..v1::Subject::default()
    }
}

fn posts(user: &str, name: &str, count: u32) -> Vec<v1::ReserveRequest> {
    (1..=count).map(|n| post(user, &format!("{name}-{n}"))).collect()
}

/// Asks for one post.
fn post(user: &str, id: &str) -> v1::ReserveRequest {
    v1::ReserveRequest {
        namespace: BLOG.to_owned(),
        reservation_id: id.to_owned(),
        items: vec![v1::Item { metric: "posts".to_owned(), ..v1::Item::default() }],
        dimensions: dimensions(&[("user", user)]),
        ..v1::ReserveRequest::default()
    }
}

/// Books it, with the name of the post.
fn commit(id: &str) -> v1::CommitRequest {
    v1::CommitRequest {
        namespace: BLOG.to_owned(),
        reservation_id: id.to_owned(),
        resources: vec![format!("post/{id}")],
        ..v1::CommitRequest::default()
    }
}

fn usage(user: &str) -> v1::GetUsageRequest {
    usage_of(BLOG, "posts", &[("user", user)])
}
