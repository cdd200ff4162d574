//! The trail: what happened, what was refused, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quota_authority::api::Reason;
use quota_authority::domain::time::{Span, Time};
use quota_authority::engine::Settings;

use crate::support;
use crate::world::{Client, Denied, Rules, World, cases, limit, user, v1};

cases! {
    every_store: [
        b89_every_step_of_every_kind,
        b89_every_refusal_has_its_reason,
        b89_pages_of_every_size,
        b89_pages_of_many_reservations,
        b89_pages_while_others_write,
        b89_filters,
        b89_what_is_asked_wrongly,
        b89_after_a_restart,
    ],
}

/// How long a refusal may take to be in the trail.
const SOON: Duration = Duration::from_secs(20);

/// Limits of which one counts by user, one all, and one something else.
fn rules() -> Rules {
    Rules::of_units([limit("each", "units").per(&["user"]).max(9), limit("all", "units").max(30)])
        .metric("edits", &["doc"])
        .limits([limit("writer", "edits").per(&["doc"]).max(5)])
}

fn time(event: &v1::Event) -> Time {
    let at = event.time.expect("a time");
    quota_authority::api::times::time("time", at).expect("a time")
}

/// Kind and reservation of each.
fn told(events: &[v1::Event]) -> Vec<(&str, &str)> {
    events.iter().map(|e| (e.kind.as_str(), e.reservation_id.as_str())).collect()
}

/// Used and held of each limit that it changed.
fn deltas(event: &v1::Event) -> BTreeMap<&str, (i64, i64)> {
    event.changes.iter().map(|c| (c.limit.as_str(), (c.used_delta, c.held_delta))).collect()
}

fn of(client: &Client, id: &str) -> v1::ListEventsRequest {
    v1::ListEventsRequest { reservation_id: id.to_owned(), ..client.all_events() }
}

/// Waits until the trail has so many refusals.
async fn refusals(client: &Client, count: usize) -> Vec<v1::Event> {
    support::eventually(SOON, "the refusals in the trail", async || {
        let mut events = client.events(&client.all_events()).await;
        events.retain(|event| event.kind == "refused");
        (events.len() == count).then_some(events)
    })
    .await
}

async fn b89_every_step_of_every_kind(world: &mut World) {
    let client = world.rules(rules()).await;
    client.put_on_plan("user", "s", "").await.unwrap();
    client.take("lapses", 3).ttl(Span::from_secs(1)).send().await.unwrap();
    world.pass(Span::from_millis(1200)).await;
    client.take("used", 2).send().await.unwrap();
    client.commit_some("used", &[1]).await.unwrap();
    client.take("back", 2).committed().await.unwrap();
    client.refund("back", "first").amounts(&[1]).because("broken").send().await.unwrap();
    client.take("gone", 4).send().await.unwrap();
    client.settle("gone").release_with("no longer wanted", false).await.unwrap();
    client.take("at once", 1).at_once().send().await.unwrap();
    client.take("denied", 40).send().await.denied(&["each", "all"]);
    client.apply(rules().limits([limit("more", "edits").max(1)])).await.unwrap();
    let refused = refusals(&client, 1).await;

    let lapsed = client.events(&of(&client, "lapses")).await;
    assert_eq!(told(&lapsed), [("expired", "lapses"), ("reserved", "lapses")]);
    let three = |sign: i64| BTreeMap::from([("all", (0, 3 * sign)), ("each", (0, 3 * sign))]);
    assert_eq!((deltas(&lapsed[0]), deltas(&lapsed[1])), (three(-1), three(1)));
    let reservation = client.reservation("lapses").await.unwrap();
    assert_eq!(lapsed[0].time, reservation.expire_time, "an expiry is of its instant");
    assert_eq!(lapsed[0].principal, "", "nobody brought it about");
    for change in lapsed.iter().flat_map(|event| &event.changes) {
        let key = change.key.get("user").map(String::as_str);
        assert_eq!(key, (change.limit == "each").then_some("s"), "{change:?}");
    }

    let used = client.events(&of(&client, "used")).await;
    assert_eq!(told(&used), [("committed", "used"), ("reserved", "used")]);
    assert_eq!(deltas(&used[0]), BTreeMap::from([("all", (1, -2)), ("each", (1, -2))]));
    assert_eq!(used[0].details["amounts"], "units=1");
    assert_eq!((used[0].principal.as_str(), used[0].subject.as_str()), ("anonymous", "user/s"));
    let back = client.events(&of(&client, "back")).await;
    let steps = [("refunded", "back"), ("committed", "back"), ("reserved", "back")];
    assert_eq!(told(&back), steps);
    assert_eq!(deltas(&back[0]), BTreeMap::from([("all", (-1, 0)), ("each", (-1, 0))]));
    assert_eq!((&*back[0].reason, &*back[0].details["refund_id"]), ("broken", "first"));
    let gone = client.events(&of(&client, "gone")).await;
    assert_eq!((gone[0].kind.as_str(), gone[0].reason.as_str()), ("released", "no longer wanted"));
    let at_once = client.events(&of(&client, "at once")).await;
    assert_eq!(told(&at_once), [("committed", "at once"), ("reserved", "at once")]);
    assert_eq!(deltas(&at_once[0]), BTreeMap::from([("all", (1, 0)), ("each", (1, 0))]));

    assert_eq!(client.events(&of(&client, "denied")).await, refused);
    let [denied] = refused.as_slice() else { panic!("{refused:?}") };
    assert_eq!((denied.reason.as_str(), denied.subject.as_str()), ("QUOTA_EXCEEDED", "user/s"));
    let stood: Vec<_> =
        denied.limits.iter().map(|l| (l.limit.as_str(), l.used, l.held, l.requested)).collect();
    assert_eq!(stood, [("each", 3, 0, 40), ("all", 3, 0, 40)]);
    assert_eq!(
        (denied.details["call"].as_str(), &*denied.details["items"]),
        ("reserve", "units=40")
    );
    assert!(denied.details["message"].contains("quota exceeded"), "{denied:?}");

    // By subject: everything but the policies, and it adds up to the counters.
    let of_subject = v1::ListEventsRequest { subject: "user/s".to_owned(), ..client.all_events() };
    let of_subject = client.events(&of_subject).await;
    let all = client.events(&client.all_events()).await;
    let rest: Vec<_> = all.iter().filter(|event| event.kind != "policy applied").collect();
    assert_eq!(of_subject.iter().collect::<Vec<_>>(), rest);
    assert_eq!(all.len(), 2 + 1 + 4 * 2 + 3 + 1);
    assert!(all.is_sorted_by(|one, next| time(one) >= time(next)), "newest first");
    for limit in ["each", "all"] {
        let moved = of_subject.iter().filter_map(|event| deltas(event).get(limit).copied());
        let sums = moved.fold((0, 0), |(used, held), (u, h)| (used + u, held + h));
        let (used, held, _) = client.stands(limit).await;
        assert_eq!(sums, (used, held), "{limit}");
    }
    let put = all.iter().find(|event| event.kind == "subject put").unwrap();
    assert_eq!((put.subject.as_str(), put.principal.as_str()), ("user/s", "anonymous"));
    let applied: Vec<_> = all.iter().filter(|event| event.kind == "policy applied").collect();
    assert_eq!(applied.iter().map(|e| &*e.details["revision"]).collect::<Vec<_>>(), ["2", "1"]);
}

async fn b89_every_refusal_has_its_reason(world: &mut World) {
    let by_plan = limit("planned", "posts").per(&["user"]).by_plan(&[("pro", 5)]);
    let billed = limit("billed", "bills").per(&["user"]).max(5).billing();
    let narrow = limit("narrow", "edits").per(&["doc"]).only("doc", &["x"]).max(1);
    let policy = Rules::of_units([limit("each", "units").per(&["user"]).max(9)])
        .plans(&["pro"], "")
        .metric("posts", &["user"])
        .metric("bills", &["user"])
        .metric("edits", &["doc"])
        .limits([by_plan, billed, narrow]);
    let client = world.rules(policy).await;
    client.put(user("cold").frozen()).await.unwrap();
    let of_user = |id: &str, metric: &str, user: &str| {
        client.reserve(id).item(metric, 1).with("user", user).send()
    };
    client.take("used", 1).committed().await.unwrap();
    client.take("gone", 1).send().await.unwrap();
    client.release("gone").await.unwrap();
    client.take("held", 1).send().await.unwrap();

    of_user("frozen", "units", "cold").await.refused(Reason::SubjectFrozen);
    of_user("unplanned", "posts", "s").await.refused(Reason::UnknownPlan);
    of_user("unbilled", "bills", "s").await.refused(Reason::PeriodUnavailable);
    let free = client.reserve("free").item("edits", 1).with("doc", "y").send().await;
    free.refused(Reason::NoLimitApplies);
    of_user("unknown", "nothing", "s").await.refused(Reason::MetricNotFound);
    client.take("used", 2).send().await.refused(Reason::ReservationIdReused);
    client.commit("gone").await.refused(Reason::AlreadyReleased);
    client.release("used").await.refused(Reason::AlreadyCommitted);
    client.commit_some("held", &[7]).await.refused(Reason::AmountExceedsHold);
    client.commit("never made").await.refused(Reason::ReservationNotFound);
    client.extend("gone", Span::from_secs(60)).await.refused(Reason::AlreadyReleased);
    client.refund("held", "r").send().await.refused(Reason::NotCommitted);
    client.refund_of("post/1", "r").send().await.refused(Reason::ReservationNotFound);
    // Not by the rules, so not in the trail.
    client.take("invalid", -1).send().await.refused(Reason::InvalidField);
    client.reserve("lacks").item("units", 1).send().await.refused(Reason::InvalidField);

    let found = refusals(&client, 13).await;
    let mut reasons: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|e| (e.reservation_id.as_str(), e.details["call"].as_str(), e.reason.as_str()))
        .collect();
    reasons.sort_unstable();
    let expected = [
        ("", "refund", "RESERVATION_NOT_FOUND"),
        ("free", "reserve", "NO_LIMIT_APPLIES"),
        ("frozen", "reserve", "SUBJECT_FROZEN"),
        ("gone", "commit", "ALREADY_RELEASED"),
        ("gone", "extend", "ALREADY_RELEASED"),
        ("held", "commit", "AMOUNT_EXCEEDS_HOLD"),
        ("held", "refund", "NOT_COMMITTED"),
        ("never made", "commit", "RESERVATION_NOT_FOUND"),
        ("unbilled", "reserve", "PERIOD_UNAVAILABLE"),
        ("unknown", "reserve", "METRIC_NOT_FOUND"),
        ("unplanned", "reserve", "UNKNOWN_PLAN"),
        ("used", "release", "ALREADY_COMMITTED"),
        ("used", "reserve", "RESERVATION_ID_REUSED"),
    ];
    assert_eq!(reasons, expected);
    let by_limit = async |limit: &str| {
        let of = v1::ListEventsRequest { limit: limit.to_owned(), ..client.all_events() };
        let found = client.events(&of).await;
        found.into_iter().map(|event| event.reservation_id).collect::<Vec<_>>()
    };
    assert_eq!(by_limit("planned").await, ["unplanned"]);
    assert_eq!(by_limit("billed").await, ["unbilled"]);
    let frozen = found.iter().find(|event| event.reservation_id == "frozen").unwrap();
    assert_eq!(frozen.subject, "user/cold");
}

/// Twelve reservations of three owners with lives of every kind, policies,
/// subjects and refusals. Ids tell whose they are: `a-3`, `b-1`, `doc-2`.
async fn busy(world: &mut World) -> Client {
    let client = world.rules(rules()).await;
    for n in 0..4 {
        for owner in ["a", "b", "doc"] {
            let id = format!("{owner}-{n}");
            let call = match owner {
                "doc" => client.reserve(&id).item("edits", 1).with("doc", "doc"),
                owner => client.reserve(&id).item("units", 2).with("user", owner),
            };
            call.ttl(Span::from_secs(if n == 0 { 1 } else { 600 })).send().await.unwrap();
            world.pass(Span::from_millis(3)).await;
        }
        client.put(user("a").label("n", &n.to_string())).await.unwrap();
    }
    world.pass(Span::from_millis(1200)).await;
    for id in ["a-1", "b-3", "doc-2", "a-3"] {
        client.commit(id).await.unwrap();
        world.pass(Span::from_millis(2)).await;
    }
    client.release("b-1").await.unwrap();
    client.apply(rules().limits([limit("more", "edits").max(9)])).await.unwrap();
    for n in 0..3 {
        let id = format!("b-refused-{n}");
        client.reserve(&id).item("units", 9).with("user", "b").send().await.denied(&["each"]);
    }
    client.commit("a-0").await.refused(Reason::ReservationExpired);
    refusals(&client, 4).await;
    client
}

/// How many entries there are after [`busy`].
const BUSY: usize = 12 + 3 + 4 + 1 + 4 + 2 + 4;

/// The same list in pages of every size as in one.
async fn in_pages(client: &Client, request: &v1::ListEventsRequest) -> Vec<v1::Event> {
    let whole = client.events(&v1::ListEventsRequest { page_size: 1000, ..request.clone() }).await;
    for page_size in [1, 2, 3, 5, 8, 13, 29, 30, 31] {
        let paged = client.events(&v1::ListEventsRequest { page_size, ..request.clone() }).await;
        assert_eq!(paged, whole, "in pages of {page_size}: {request:?}");
    }
    whole
}

async fn b89_pages_of_every_size(world: &mut World) {
    let client = busy(world).await;
    let whole = in_pages(&client, &client.all_events()).await;
    assert_eq!(whole.len(), BUSY);
    assert!(whole.is_sorted_by(|one, next| time(one) >= time(next)), "exactly newest first");
    let first = v1::ListEventsRequest { page_size: 7, ..client.all_events() };
    assert_eq!(client.events_page(&first).await.unwrap().events, whole[..7]);
    for id in ["a-1", "a-0", "b-refused-1", "nobody"] {
        let found = in_pages(&client, &of(&client, id)).await;
        assert_eq!(found.len(), whole.iter().filter(|event| event.reservation_id == id).count());
    }
}

/// More reservations than are told in the order of time, fewer than a page
/// looks at: those of one stand together.
async fn b89_pages_of_many_reservations(world: &mut World) {
    let client = busy(world).await;
    let exact = client.events(&client.all_events()).await;
    let created: BTreeMap<String, Time> = exact
        .iter()
        .filter(|event| event.kind == "reserved")
        .map(|event| (event.reservation_id.clone(), time(event)))
        .collect();
    let position = |event: &v1::Event| match created.get(&event.reservation_id) {
        Some(created) if event.kind != "refused" => *created,
        _ => time(event),
    };
    for trail in [11, 5, 1] {
        world.under(Settings { trail, ..Settings::default() }).await;
        let client = world.caller();
        let grouped = in_pages(&client, &client.all_events()).await;
        assert!(grouped.is_sorted_by(|one, next| position(one) >= position(next)), "{trail}");
        assert_eq!(grouped.len(), exact.len());
        let once = |event: &&v1::Event| grouped.iter().filter(|other| other == event).count() == 1;
        assert!(exact.iter().all(|event| once(&event)), "all of them, once: {grouped:?}");
        let mut owners: Vec<&str> = grouped
            .iter()
            .filter(|event| event.kind != "refused" && !event.reservation_id.is_empty())
            .map(|event| event.reservation_id.as_str())
            .collect();
        owners.dedup();
        assert_eq!(owners.len(), created.len(), "the steps of one stand together: {owners:?}");
        // A filter that leads to few leaves pages short, and nothing out.
        let docs = v1::ListEventsRequest { limit: "writer".to_owned(), ..client.all_events() };
        let found = in_pages(&client, &docs).await;
        let expected = exact.iter().filter(|event| event.reservation_id.starts_with("doc-"));
        assert_eq!(found.len(), expected.count(), "{trail}");
        let one = client.events(&of(&client, "a-1")).await;
        assert_eq!(told(&one), [("committed", "a-1"), ("reserved", "a-1")]);
    }
    world.under(Settings { trail: 12, ..Settings::default() }).await;
    let client = world.caller();
    assert_eq!(client.events(&client.all_events()).await, exact, "just as many as are told so");
}

async fn b89_pages_while_others_write(world: &mut World) {
    let client = busy(world).await;
    let before = client.events(&client.all_events()).await;
    // What commits adds to reservations of all ages, below and above the page.
    let mut open = ["doc-1", "a-2", "b-2", "doc-3"].iter();
    for trail in [10_000, 12, 5, 1] {
        world.under(Settings { trail, ..Settings::default() }).await;
        let client = world.caller();
        let mut request = v1::ListEventsRequest { page_size: 4, ..client.all_events() };
        let mut found: Vec<v1::Event> = Vec::new();
        for n in 0.. {
            let page = client.events_page(&request).await.unwrap();
            found.extend(page.events);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
            if n % 3 == 1 {
                world.pass(Span::from_millis(1)).await;
                let id = world.fresh();
                client.reserve(&id).item("units", 1).with("user", &id).send().await.unwrap();
                client.put(user("a").label("n", &id)).await.unwrap();
                client.release(&id).await.unwrap();
            }
            if n == 2 {
                client.commit(open.next().expect("one for each round")).await.unwrap();
            }
        }
        for event in &before {
            let count = found.iter().filter(|other| *other == event).count();
            assert_eq!(count, 1, "{trail}: {event:?}");
        }
        let steps: Vec<_> = found
            .iter()
            .filter(|event| event.kind != "refused" && !event.reservation_id.is_empty())
            .map(|event| (&event.reservation_id, &event.kind))
            .collect();
        let distinct: BTreeSet<_> = steps.iter().collect();
        assert_eq!(distinct.len(), steps.len(), "{trail}: none comes twice");
    }
}

async fn b89_filters(world: &mut World) {
    let client = busy(world).await;
    let all = client.events(&client.all_events()).await;
    let of_owner =
        |event: &v1::Event, owner: &str| event.reservation_id.starts_with(&format!("{owner}-"));
    let in_limit = |event: &v1::Event, limit: &str| {
        let refused = event.kind == "refused";
        let charged = match limit {
            "each" | "all" => of_owner(event, "a") || of_owner(event, "b"),
            "writer" => of_owner(event, "doc"),
            _ => false,
        };
        if refused { event.limits.iter().any(|l| l.limit == limit) } else { charged }
    };
    let subjects = ["", "user/a", "user/b", "doc/doc", "user/nobody"];
    let middle = all[all.len() / 2].time;
    let times = [(None, None), (middle, None), (None, middle), (middle, middle)];
    let mut sizes = BTreeSet::new();
    for subject in subjects {
        for limit in ["", "each", "writer", "none"] {
            for (start_time, end_time) in times {
                let request = v1::ListEventsRequest {
                    subject: subject.to_owned(),
                    limit: limit.to_owned(),
                    start_time,
                    end_time,
                    page_size: 4,
                    ..client.all_events()
                };
                let names = |event: &v1::Event| {
                    let (_, id) = subject.split_once('/').unwrap_or_default();
                    // A commit that was refused names no item.
                    let items = event.kind != "refused" || event.details["call"] == "reserve";
                    (of_owner(event, id) && items) || event.subject == subject
                };
                let at = |stamp: prost_types::Timestamp| (stamp.seconds, stamp.nanos);
                let time = |event: &v1::Event| at(event.time.unwrap());
                let expected: Vec<_> = all
                    .iter()
                    .filter(|event| subject.is_empty() || names(event))
                    .filter(|event| limit.is_empty() || in_limit(event, limit))
                    .filter(|event| start_time.is_none_or(|start| time(event) >= at(start)))
                    .filter(|event| end_time.is_none_or(|end| time(event) < at(end)))
                    .cloned()
                    .collect();
                assert_eq!(client.events(&request).await, expected, "{request:?}");
                sizes.insert(expected.len());
            }
        }
    }
    assert!(sizes.len() > 6, "filters that leave this and that: {sizes:?}");
}

async fn b89_what_is_asked_wrongly(world: &mut World) {
    let client = world.caller();
    let all = client.all_events();
    client.events_page(&all).await.refused(Reason::NamespaceNotFound);
    client.apply(rules()).await.unwrap();
    client.take("one", 1).send().await.unwrap();
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let wrong = v1::ListEventsRequest {
        subject: "user".to_owned(),
        reservation_id: "\n".to_owned(),
        limit: "x".repeat(257),
        start_time: at(2),
        end_time: at(1),
        page_size: 1001,
        page_token: "nonsense".to_owned(),
        ..client.all_events()
    };
    client.events_page(&wrong).await.invalid(&[
        "subject",
        "reservation_id",
        "limit",
        "end_time",
        "page_size",
        "page_token",
    ]);
    let first = v1::ListEventsRequest { page_size: 1, ..client.all_events() };
    let token = client.events_page(&first).await.unwrap().next_page_token;
    assert!(!token.is_empty());
    let goes_on = v1::ListEventsRequest { page_token: token.clone(), ..client.all_events() };
    assert_eq!(client.events_page(&goes_on).await.unwrap().events.len(), 1);
    for other in [
        v1::ListEventsRequest { limit: "each".to_owned(), ..goes_on.clone() },
        v1::ListEventsRequest { subject: "user/s".to_owned(), ..goes_on.clone() },
        v1::ListEventsRequest { end_time: at(5), ..goes_on.clone() },
        v1::ListEventsRequest { reservation_id: "one".to_owned(), ..goes_on },
    ] {
        client.events_page(&other).await.invalid(&["page_token"]);
    }
}

async fn b89_after_a_restart(world: &mut World) {
    let client = busy(world).await;
    // Answered just before the server goes: kept even so.
    client.take("last", 10).send().await.denied(&["each"]);
    let before = client.events(&client.all_events()).await;
    world.restart().await;
    let client = world.caller();
    refusals(&client, 5).await;
    let mut after = client.events(&client.all_events()).await;
    assert_eq!(after.len(), BUSY + 1);
    after.retain(|event| event.reservation_id != "last");
    let before: Vec<_> =
        before.into_iter().filter(|event| event.reservation_id != "last").collect();
    assert_eq!(after, before);
}
