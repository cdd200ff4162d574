use std::sync::Arc;

use crate::domain::event::EventKind;
use crate::domain::policy::{Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec};
use crate::domain::refusal::Refusal;
use crate::domain::subject::Subject;
use crate::domain::time::Time;
use crate::engine::{Engine, Error, Settings};
use crate::store::clock::{Clock, ManualClock};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::memory::MemoryStore;

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
