use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::counter::{Counter, CounterId, Used};
use crate::domain::event::EventKind;
use crate::domain::policy::{Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec};
use crate::domain::refusal::Refusal;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::domain::window::Window;
use crate::engine::{Engine, Error, OverLimit, Settings};
use crate::store::clock::{Clock, ManualClock};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::memory::MemoryStore;
use crate::store::{Change, ChangeSet, Extent, Store as _};

/// An engine over a store under a clock that stands still, with a policy.
async fn engine() -> (Arc<Engine>, Arc<FaultyStore>, Arc<MemoryStore>) {
    let clock = Clock::Manual(ManualClock::at(Time::from_millis(1_700_000_000_000).unwrap()));
    let memory = Arc::new(MemoryStore::new(clock));
    let store = FaultyStore::new(Arc::clone(&memory) as _, 0, 0);
    let (engine, _) = Engine::start(Arc::clone(&store) as _, Settings::default());
    engine.apply_policy(policy(), 0, false, "test").await.unwrap();
    (engine, store, memory)
}

fn policy() -> PolicySpec {
    let limit = LimitSpec {
        name: "l".to_owned(),
        metric: "m".to_owned(),
        conditions: [].into(),
        per: vec!["user".to_owned()],
        optional: false,
        plan_of: None,
        window: WindowSpec::Lifetime,
        max: MaxSpec::Same(Bound::AtMost(3)),
        mode: Mode::Enforced,
    };
    PolicySpec {
        namespace: "n".to_owned(),
        default_plan: None,
        plans: vec!["free".to_owned(), "pro".to_owned()],
        metrics: [("m".to_owned(), MetricSpec { requires: vec!["user".to_owned()] })].into(),
        limits: vec![limit],
    }
}

fn subject(plan: &str) -> Subject {
    let (namespace, kind, id) = ("n".to_owned(), "user".to_owned(), "a/b".to_owned());
    Subject { namespace, kind, id, plan: plan.to_owned(), ..Subject::default() }
}

#[tokio::test]
async fn a_deleted_subject_leaves_its_trace() {
    let (engine, _, memory) = engine().await;
    engine.put_subject(subject("pro"), "", "billing").await.unwrap();
    engine.delete_subject("n", "user", "a/b", "", "support").await.unwrap();
    let events = memory.events();
    let deleted = events.last().unwrap();
    assert_eq!((deleted.kind, deleted.principal.as_str()), (EventKind::SubjectDeleted, "support"));
    assert_eq!((deleted.namespace.as_str(), deleted.subject.as_str()), ("n", "user/a/b"));
    assert_eq!(
        (deleted.details["plan before"].as_str(), deleted.details["plan after"].as_str()),
        ("pro", "")
    );
    let gone = engine.delete_subject("n", "user", "a/b", "", "support").await;
    assert!(matches!(gone, Err(Error::Refused(Refusal::SubjectNotFound { .. }))), "{gone:?}");
    assert_eq!(memory.events().len(), events.len(), "what changes nothing leaves no trace");
}

#[tokio::test]
async fn a_deletion_needs_the_etag_that_is_there() {
    let (engine, store, _) = engine().await;
    let first = engine.put_subject(subject("free"), "", "test").await.unwrap();
    let second = engine.put_subject(subject("pro"), "", "test").await.unwrap();
    let delete = async |etag: &str| engine.delete_subject("n", "user", "a/b", etag, "test").await;
    let stale = delete(&first.etag).await;
    assert!(matches!(stale, Err(Error::Refused(Refusal::RevisionMismatch { .. }))), "{stale:?}");
    store.next([Fault::LostUnknown, Fault::Conflict]);
    assert_eq!(delete(&second.etag).await, Err(Error::OutcomeUnknown));
    assert_eq!(delete(&second.etag).await, Ok(()), "a conflict is tried again");
    // Made again at the same instant, it has none of the etags that it had.
    let again = engine.put_subject(subject("pro"), "", "test").await.unwrap();
    assert_ne!(again.etag, first.etag);
    assert_ne!(again.etag, second.etag);
}

/// A policy with these limits, all of the same metric and user.
fn limits(maxima: &[(&str, i64)]) -> PolicySpec {
    let base = policy();
    let limit = |&(name, max): &(&str, i64)| LimitSpec {
        name: name.to_owned(),
        max: MaxSpec::Same(Bound::AtMost(max)),
        ..base.limits[0].clone()
    };
    PolicySpec { limits: maxima.iter().map(limit).collect(), ..base.clone() }
}

/// Counters of a limit, used 0, 1, 2 and so on.
async fn count(store: &FaultyStore, limit: &str, counters: i64) {
    let counter = |n: i64| {
        let key = [("user".to_owned(), format!("{n:05}"))].into();
        let id = CounterId::new("n", limit, "m", 1, key, Window::Lifetime);
        let value = Counter { used: Used::Total(n), ..Counter::new(Arc::new(id)) };
        Change {
            expected: None,
            version: 1,
            value,
            purge_at: None,
            proven: false,
            extent: Extent::Whole,
        }
    };
    let counters = (0..counters).map(counter).collect();
    store.write(&ChangeSet { counters, ..ChangeSet::default() }).await.unwrap();
}

#[tokio::test]
async fn every_counter_of_a_lowered_limit_is_looked_at_and_no_other() {
    let (engine, store, _) = engine().await;
    let maxima = |l, after| limits(&[("l", l), ("l/", 9), ("l2", 9), ("m", after)]);
    engine.apply_policy(maxima(5000, 7), 0, false, "test").await.unwrap();
    for limit in ["k", "l", "l/", "l2", "m"] {
        count(&store, limit, 1700).await;
    }
    let until = || Instant::now() + Duration::from_mins(1);
    let applied = engine.apply_policy(maxima(1000, 7), 0, true, "test").await.unwrap();
    let change = applied.change.unwrap();
    let over = engine.over_limit(&change, until()).await.unwrap();
    assert_eq!((over.count, over.limits.len(), over.incomplete), (699, 100, false));
    assert!(over.limits.iter().all(|status| status.counter.limit == "l" && status.used > 1000));
    let applied = engine.apply_policy(maxima(1690, 5), 0, true, "test").await.unwrap();
    let over = engine.over_limit(&applied.change.unwrap(), until()).await.unwrap();
    assert_eq!((over.count, over.limits.len()), (9 + 1694, 100));
    // Whoever has no time hears that there may be more, and so does everybody
    // while the store does not answer.
    let over = engine.over_limit(&change, Instant::now()).await.unwrap();
    assert_eq!(over, OverLimit { count: 0, limits: vec![], incomplete: true });
    store.set_down(true);
    let over = engine.over_limit(&change, until()).await.unwrap();
    assert!(over.incomplete);
}
