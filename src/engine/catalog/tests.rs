use super::*;
use crate::store::clock::{Clock, ManualClock};
use crate::store::memory::MemoryStore;

fn catalog() -> Catalog {
    let clock = Clock::Manual(ManualClock::at(crate::domain::time::Time::default()));
    Catalog::new(Arc::new(MemoryStore::new(clock)))
}

fn subject(plan: &str) -> Subject {
    let (namespace, kind, id) = ("n".to_owned(), "user".to_owned(), "42".to_owned());
    Subject { namespace, kind, id, plan: plan.to_owned(), ..Subject::default() }
}

/// A reading that was asked for at `asked` and is here now.
fn read(catalog: &Catalog, row: Option<(i64, &str)>, asked: Instant) -> Option<String> {
    let row = row.map(|(version, plan)| Versioned { version, value: subject(plan) });
    let key = subject("").key();
    catalog.read([(key.clone(), row)].into(), asked).remove(&key).unwrap().map(|s| s.plan.clone())
}

fn wrote(catalog: &Catalog, version: i64, plan: Option<&str>, begun: Instant) {
    catalog.wrote(subject("").key(), version, plan.map(subject), begun);
}

fn in_force(catalog: &Catalog) -> Option<String> {
    catalog.subject(&subject("").key()).unwrap().map(|subject| subject.plan.clone())
}

/// Later than everything that has happened.
async fn later() -> Instant {
    tokio::time::sleep(Duration::from_millis(2)).await;
    Instant::now()
}

#[tokio::test]
async fn what_is_asked_for_later_counts_whatever_its_version() {
    let catalog = catalog();
    assert_eq!(read(&catalog, Some((9, "old")), Instant::now()).as_deref(), Some("old"));
    // Deleted and put again elsewhere, under a clock that stands still.
    assert_eq!(read(&catalog, Some((3, "new")), later().await).as_deref(), Some("new"));
    assert_eq!(read(&catalog, None, later().await), None);
    assert_eq!(read(&catalog, Some((1, "third")), later().await).as_deref(), Some("third"));
}

#[tokio::test]
async fn versions_decide_between_readings_that_overlap() {
    let catalog = catalog();
    let early = Instant::now();
    let late = later().await;
    assert_eq!(read(&catalog, Some((2, "two")), late).as_deref(), Some("two"));
    assert_eq!(read(&catalog, Some((1, "one")), early).as_deref(), Some("two"));
    assert_eq!(read(&catalog, None, early).as_deref(), Some("two"));
    assert_eq!(read(&catalog, Some((3, "three")), early).as_deref(), Some("three"));
}

#[tokio::test]
async fn what_was_written_here_is_in_force_at_once() {
    let catalog = catalog();
    let before = Instant::now();
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
