//! The server: puts the services over an engine, and drains on demand.

mod health;
mod open;
mod policy_files;
mod reflection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::codec::CompressionEncoding::Gzip;
use tonic::transport::server::TcpIncoming;
use tracing::{error, info, warn};

pub use crate::store::test_clock::StoreClock;
pub use open::StoreAddress;
pub use policy_files::PolicyFiles;

use crate::api::{OperatorApi, PolicyApi, QuotaApi, TestClockApi};
use crate::engine::{Engine, Settings as EngineSettings};
use crate::proto::testing::v1::test_clock_service_server::TestClockServiceServer;
use crate::proto::v1::operator_service_server::OperatorServiceServer;
use crate::proto::v1::policy_service_server::PolicyServiceServer;
use crate::proto::v1::quota_service_server::QuotaServiceServer;
use crate::store::SharedStore;

/// How long calls under way may take to end once the server is told to.
const DRAIN: Duration = Duration::from_secs(15);
/// Between two HTTP/2 pings to a silent client, and how long he may take to
/// answer before he is taken for dead.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// What a server needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where records live.
    pub store: StoreAddress,
    /// By which clock.
    pub clock: StoreClock,
    /// Files whose policies are put in force, at the start and when they change.
    pub policies: PolicyFiles,
    /// Bounds of the engine.
    pub engine: EngineSettings,
}

/// A server at work.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    done: JoinHandle<Result<()>>,
}

impl Server {
    /// Opens the store, puts the policies of files in force, and starts to
    /// serve.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, a policy not be applied, or the address not
    /// be listened on.
    pub async fn start(settings: Settings) -> Result<Self> {
        let Settings { listen, store, clock, policies, engine } = settings;
        let store = store.open(clock).await?;
        let started = Self::begin(Arc::clone(&store), listen, policies, engine).await;
        if started.is_err() {
            store.close().await;
        }
        started
    }

    /// Starts to serve over a store that is open already.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub async fn over(
        store: SharedStore,
        listen: SocketAddr,
        settings: EngineSettings,
    ) -> Result<Self> {
        Self::begin(store, listen, PolicyFiles::default(), settings).await
    }

    async fn begin(
        store: SharedStore,
        listen: SocketAddr,
        mut policies: PolicyFiles,
        settings: EngineSettings,
    ) -> Result<Self> {
        let (engine, batches) = Engine::start(Arc::clone(&store), settings);
        // Whoever can call finds the policies in force.
        policies.apply(&engine).await?;
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener.local_addr()?;
        if store.test_clock().is_some() {
            warn!(
                time = %store.now(),
                "a test clock is in use: time stands still until quota.testing.v1.TestClockService \
                 moves it; this is no server for production"
            );
        }
        let (stop, stopped) = oneshot::channel();
        let store_name = store.name();
        let work = Work { store, engine, batches, policies };
        let done = tokio::spawn(serve(work, listener, stopped));
        info!(%address, store = store_name, "listening");
        Ok(Self { address, stop: Some(stop), done })
    }

    /// Tells the server to drain: health first, then no new calls; calls under
    /// way are finished, and what waits is written.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // A server that has ended by itself has nobody to tell.
            let _ = stop.send(());
        }
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    ///
    /// It ended otherwise than by [`Server::stop`].
    pub async fn ended(&mut self) -> Result<()> {
        (&mut self.done).await.context("the server has panicked")?
    }
}

/// What a server works with.
struct Work {
    store: SharedStore,
    engine: Arc<Engine>,
    batches: JoinHandle<()>,
    policies: PolicyFiles,
}

async fn serve(work: Work, listener: TcpListener, stopped: oneshot::Receiver<()>) -> Result<()> {
    let Work { store, engine, mut batches, policies } = work;
    let test_clock = store.test_clock();
    let (health, reporter) = health::watch(Arc::clone(&engine), test_clock.is_some()).await;
    let quota = QuotaServiceServer::new(QuotaApi::new(Arc::clone(&engine)));
    let policy = PolicyServiceServer::new(PolicyApi::new(Arc::clone(&engine)));
    let operator = OperatorServiceServer::new(OperatorApi::new(Arc::clone(&engine)));
    // It ends when this is dropped, however the server ends.
    let mut watching = JoinSet::new();
    watching.spawn(policies.watch(Arc::clone(&engine)));
    let (drain, draining) = oneshot::channel::<()>();
    let router = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(health)
        .add_service(reflection::v1(test_clock.is_some())?)
        .add_service(reflection::v1alpha(test_clock.is_some())?)
        .add_optional_service(test_clock.map(TestClockApi::new).map(TestClockServiceServer::new))
        .add_service(quota.accept_compressed(Gzip).send_compressed(Gzip))
        .add_service(policy.accept_compressed(Gzip).send_compressed(Gzip))
        .add_service(operator.accept_compressed(Gzip).send_compressed(Gzip));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let drained = async {
        let _ = draining.await;
    };
    let mut serving = tokio::spawn(router.serve_with_incoming_shutdown(incoming, drained));
    tokio::select! {
        _ = stopped => {}
        ended = &mut serving => return Ok(ended.context("the listener has panicked")??),
        ended = &mut batches => {
            error!("the engine has stopped by itself; ending the server");
            return Err(ended.err().map_or_else(
                || anyhow::anyhow!("the engine has stopped by itself"),
                Into::into,
            ));
        }
    }
    info!("draining");
    drop(watching);
    reporter.not_serving().await;
    engine.let_go();
    let _ = drain.send(());
    let farewell = tokio::spawn(reporter.end_watches());
    if tokio::time::timeout(DRAIN, &mut serving).await.is_err() {
        warn!(after = ?DRAIN, "calls are still under way; ending them");
        serving.abort();
    }
    farewell.abort();
    engine.stop();
    if tokio::time::timeout(DRAIN, batches).await.is_err() {
        warn!(after = ?DRAIN, "commands are still waiting for the store; leaving them");
    }
    store.close().await;
    info!("drained");
    Ok(())
}
