//! The loop that decides and writes batches, one at a time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use tracing::{debug, warn};

use super::cache::Cache;
use super::catalog::Catalog;
use super::plan::{Folded, Outcome, Policies, Working};
use super::pulse::Pulse;
use super::queue::{Pending, Queue};
use super::wait::{self, Grants, Lines, Room};
use super::{Error, MonotonicClock, Settings};
use crate::domain::name::ReservationKey;
use crate::domain::refusal::Refusal;
use crate::domain::state::Keys;
use crate::store::{ChangeSet, SharedStore, StoreError, WriteError};

/// How often a batch is tried before its commands go back to the queue.
const ATTEMPTS: u32 = 4;
/// How often a batch is folded before something must be wrong, besides once for
/// each caller who goes meanwhile: each fold needs records that the one before
/// did not know of, which the rules bound by a few.
const FOLDS: usize = 32;
/// For how many batches ids are read first, after one turned out to exist.
const WARY: u32 = 64;
/// A batch that is not written this long after its decision began is decided
/// again: a server that was paused must not write by rules that were replaced
/// long ago. What is under way meanwhile may so be written up to a second after
/// its rules, a second old at most, were replaced; on a slow store up to three
/// times as long as the last write took, or nothing would ever be written.
const VALID: Duration = Duration::from_secs(1);
const VALID_AT_MOST: Duration = Duration::from_secs(8);
/// Before a command of this process itself is tried again.
const OWN_PAUSE: Duration = Duration::from_millis(200);

/// Decides and writes batches.
pub(super) struct Batcher {
    store: SharedStore,
    queue: Arc<Queue>,
    catalog: Arc<Catalog>,
    clock: MonotonicClock,
    settings: Settings,
    cache: Cache,
    /// Those who wait for room.
    room: Room,
    lines: Arc<Lines>,
    pulse: Arc<Pulse>,
    /// What was granted to them and may yet be undone.
    grants: Grants,
    /// Commands of this process itself that are to be tried again.
    later: Vec<(Instant, Pending)>,
    wary: u32,
    /// How long the last write took, whatever came of it.
    last_write: Duration,
}

/// What became of one attempt at a batch.
enum Attempt {
    /// Everybody is answered.
    Done,
    /// Nothing was written; again, with everything read afresh.
    Again(Vec<Pending>),
    /// Perhaps it was written; again, with everything read afresh.
    Unknown(Vec<Pending>, String),
    /// The store does not answer; nothing was written.
    Failed(Vec<Pending>, String),
    /// A record is damaged.
    Damaged(Vec<Pending>, StoreError),
}

impl Batcher {
    pub fn new(
        store: SharedStore,
        queue: Arc<Queue>,
        catalog: Arc<Catalog>,
        clock: MonotonicClock,
        settings: Settings,
        lines: Arc<Lines>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let room = Room::new(Arc::clone(&lines), store.test_clock().is_some());
        Self {
            store,
            queue,
            catalog,
            clock,
            settings,
            cache: Cache::new(),
            room,
            lines,
            pulse,
            grants: Grants::default(),
            later: Vec::new(),
            wary: 0,
            last_write: Duration::ZERO,
        }
    }

    /// Works until the queue is closed and empty.
    pub async fn run(mut self) {
        while let Some(batch) = self.next().await {
            if !batch.is_empty() {
                self.process(batch).await;
            }
        }
        self.send_away();
    }

    /// The next commands to decide: first those that undo what reached nobody,
    /// then those who have waited and whose turn it is, then what is new. May be
    /// none, when it is time to look again; `None` at the end.
    async fn next(&mut self) -> Option<Vec<Pending>> {
        if self.pulse.closing() {
            self.send_away();
        }
        let most = self.settings.batch;
        let mut due = self.due(most.div_ceil(2)).await;
        let mut new = if due.is_empty() {
            let look = self.next_look();
            let until = async {
                match look {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.lines.ear().rung() => return Some(Vec::new()),
                new = self.queue.next(most) => new?,
                () = until => return Some(Vec::new()),
            }
        } else {
            self.queue.take(most.saturating_sub(due.len()))
        };
        if new.iter().any(|pending| pending.own) {
            let (own, others): (Vec<_>, Vec<_>) = new.into_iter().partition(|p| p.own);
            due.splice(0..0, own);
            new = others;
        }
        due.extend(new);
        Some(due)
    }

    /// Those who have waited and are to be decided now.
    async fn due(&mut self, most: usize) -> Vec<Pending> {
        let now = Instant::now();
        let ready = self.later.extract_if(.., |(at, _)| *at <= now);
        let mut due: Vec<Pending> = ready.map(|(_, pending)| pending).collect();
        if !self.room.is_empty() && self.store.test_clock().is_some() {
            // Where the store does not answer, the batch will find out.
            let _ = self.store.tick().await;
        }
        let clock = self.clock.read(&self.store);
        due.extend(self.room.due(clock, most));
        due
    }

    fn next_look(&self) -> Option<Instant> {
        let later = self.later.iter().map(|(at, _)| *at);
        later.chain(self.room.next_look(self.clock.read(&self.store))).min()
    }

    /// Nobody is kept waiting by a server that is going.
    fn send_away(&mut self) {
        self.room.dismiss(&going());
    }

    async fn process(&mut self, mut batch: Vec<Pending>) {
        let mut afresh = false;
        for attempt in 1..=ATTEMPTS {
            batch = match self.attempt(batch, afresh).await {
                Attempt::Done => return,
                Attempt::Again(batch) => batch,
                Attempt::Unknown(batch, message) => {
                    warn!(%message, "the outcome of a write is unknown; looking it up");
                    batch
                }
                Attempt::Failed(batch, message) => return self.give_up(batch, &message),
                Attempt::Damaged(batch, error) => {
                    return Box::pin(self.isolate(batch, error)).await;
                }
            };
            afresh = true;
            if attempt > 1 {
                tokio::time::sleep(Duration::from_millis(
                    1 + fastrand::u64(0..4 * u64::from(attempt)),
                ))
                .await;
            }
        }
        self.put_back(batch);
    }

    /// Commands that keep conflicting are tried namespace by namespace, so
    /// that none holds up another.
    fn put_back(&mut self, batch: Vec<Pending>) {
        debug!(commands = batch.len(), "a batch keeps conflicting");
        let mut by_namespace: HashMap<String, Vec<Pending>> = HashMap::new();
        for pending in batch {
            // Who has a place in line keeps it.
            let Some(pending) = self.room.put_back(pending) else { continue };
            by_namespace.entry(pending.namespace.clone()).or_default().push(pending);
        }
        for (namespace, commands) in by_namespace {
            self.queue.put_back(&namespace, commands);
        }
    }

    /// Tries each command by itself, so that a damaged record only fails those
    /// that need it.
    async fn isolate(&mut self, mut batch: Vec<Pending>, error: StoreError) {
        if batch.len() == 1 {
            tracing::error!(%error, "a record is damaged");
            if let Some(pending) = batch.pop() {
                pending.answer(Err(error.into()));
            }
            return;
        }
        for pending in batch {
            self.process(vec![pending]).await;
        }
    }

    async fn attempt(&mut self, mut batch: Vec<Pending>, afresh: bool) -> Attempt {
        batch.retain(|pending| !pending.gone());
        if batch.is_empty() {
            return Attempt::Done;
        }
        let now = Instant::now();
        for wait in batch.iter_mut().filter_map(|pending| pending.wait.as_mut()) {
            wait.over |= wait.until <= now;
        }
        match self.decide(&mut batch, afresh).await {
            Ok(Some(decided)) => self.write(batch, decided).await,
            Ok(None) => Attempt::Done,
            Err(StoreError::Unavailable(message)) => Attempt::Failed(batch, message),
            Err(damaged) => Attempt::Damaged(batch, damaged),
        }
    }

    /// Folds the rules over the batch until everything it needs is there and
    /// certain enough. Callers who have gone meanwhile are dropped from it;
    /// `None` when nobody is left.
    async fn decide(
        &mut self,
        batch: &mut Vec<Pending>,
        afresh: bool,
    ) -> Result<Option<Decided>, StoreError> {
        let careful = afresh || self.wary > 0;
        let valid_until = Instant::now() + (self.last_write * 3).clamp(VALID, VALID_AT_MOST);
        self.store.tick().await?;
        let policies = policies(&self.catalog, batch).await?;
        let cache = (!afresh).then_some(&self.cache);
        let mut working = Working::new(&self.catalog, cache, careful);
        if !careful {
            // An id that this process has used is a replay: read what became
            // of it before the unique index has to object.
            let known = reserved(batch).filter(|key| self.cache.knows(key)).cloned();
            let keys = Keys { reservations: known.collect(), ..Keys::default() };
            working.read(keys, &self.store).await?;
        }
        for _ in 0..FOLDS + batch.len() {
            let now = self.clock.read(&self.store);
            match working.fold(batch, &policies, now, self.settings.retention, &self.room) {
                Folded::Unknown(keys) => working.read(keys, &self.store).await?,
                Folded::Decided(outcomes, changes) => {
                    let changing: Vec<bool> = outcomes.iter().map(changed).collect();
                    let gone: Vec<bool> = batch
                        .iter()
                        .zip(&changing)
                        .map(|(pending, changing)| *changing && !pending.ticket.begin())
                        .collect();
                    if gone.contains(&true) {
                        let mut gone = gone.into_iter();
                        batch.retain(|_| !gone.next().unwrap_or(false));
                        if batch.is_empty() {
                            return Ok(None);
                        }
                        continue;
                    }
                    let now = self.clock.read(&self.store);
                    let mut changes = working.change_set(changes, now, self.settings.retention);
                    changes.valid_until = Some(valid_until);
                    if careful {
                        let found = working.found(reserved(batch));
                        self.wary = if found { WARY } else { self.wary.saturating_sub(1) };
                    }
                    return Ok(Some(Decided { outcomes, changes }));
                }
            }
        }
        let message = "the rules kept asking for more records".to_owned();
        Err(StoreError::Damaged { key: "batch".to_owned(), message })
    }

    async fn write(&mut self, mut batch: Vec<Pending>, decided: Decided) -> Attempt {
        let Decided { outcomes, changes } = decided;
        if changes.is_empty() {
            self.answer(batch, outcomes);
            return Attempt::Done;
        }
        let begun = Instant::now();
        let written = self.store.write(&changes).await;
        self.last_write = begun.elapsed();
        match written {
            Ok(()) => {
                self.tell(&changes);
                self.cache.wrote(changes);
                self.answer(batch, outcomes);
                Attempt::Done
            }
            Err(error) => {
                self.cache.doubt(&changes);
                match error {
                    WriteError::Unknown(message) => {
                        for (pending, outcome) in batch.iter_mut().zip(&outcomes) {
                            pending.attempted |= changed(outcome);
                        }
                        return Attempt::Unknown(batch, message);
                    }
                    WriteError::Exists => self.wary = WARY,
                    WriteError::Conflict | WriteError::Failed(_) => {}
                }
                for pending in batch.iter().filter(|pending| !pending.attempted) {
                    pending.ticket.back_to_waiting();
                }
                match error {
                    WriteError::Failed(message) => Attempt::Failed(batch, message),
                    _ => Attempt::Again(batch),
                }
            }
        }
    }

    /// Tells those who wait, and those who watch, of what was written.
    fn tell(&mut self, changes: &ChangeSet) {
        for change in &changes.counters {
            self.room.counter_changed(&change.value.id);
            self.pulse.counter_changed(&change.value.id.text);
        }
        for change in &changes.reservations {
            self.room.reservation_changed(&change.value.key);
        }
        for removal in &changes.removed_reservations {
            self.room.reservation_changed(&removal.key);
        }
    }

    /// Answers everybody, but for those who go on waiting.
    fn answer(&mut self, batch: Vec<Pending>, outcomes: Vec<Outcome>) {
        let mut answered = Vec::with_capacity(batch.len());
        for (pending, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Err(refusal) if pending.may_stay() && wait::may_help(&refusal) => {
                    self.keep_waiting(pending, &refusal);
                }
                outcome => answered.push((pending, outcome)),
            }
        }
        for (mut pending, outcome) in answered {
            // One who is answered is not among those who wait.
            if let Some(wait) = &mut pending.wait {
                wait.leave();
            }
            match outcome {
                Ok(mut answer) => {
                    // What an earlier attempt of this very call has done is its
                    // first answer, not a replay.
                    answer.replayed &= !pending.attempted;
                    self.lines.count(&mut answer.limits);
                    pending.done(answer, &self.queue, &mut self.grants);
                }
                // An earlier attempt may have taken effect where a read cannot
                // see it yet; a refusal would be final, and perhaps wrong.
                Err(_) if pending.attempted && !pending.own => self.unsure(pending),
                Err(refusal) => {
                    let over = pending.wait.as_ref().filter(|wait| wait.over);
                    let mut refusal = match over {
                        Some(wait) => wait.in_vain(refusal),
                        None => refusal,
                    };
                    self.lines.count(refusal.limits_mut());
                    pending.answer(Err(Error::Refused(refusal)));
                }
            }
        }
    }

    fn keep_waiting(&mut self, pending: Pending, refusal: &Refusal) {
        if self.pulse.closing() {
            return pending.answer(Err(going()));
        }
        if pending.gone() {
            return;
        }
        if let Some(pending) = self.room.take_in(pending, refusal) {
            pending.answer(Err(Error::Overloaded));
        }
    }

    /// The store does not answer: nobody is refused for that, and whoever waits
    /// goes on waiting while his time lasts.
    fn give_up(&mut self, batch: Vec<Pending>, message: &str) {
        for pending in batch {
            if pending.attempted {
                self.unsure(pending);
                continue;
            }
            let stays = pending.may_stay() && !self.pulse.closing();
            let left = if stays { self.room.put_back(pending) } else { Some(pending) };
            match left {
                None => {}
                Some(pending) if pending.own => self.try_later(pending),
                Some(pending) => pending.answer(Err(Error::Unavailable(message.to_owned()))),
            }
        }
    }

    fn unsure(&mut self, pending: Pending) {
        if pending.own {
            self.try_later(pending);
        } else {
            pending.answer(Err(Error::OutcomeUnknown));
        }
    }

    fn try_later(&mut self, pending: Pending) {
        self.later.push((Instant::now() + OWN_PAUSE, pending));
    }
}

/// A batch that is ready to be written.
struct Decided {
    outcomes: Vec<Outcome>,
    changes: ChangeSet,
}

fn changed(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(answer) if !answer.replayed)
}

fn reserved(batch: &[Pending]) -> impl Iterator<Item = &ReservationKey> {
    batch.iter().filter_map(Pending::reserves)
}

async fn policies(catalog: &Catalog, batch: &[Pending]) -> Result<Policies, StoreError> {
    let namespaces: BTreeSet<&String> = batch.iter().map(|pending| &pending.namespace).collect();
    // At once, not in turn: a namespace that is cold must not cost the others
    // a round trip each.
    let read = namespaces
        .into_iter()
        .map(async |namespace| Ok((namespace.clone(), catalog.policy(namespace).await?)));
    try_join_all(read).await.map(Policies::from_iter)
}

fn going() -> Error {
    Error::Unavailable("the server is shutting down".to_owned())
}
