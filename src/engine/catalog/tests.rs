//! Which copy is in force.

use super::*;
use crate::domain::policy::{
    Applied, Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
use crate::store::clock::{Clock, ManualClock};
use crate::store::faulty::FaultyStore;
use crate::store::memory::MemoryStore;
use crate::store::{Change, ChangeSet, Extent};

fn catalog() -> Catalog {
    let clock = Clock::Manual(ManualClock::at(crate::domain::time::Time::default()));
    Catalog::new(Arc::new(MemoryStore::new(clock)), Arc::default())
}

fn subject(plan: &str) -> Subject {
    let (namespace, kind, id) = ("n".to_owned(), "user".to_owned(), "42".to_owned());
    Subject { namespace, kind, id, plan: plan.to_owned(), ..Subject::default() }
}

/// A reading that was asked for at `asked` and is here now.
fn read(catalog: &Catalog, row: Option<(i64, &str)>, asked: Moment) -> Option<String> {
    let row = row.map(|(version, plan)| Versioned { version, value: subject(plan) });
    let key = subject("").key();
    catalog.read([(key.clone(), row)].into(), asked).remove(&key).unwrap().map(|s| s.plan.clone())
}

fn wrote(catalog: &Catalog, version: i64, plan: Option<&str>, begun: Moment) {
    catalog.wrote(subject("").key(), version, plan.map(subject), begun);
}

fn in_force(catalog: &Catalog) -> Option<String> {
    catalog.subject(&subject("").key()).unwrap().map(|subject| subject.plan.clone())
}

fn now() -> Moment {
    Moment { process: Instant::now(), store: Time::default() }
}

/// Later than everything that has happened.
async fn later() -> Moment {
    tokio::time::sleep(Duration::from_millis(2)).await;
    now()
}

#[tokio::test]
async fn what_is_asked_for_later_counts_whatever_its_version() {
    let catalog = catalog();
    assert_eq!(read(&catalog, Some((9, "old")), now()).as_deref(), Some("old"));
    // Deleted and put again elsewhere, under a clock that stands still.
    assert_eq!(read(&catalog, Some((3, "new")), later().await).as_deref(), Some("new"));
    assert_eq!(read(&catalog, None, later().await), None);
    assert_eq!(read(&catalog, Some((1, "third")), later().await).as_deref(), Some("third"));
}

#[tokio::test]
async fn versions_decide_between_readings_that_overlap() {
    let catalog = catalog();
    let early = now();
    let late = later().await;
    assert_eq!(read(&catalog, Some((2, "two")), late).as_deref(), Some("two"));
    assert_eq!(read(&catalog, Some((1, "one")), early).as_deref(), Some("two"));
    assert_eq!(read(&catalog, None, early).as_deref(), Some("two"));
    assert_eq!(read(&catalog, Some((3, "three")), early).as_deref(), Some("three"));
}

#[tokio::test]
async fn what_was_written_here_is_in_force_at_once() {
    let catalog = catalog();
    let before = now();
    let begun = later().await;
    wrote(&catalog, 1, Some("put"), begun);
    assert_eq!(read(&catalog, None, before).as_deref(), Some("put"));
    // Readings that were under way when it was deleted.
    let begun = later().await;
    assert_eq!(read(&catalog, Some((1, "put")), begun).as_deref(), Some("put"));
    wrote(&catalog, 1, None, begun);
    assert_eq!(in_force(&catalog), None);
    assert_eq!(read(&catalog, Some((1, "put")), begun), None);
    // It was put again, and read, before the answer to the deletion was here.
    let begun = later().await;
    assert_eq!(read(&catalog, Some((5, "again")), later().await).as_deref(), Some("again"));
    wrote(&catalog, 4, None, begun);
    assert_eq!(in_force(&catalog).as_deref(), Some("again"));
}

/// A store that others write to as well, with a clock to move.
fn shared() -> (Arc<FaultyStore>, Arc<Catalog>, ManualClock) {
    let clock = ManualClock::at(Time::default());
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::Manual(clock.clone()))), 0, 0);
    let catalog = Arc::new(Catalog::new(Arc::<FaultyStore>::clone(&store), Arc::default()));
    (store, catalog, clock)
}

/// Somebody else raises the limit.
async fn apply_elsewhere(store: &SharedStore, current: Option<&PolicyRevision>) {
    let limit = LimitSpec {
        name: "l".to_owned(),
        metric: "m".to_owned(),
        conditions: [].into(),
        per: vec![],
        optional: false,
        plan_of: None,
        window: WindowSpec::Lifetime,
        max: MaxSpec::Same(Bound::AtMost(current.map_or(1, |current| current.revision + 1))),
        mode: Mode::Enforced,
    };
    let spec = PolicySpec {
        namespace: "n".to_owned(),
        metrics: [("m".to_owned(), MetricSpec::default())].into(),
        limits: vec![limit],
        ..PolicySpec::default()
    };
    let applied = PolicyRevision::after(current, spec, store.now(), "somebody else");
    let Applied::Changed { revision, .. } = applied else { panic!("nothing changed") };
    let changes = ChangeSet { policies: vec![*revision], ..ChangeSet::default() };
    store.write(&changes).await.unwrap();
}

/// Somebody else puts a subject, in this version.
async fn put_elsewhere(store: &SharedStore, version: i64) -> SubjectKey {
    let subject = Subject {
        namespace: "n".to_owned(),
        kind: "user".to_owned(),
        id: "42".to_owned(),
        plan: format!("plan {version}"),
        ..Subject::default()
    };
    let key = subject.key();
    let expected = (version > 1).then_some(version - 1);
    let put = Change {
        expected,
        version,
        value: subject,
        purge_at: None,
        proven: false,
        extent: Extent::Whole,
    };
    store.write(&ChangeSet { subjects: vec![put], ..ChangeSet::default() }).await.unwrap();
    key
}

async fn revision(catalog: &Catalog) -> i64 {
    catalog.policy("n").await.unwrap().map_or(0, |policy| policy.source.revision)
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_used_for_a_second_of_either_clock() {
    let (store, catalog, clock) = shared();
    let store: SharedStore = store;
    apply_elsewhere(&store, None).await;
    assert_eq!(revision(&catalog).await, 1);
    let first = store.policy("n", 1).await.unwrap().unwrap();
    apply_elsewhere(&store, Some(&first)).await;
    clock.advance(Span::from_millis(999));
    tokio::time::advance(Duration::from_millis(999)).await;
    assert_eq!(revision(&catalog).await, 1, "a copy");
    clock.advance(Span::from_millis(1));
    assert_eq!(revision(&catalog).await, 2, "the store's clock says that it is old");
    let second = store.policy("n", 2).await.unwrap().unwrap();
    apply_elsewhere(&store, Some(&second)).await;
    assert_eq!(revision(&catalog).await, 2, "a copy");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(revision(&catalog).await, 3, "this process's clock says so");
}

/// Time stands still here: nothing is found by asking again.
#[tokio::test(start_paused = true)]
async fn what_is_told_to_have_changed_is_looked_at_again_at_once() {
    let (faulty, catalog, _clock) = shared();
    let store: SharedStore = Arc::<FaultyStore>::clone(&faulty);
    let following = tokio::spawn(Arc::clone(&catalog).follow_changes());
    tokio::task::yield_now().await;
    apply_elsewhere(&store, None).await;
    assert_eq!(revision(&catalog).await, 1);
    let key = put_elsewhere(&store, 1).await;
    let keys = || Keys { subjects: vec![key.clone()], ..Keys::default() };
    let loaded = store.load(&keys()).await.unwrap().subjects;
    catalog.read(loaded, catalog.moment());
    let first = store.policy("n", 1).await.unwrap().unwrap();
    apply_elsewhere(&store, Some(&first)).await;
    put_elsewhere(&store, 2).await;
    let plan = || catalog.subject(&key).flatten().map(|subject| subject.plan.clone());
    assert_eq!((revision(&catalog).await, plan()), (1, Some("plan 1".to_owned())), "copies");

    faulty.announce(Changed::Subject(key.clone()));
    faulty.announce(Changed::Policy("n".to_owned()));
    faulty.announce(Changed::Policy("of no copy".to_owned()));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((revision(&catalog).await, plan()), (2, Some("plan 2".to_owned())));
    assert!(!lock(&catalog.policies).contains("of no copy"));
    following.abort();
}
