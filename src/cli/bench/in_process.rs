//! Callers of an engine in this process: what the engine and its store do
//! without gRPC between, as the alternatives do without it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};

use super::load::{self, Caller, Step, Tally};
use super::{Args, METRIC, NAMESPACE};
use crate::domain::decide::{Command, Commit, IfExpired, Reserve};
use crate::domain::name::{Dimensions, ReservationKey};
use crate::domain::policy::PolicySpec;
use crate::domain::reservation::{DEFAULT_TTL, ItemRequest, Request};
use crate::engine::{self, Engine};
use crate::server::{StoreAddress, StoreClock};

/// Measures an engine of its own over the store.
pub(super) async fn measure(
    store: &StoreAddress,
    policy: PolicySpec,
    args: &Args,
) -> Result<Tally> {
    let store = store.open(StoreClock::Own).await?;
    let (engine, batches) = Engine::start(Arc::clone(&store), engine::Settings::default());
    let applied = engine.apply_policy(policy, 0, false, "bench").await;
    applied.map_err(|error| anyhow!("the policy was not applied: {error}"))?;
    let run = uuid::Uuid::now_v7();
    let caller = |n: u32| EngineCaller {
        engine: Arc::clone(&engine),
        dimensions: [("key".to_owned(), format!("{run}-{}", n % args.keys))].into(),
    };
    let callers = (0..u32::from(args.callers)).map(caller).collect();
    let tally = load::measure(callers, args.length()).await.0;
    engine.stop();
    batches.await.context("the engine has panicked")?;
    store.close().await;
    Ok(tally)
}

struct EngineCaller {
    engine: Arc<Engine>,
    dimensions: Dimensions,
}

impl EngineCaller {
    async fn submit(&self, command: Command) -> Result<(), String> {
        self.engine.submit(command, None).await.map(|_| ()).map_err(|error| error.to_string())
    }
}

impl Caller for EngineCaller {
    async fn step(&mut self, _end: Instant) -> Result<Step, String> {
        let key = ReservationKey::new(NAMESPACE, &uuid::Uuid::now_v7().to_string());
        let (metric, dimensions) = (METRIC.to_owned(), self.dimensions.clone());
        let request = Arc::new(Request {
            items: vec![ItemRequest { metric, amount: 1, dimensions }],
            ttl: DEFAULT_TTL,
            commit: false,
            resources: Vec::new(),
            labels: Dimensions::new(),
            adjustment: false,
        });
        let principal = "bench".to_owned();
        let started = Instant::now();
        let reserve = Reserve { key: key.clone(), request, principal: principal.clone() };
        self.submit(Command::Reserve(reserve)).await?;
        let reserved = Instant::now();
        let (amounts, resources, if_expired) = (Vec::new(), Vec::new(), IfExpired::Reject);
        let commit = Commit { key, amounts, resources, if_expired, principal };
        self.submit(Command::Commit(commit)).await?;
        Ok(Step::Pair { reserve: reserved - started, commit: reserved.elapsed() })
    }
}
