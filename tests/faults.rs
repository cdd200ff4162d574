//! Several engines over one store that misbehaves by seed: conflicts, definite
//! failures, outcomes unknown in both directions, engines that crash; callers
//! who retry as the contract tells them to. Nothing is applied twice, nothing
//! acknowledged is lost, nobody is over-admitted.
//!
//! A failing seed replays with `QUOTAD_SEED=n cargo test --test faults`;
//! `QUOTAD_SEEDS=n` runs more of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quota_authority::domain::decide::{
    Adjust, Answer, Command, Commit, Extend, FindBy, IfExpired, Refund, Release, Reserve,
};
use quota_authority::domain::invariants;
use quota_authority::domain::name::{ReservationKey, ResourceKey};
use quota_authority::domain::policy::{
    Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
use quota_authority::domain::refusal::Refusal;
use quota_authority::domain::reservation::{
    ItemRequest, Request, Reservation, ReservationState, Settled,
};
use quota_authority::domain::time::{Span, Time};
use quota_authority::engine::{Engine, Error, Settings};
use quota_authority::store::SharedStore;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::faulty::{Fault, FaultyStore};
use quota_authority::store::memory::MemoryStore;
use tokio::task::JoinHandle;

const NAMESPACE: &str = "n";
const ENGINES: usize = 3;
const ACTORS: usize = 24;
const CALLS_EACH: usize = 6;
const RESOURCES: u8 = 6;

fn limit(name: &str, per: &[&str], window: WindowSpec, max: i64) -> LimitSpec {
    LimitSpec {
        name: name.to_owned(),
        metric: "m".to_owned(),
        conditions: BTreeMap::new(),
        per: per.iter().map(|name| (*name).to_owned()).collect(),
        optional: false,
        plan_of: None,
        window,
        max: MaxSpec::Same(Bound::AtMost(max)),
        mode: Mode::Enforced,
    }
}

fn policy() -> PolicySpec {
    let requires = vec!["user".to_owned()];
    let rolling = WindowSpec::Rolling { length: Span::from_secs(30), buckets: 6 };
    PolicySpec {
        namespace: NAMESPACE.to_owned(),
        metrics: BTreeMap::from([("m".to_owned(), MetricSpec { requires })]),
        limits: vec![
            limit("all", &[], WindowSpec::Lifetime, 40),
            limit("each", &["user"], WindowSpec::Lifetime, 15),
            limit("minute", &["user"], WindowSpec::Fixed(Span::from_secs(60)), 12),
            limit("rolling", &["user"], rolling, 14),
        ],
        ..PolicySpec::default()
    }
}

/// Engines over one store, each of which may crash and start again.
struct Cluster {
    store: SharedStore,
    engines: Vec<Mutex<(Arc<Engine>, JoinHandle<()>)>>,
}

impl Cluster {
    fn over(store: SharedStore) -> Self {
        let start = |_| Mutex::new(Engine::start(Arc::clone(&store), Settings::default()));
        Self { engines: (0..ENGINES).map(start).collect(), store }
    }

    fn engine(&self, n: usize) -> Arc<Engine> {
        Arc::clone(&self.engines[n % ENGINES].lock().unwrap().0)
    }

    /// Ends an engine in the middle of whatever it does.
    fn crash(&self, n: usize) {
        let mut engine = self.engines[n % ENGINES].lock().unwrap();
        engine.1.abort();
        *engine = Engine::start(Arc::clone(&self.store), Settings::default());
    }

    /// Sends a command until it has an answer or a refusal, each time to
    /// another engine.
    async fn send(&self, command: &Command, first: usize) -> Result<Answer, Refusal> {
        for attempt in first..first + 1000 {
            match self.engine(attempt).submit(command.clone(), None).await {
                Ok(answer) => return Ok(answer),
                Err(Error::Refused(refusal)) => return Err(refusal),
                Err(Error::Unavailable(_) | Error::OutcomeUnknown | Error::Overloaded) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(Error::Internal(message)) => panic!("{message}"),
            }
        }
        panic!("no answer to {command:?}");
    }
}

/// What a caller was told, and therefore must hold for ever.
struct Told {
    key: ReservationKey,
    outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Held,
    /// With these units left of it.
    Committed(Vec<i64>),
    Released,
    /// Another had its resource. A commit that a server had begun before it
    /// crashed may land even so, when the resource is free again.
    Bound,
    /// It had expired before it could be settled.
    Lapsed,
}

async fn actor(
    cluster: Arc<Cluster>,
    mut chance: fastrand::Rng,
    n: usize,
    clock: ManualClock,
    operated: bool,
) -> Vec<Told> {
    let mut told = Vec::new();
    for call in 0..CALLS_EACH {
        let key = ReservationKey::new(NAMESPACE, &format!("{n}-{call}"));
        let reserve = Command::Reserve(Reserve {
            key: key.clone(),
            request: Arc::new(Request {
                items: vec![ItemRequest {
                    metric: "m".to_owned(),
                    amount: chance.i64(1..4),
                    dimensions: BTreeMap::from([(
                        "user".to_owned(),
                        format!("u{}", chance.u8(0..3)),
                    )]),
                }],
                ttl: Span::from_secs(chance.i64(1..40)),
                commit: chance.u8(0..8) == 0,
                resources: vec![],
                labels: BTreeMap::new(),
                adjustment: false,
            }),
            principal: "test".to_owned(),
        });
        let outcome = match cluster.send(&reserve, chance.usize(0..ENGINES)).await {
            Err(Refusal::QuotaExceeded { .. }) => Outcome::Refused,
            // Its hold ran out while the answer to it was being looked for.
            Err(Refusal::ReservationExpired { .. }) => Outcome::Lapsed,
            Err(other) => panic!("{other:?}"),
            Ok(answer) => {
                let settled = settle(&cluster, &mut chance, &answer, operated).await;
                refund(&cluster, &mut chance, &key, settled).await
            }
        };
        told.push(Told { key, outcome });
        if operated && chance.u8(0..4) == 0 {
            adjust(&cluster, &mut chance, &format!("adjusted-{n}-{call}")).await;
        }
        match chance.u8(0..20) {
            0..3 => cluster.crash(chance.usize(0..ENGINES)),
            3..6 => clock.advance(Span::from_millis(chance.i64(0..20_000))),
            _ => {}
        }
    }
    told
}

/// Corrects a counter by hand, where that leaves something of it.
async fn adjust(cluster: &Cluster, chance: &mut fastrand::Rng, id: &str) {
    let limit = ["each", "minute", "rolling"][chance.usize(0..3)].to_owned();
    let delta = [-3, -1, 1, 2][chance.usize(0..4)];
    let user = format!("u{}", chance.u8(0..3));
    let adjust = Command::Adjust(Adjust {
        key: ReservationKey::new(NAMESPACE, id),
        limit,
        counter: BTreeMap::from([("user".to_owned(), user)]),
        delta,
        resources: vec![],
        reason: "a test".to_owned(),
        principal: "test".to_owned(),
    });
    match cluster.send(&adjust, chance.usize(0..ENGINES)).await {
        Ok(_) | Err(Refusal::InvalidFields(_)) => {}
        Err(other) => panic!("{other:?}"),
    }
}

/// Gives a part back of what was committed, or all of it, sometimes asked for
/// twice at once.
async fn refund(
    cluster: &Cluster,
    chance: &mut fastrand::Rng,
    key: &ReservationKey,
    outcome: Outcome,
) -> Outcome {
    let Outcome::Committed(left) = &outcome else { return outcome };
    if chance.bool() {
        return outcome;
    }
    let amounts = if chance.bool() { vec![] } else { vec![chance.i64(1..=left[0])] };
    let refund = Command::Refund(Refund {
        find_by: FindBy::Id(key.clone()),
        refund_id: "once".to_owned(),
        amounts,
        reason: String::new(),
        principal: "test".to_owned(),
    });
    let first = chance.usize(0..ENGINES);
    let (one, other) = tokio::join!(cluster.send(&refund, first), cluster.send(&refund, first + 1));
    let left = |answer: Result<Answer, Refusal>| answer.expect("a refund").reservation.left();
    let (one, other) = (left(one), left(other));
    assert_eq!(one, other, "{refund:?}");
    Outcome::Committed(one)
}

/// Renews a hold, or finds that it has run out.
async fn extend(cluster: &Cluster, chance: &mut fastrand::Rng, key: &ReservationKey) {
    let (key, ttl) = (key.clone(), Span::from_secs(chance.i64(1..60)));
    let extend = Command::Extend(Extend { key, ttl, principal: "test".to_owned() });
    match cluster.send(&extend, chance.usize(0..ENGINES)).await {
        Ok(_) | Err(Refusal::ReservationExpired { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
}

async fn settle(
    cluster: &Cluster,
    chance: &mut fastrand::Rng,
    answer: &Answer,
    operated: bool,
) -> Outcome {
    let key = answer.reservation.key.clone();
    let reserved = answer.reservation.reserved();
    if let Some(amounts) = answer.reservation.committed() {
        return Outcome::Committed(amounts.to_vec());
    }
    if chance.u8(0..3) == 0 {
        extend(cluster, chance, &key).await;
    }
    let principal = "test".to_owned();
    let command = match chance.u8(0..4) {
        0 => return Outcome::Held,
        1 => Command::Release(Release {
            key,
            reason: String::new(),
            allow_missing: false,
            principal,
        }),
        _ => {
            let amounts = vec![chance.i64(1..=reserved[0])];
            let if_expired = match chance.u8(0..4) {
                0 | 1 => IfExpired::Reject,
                2 if operated => IfExpired::Overdraw,
                _ => IfExpired::Reclaim,
            };
            let resources = match chance.u8(0..3) {
                0 => vec![format!("resource {}", chance.u8(0..RESOURCES))],
                _ => vec![],
            };
            Command::Commit(Commit { key, amounts, resources, if_expired, principal })
        }
    };
    let (settled, command) = deliver(cluster, chance, command).await;
    match settled {
        Ok(settled) => match settled.reservation.committed() {
            Some(amounts) => Outcome::Committed(amounts.to_vec()),
            None => Outcome::Released,
        },
        // Late, and what it would take again is gone.
        Err(Refusal::ReservationExpired { .. } | Refusal::QuotaExceeded { .. }) => Outcome::Lapsed,
        Err(Refusal::ResourceAlreadyBound { .. }) => Outcome::Bound,
        Err(other) => panic!("{other:?} to {command:?}"),
    }
}

/// Sends a command, sometimes twice.
async fn deliver(
    cluster: &Cluster,
    chance: &mut fastrand::Rng,
    command: Command,
) -> (Result<Answer, Refusal>, Command) {
    let first = chance.usize(0..ENGINES);
    let settled = if chance.bool() {
        cluster.send(&command, first).await
    } else {
        // Delivered twice, to two engines, the second now and then much later:
        // both must say the same.
        let pause = Duration::from_millis(chance.u64(0..40));
        let (one, other) = tokio::join!(cluster.send(&command, first), async {
            tokio::time::sleep(pause).await;
            cluster.send(&command, first + 1).await
        });
        let told = |settled: &Result<Answer, Refusal>| {
            settled.as_ref().map(|a| a.reservation.settled.clone()).map_err(|r| format!("{r:?}"))
        };
        // What there was no room for, or what was bound, may be there or free
        // for the second.
        let changeable = |settled: &Result<Answer, Refusal>| {
            use Refusal::{QuotaExceeded, ResourceAlreadyBound};
            matches!(settled, Err(QuotaExceeded { .. } | ResourceAlreadyBound { .. }))
        };
        if changeable(&one) || changeable(&other) {
            if one.is_ok() { one } else { other }
        } else {
            assert_eq!(told(&one), told(&other), "{command:?}");
            one
        }
    };
    (settled, command)
}

async fn run(seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let clock = ManualClock::at(Time::from_millis(1_700_000_000_000).unwrap());
    let memory: SharedStore = Arc::new(MemoryStore::new(Clock::Manual(clock.clone())));
    let faulty = FaultyStore::new(Arc::clone(&memory), seed, chance.u32(0..60));
    let cluster = Arc::new(Cluster::over(faulty.clone()));
    let apply = async {
        while cluster.engine(0).apply_policy(policy(), 0, false, "test").await.is_err() {}
    };
    apply.await;
    let actors: Vec<_> = (0..ACTORS)
        .map(|n| {
            // Operators may go beyond the limits: not in every run.
            let operated = seed.is_multiple_of(4);
            let cluster = Arc::clone(&cluster);
            tokio::spawn(actor(cluster, chance.fork(), n, clock.clone(), operated))
        })
        .collect();
    let mut told = Vec::new();
    for actor in actors {
        told.extend(actor.await.unwrap_or_else(|panic| panic!("seed {seed}: {panic}")));
        check(&memory, seed).await;
    }
    for Told { key, outcome } in told {
        let found = FindBy::Id(key.clone());
        let found = cluster.engine(0).reservation(NAMESPACE, &found).await;
        let found: Option<(Arc<Reservation>, Time)> = match found {
            Ok(found) => Some(found),
            Err(Error::Refused(Refusal::ReservationNotFound { .. })) => None,
            Err(other) => panic!("seed {seed}: {other}"),
        };
        let state = found.as_ref().map(|(reservation, now)| reservation.state(*now));
        let holds = match &outcome {
            Outcome::Refused => state.is_none(),
            Outcome::Held | Outcome::Lapsed => {
                matches!(state, Some(ReservationState::Held | ReservationState::Expired))
            }
            Outcome::Bound => !matches!(state, None | Some(ReservationState::Released)),
            Outcome::Released => state == Some(ReservationState::Released),
            Outcome::Committed(amounts) => {
                state == Some(ReservationState::Committed)
                    && found.as_ref().map(|(r, _)| r.left()).as_ref() == Some(amounts)
            }
        };
        assert!(holds, "seed {seed}: {key} was told to be {outcome:?}, and is {state:?}");
    }
    // What a crashed engine had begun has landed by then, or never will.
    tokio::time::sleep(Duration::from_mins(1)).await;
    check_resources(&cluster, seed).await;
    check(&memory, seed).await;
}

/// Whatever is committed and not wholly refunded has its resources, and nobody
/// else has them.
async fn check_resources(cluster: &Cluster, seed: u64) {
    let reservations = cluster.store.reservations_after(None, 10_000).await.unwrap();
    for n in 0..RESOURCES {
        let name = format!("resource {n}");
        let owns = |reservation: &&Arc<Reservation>| {
            let Settled::Committed { resources, .. } = &reservation.settled else { return false };
            resources.contains(&name) && reservation.left().iter().any(|left| *left > 0)
        };
        let owners: Vec<_> = reservations.iter().filter(owns).map(|r| r.key.clone()).collect();
        let find_by = FindBy::Resource(ResourceKey::new(NAMESPACE, &name));
        let found = match cluster.engine(0).reservation(NAMESPACE, &find_by).await {
            Ok((found, _)) => vec![found.key.clone()],
            Err(Error::Refused(Refusal::ReservationNotFound { .. })) => vec![],
            Err(other) => panic!("seed {seed}: {other}"),
        };
        assert_eq!(found, owners, "seed {seed}: {name}");
    }
}

async fn check(store: &SharedStore, seed: u64) {
    let counters = store.counters_after(None, 10_000).await.unwrap();
    let reservations = store.reservations_after(None, 10_000).await.unwrap();
    let breaches = invariants::breaches(&counters, &reservations, store.now());
    assert!(breaches.is_empty(), "seed {seed}: {breaches:#?}");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_a_promise() {
    let seeds = match number("QUOTAD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("QUOTAD_SEEDS").unwrap_or(150),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(seed));
    }
}

/// Each kind of fault by itself, at the first write of a Reserve, a Commit and
/// a Release: the caller's first answer is right and says that it is the first.
#[tokio::test(start_paused = true)]
async fn every_fault_by_itself_is_applied_once_and_answered_once() {
    let kinds = [
        Fault::Conflict,
        Fault::Failed,
        Fault::AppliedUnknown,
        Fault::LostUnknown,
        Fault::LateUnknown,
        Fault::Delay,
    ];
    for fault in kinds {
        let memory: SharedStore = Arc::new(MemoryStore::new(Clock::System));
        let faulty = FaultyStore::new(Arc::clone(&memory), 0, 0);
        let cluster = Cluster::over(faulty.clone());
        cluster.engine(0).apply_policy(policy(), 0, false, "test").await.unwrap();
        let request = |amount| {
            Arc::new(Request {
                items: vec![ItemRequest {
                    metric: "m".to_owned(),
                    amount,
                    dimensions: BTreeMap::from([("user".to_owned(), "u".to_owned())]),
                }],
                ttl: Span::from_secs(60),
                commit: false,
                resources: vec![],
                labels: BTreeMap::new(),
                adjustment: false,
            })
        };
        let key = |id| ReservationKey::new(NAMESPACE, id);
        let principal = "test".to_owned();
        let commands = [
            Command::Reserve(Reserve {
                key: key("a"),
                request: request(2),
                principal: principal.clone(),
            }),
            Command::Extend(Extend {
                key: key("a"),
                ttl: Span::from_secs(3600),
                principal: principal.clone(),
            }),
            Command::Commit(Commit {
                key: key("a"),
                amounts: vec![2],
                resources: vec!["r".to_owned()],
                if_expired: IfExpired::Reject,
                principal: principal.clone(),
            }),
            Command::Refund(Refund {
                find_by: FindBy::Resource(ResourceKey::new(NAMESPACE, "r")),
                refund_id: "f".to_owned(),
                amounts: vec![1],
                reason: String::new(),
                principal: principal.clone(),
            }),
            Command::Reserve(Reserve {
                key: key("b"),
                request: request(1),
                principal: principal.clone(),
            }),
            Command::Release(Release {
                key: key("b"),
                reason: String::new(),
                allow_missing: false,
                principal,
            }),
        ];
        for command in commands {
            faulty.next([fault]);
            let answer = cluster.send(&command, 0).await.unwrap();
            assert!(!answer.replayed, "{fault:?}: {command:?}");
            let again = cluster.send(&command, 1).await;
            match (&command, again) {
                // By as much later as it was sent later.
                (Command::Extend(_), Ok(_)) => {}
                (_, Ok(again)) => assert!(again.replayed, "{fault:?}: {command:?}"),
                (_, Err(refusal)) => panic!("{fault:?}: {refusal:?}"),
            }
        }
        check(&memory, 0).await;
        let counters = memory.counters_after(None, 10).await.unwrap();
        assert_eq!(counters.len(), policy().limits.len());
        for counter in counters {
            assert_eq!(
                (counter.used(memory.now()), counter.held(memory.now())),
                (1, 0),
                "{fault:?}"
            );
        }
    }
}

/// A store that takes seconds for every write is waited for, rather than each
/// write thrown away for being decided too long ago.
#[tokio::test(start_paused = true)]
async fn a_slow_store_gets_its_writes_through() {
    let memory: SharedStore = Arc::new(MemoryStore::new(Clock::System));
    let faulty = FaultyStore::new(Arc::clone(&memory), 0, 0);
    let cluster = Cluster::over(faulty.clone());
    cluster.engine(0).apply_policy(policy(), 0, false, "test").await.unwrap();
    faulty.next([Fault::Slow; 100]);
    let request = Arc::new(Request {
        items: vec![ItemRequest {
            metric: "m".to_owned(),
            amount: 1,
            dimensions: BTreeMap::from([("user".to_owned(), "u".to_owned())]),
        }],
        ttl: Span::from_secs(60),
        commit: true,
        resources: vec![],
        labels: BTreeMap::new(),
        adjustment: false,
    });
    let key = ReservationKey::new(NAMESPACE, "slow");
    let principal = "test".to_owned();
    let reserve = Command::Reserve(Reserve { key, request, principal });
    let answer = cluster.engine(0).submit(reserve, None).await;
    assert!(answer.is_ok(), "{answer:?}");
}
