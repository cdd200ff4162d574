//! The README's snippets for the documents' lock, run as a user runs them, and
//! attacked.

mod support;

#[path = "snippets/language.rs"]
mod language;
#[path = "support/readme.rs"]
mod readme;
#[path = "snippets/stage.rs"]
mod stage;

use std::fs;
use std::time::Duration;

use language::Language;
use quota_authority::proto::v1::ReservationState;
use stage::{LONG, Lock, Run, Stage};
use support::{Fault, Proxy, eventually};

/// The tests of one snippet, for each language.
macro_rules! in_every_language {
    ($($test:ident),* $(,)?) => {
        in_every_language!(@ python Python $($test)*);
        in_every_language!(@ node Node $($test)*);
        in_every_language!(@ go Go $($test)*);
    };
    (@ $module:ident $language:ident $($test:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(super::Language::$language).await;
            })*
        }
    };
}

in_every_language![
    it_locks_saves_and_lets_go,
    two_at_once,
    killed_while_it_holds,
    work_longer_than_the_ttl,
    a_lost_lock_stops_the_work,
    a_network_that_fails_is_no_loss,
    a_lost_answer_is_asked_for_again,
];

#[test]
fn the_readme_shows_the_snippets() {
    for language in Language::ALL {
        let name = language.snippet();
        let snippet = fs::read_to_string(&name).expect("tests run where the manifest is");
        let (fence, setup, run) = (language.fence(), language.setup(), language.run());
        let commands = format!("{setup}QUOTAD_SERVER=127.0.0.1:50051 {run}");
        let made = format!("```{fence}\n{snippet}```\n\n```sh\n{commands}\n```\n");
        readme::holds("snippets", &name, &made);
    }
}

async fn it_locks_saves_and_lets_go(language: Language) {
    let Some(stage) = Stage::new(&[language]).await else { return };
    let saved = stage.start(language, 30, 0.0).end().await;
    let [lock] = &stage.locks().await[..] else { panic!("one lock") };
    assert_eq!(saved, Ok(lock.token));
    assert_eq!(lock.state, ReservationState::Released);
}

async fn two_at_once(language: Language) {
    at_once(&[language, language]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_languages_at_once() {
    at_once(&Language::ALL).await;
}

/// All wait for one lock before the first one gets it.
async fn at_once(languages: &[Language]) {
    let Some(stage) = Stage::new(languages).await else { return };
    stage.lock("ours", Duration::ZERO).await;
    let runs: Vec<Run> = languages.iter().map(|language| stage.start(*language, 30, 0.5)).collect();
    stage.waiting(languages.len().try_into().expect("a few")).await;
    stage.release("ours").await;
    let mut saved = Vec::new();
    for run in runs {
        saved.push(run.end().await.expect("it saves"));
    }
    saved.sort_unstable();
    let locks = stage.locks().await;
    let tokens: Vec<_> = locks.iter().skip(1).map(|lock| lock.token).collect();
    assert_eq!(saved, tokens, "each saved under a lock of its own");
    assert!(locks[1..].iter().all(|lock| lock.millis() >= 500), "the work is inside: {locks:?}");
    one_after_the_other(&locks);
}

/// In the order of their tokens, which grow.
fn one_after_the_other(locks: &[Lock]) {
    for pair in locks.windows(2) {
        assert!(pair[0].token < pair[1].token, "{pair:?}");
        assert!(pair[0].until <= pair[1].from, "{pair:?}");
    }
}

async fn killed_while_it_holds(language: Language) {
    // Who comes next is of another language.
    let next = Language::ALL[(language as usize + 1) % Language::ALL.len()];
    let Some(stage) = Stage::new(&[language, next]).await else { return };
    let mut killed = stage.start(language, 2, 3600.0);
    stage.held(1).await;
    killed.kill9();
    let saved = stage.start(next, 30, 0.0).end().await;
    let locks = stage.locks().await;
    assert_eq!(locks[0].state, ReservationState::Expired, "{locks:?}");
    assert_eq!(saved, Ok(locks[1].token));
    one_after_the_other(&locks);
}

async fn work_longer_than_the_ttl(language: Language) {
    let Some(stage) = Stage::new(&[language]).await else { return };
    let run = stage.start(language, 2, 4.0);
    stage.held(1).await;
    stage.lock("ours", LONG).await;
    let saved = run.end().await;
    let locks = stage.locks().await;
    assert_eq!(saved, Ok(locks[0].token));
    assert!(locks[0].extended && locks[0].millis() >= 4000, "{locks:?}");
    assert_eq!(locks[0].state, ReservationState::Released);
    one_after_the_other(&locks);
}

async fn a_lost_lock_stops_the_work(language: Language) {
    let Some(stage) = Stage::new(&[language]).await else { return };
    let run = stage.start(language, 2, 3600.0);
    let lock = stage.held(1).await;
    stage.release(&lock.id).await;
    let complaint = run.end().await.expect_err("it saves nothing");
    assert!(complaint.contains("the lock is lost"), "{complaint}");
}

async fn a_network_that_fails_is_no_loss(language: Language) {
    let Some(stage) = Stage::new(&[language]).await else { return };
    let proxy = Proxy::start(stage.address());
    let run = Run::start(proxy.address(), language, 6, 13.0);
    // Renewed once, so that the snippet knows of its lock.
    let renewed = async || stage.locks().await.into_iter().next().filter(|lock| lock.extended);
    let lock = eventually(LONG, "the lock to be renewed", renewed).await;
    // Whatever names the lock loses its connection.
    proxy.set(Fault::DropReplies { every: 1, request: lock.id, reply: String::new() });
    // One call is tried five times: at the sixth one has failed.
    eventually(LONG, "a renewal to fail", async || (proxy.lost() >= 6).then_some(())).await;
    proxy.set(Fault::Pass);
    let saved = run.end().await;
    let [lock] = &stage.locks().await[..] else { panic!("one lock") };
    assert_eq!(saved, Ok(lock.token));
    assert_eq!(lock.state, ReservationState::Released);
    assert!(lock.millis() >= 13_000, "{lock:?}");
}

/// What a reply carries to a client that takes it compressed: the number of a
/// connection's first stream, and the mark of a compressed message.
const COMPRESSED: &str = "\0\0\0\u{1}\u{1}\0\0";

async fn a_lost_answer_is_asked_for_again(language: Language) {
    let Some(stage) = Stage::new(&[language]).await else { return };
    let proxy = Proxy::start(stage.address());
    let reply = if language == Language::Go { "one-writer" } else { COMPRESSED }.to_owned();
    proxy.set(Fault::DropReplies { every: 1, request: "doc-7".to_owned(), reply });
    let run = Run::start(proxy.address(), language, 30, 0.0);
    eventually(LONG, "an answer to be lost", async || (proxy.lost() > 0).then_some(())).await;
    proxy.set(Fault::Pass);
    let saved = run.end().await;
    let [lock] = &stage.locks().await[..] else { panic!("the same id, so one lock") };
    assert_eq!(saved, Ok(lock.token));
}
