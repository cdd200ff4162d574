//! Health: SERVING while the store answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tracing::{info, warn};

use crate::engine::Engine;

/// Between two questions to the store.
const PROBE: Duration = Duration::from_millis(500);
/// How long the store may take to answer one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long those who watch have to hear that the server is going.
const FAREWELL: Duration = Duration::from_millis(500);
/// The whole server, then its services.
const SERVICES: [&str; 3] = ["", "quota.v1.QuotaService", "quota.v1.PolicyService"];

/// Reports the health of a server.
pub(super) struct Reporter {
    health: HealthReporter,
    probe: JoinHandle<()>,
}

/// Starts to watch the store, and gives the service that tells about it.
pub(super) async fn watch(engine: Arc<Engine>) -> (HealthServer<HealthService>, Reporter) {
    let health = HealthReporter::new();
    set(&health, ServingStatus::Serving).await;
    let service = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let probe = tokio::spawn(probe(engine, health.clone()));
    (service, Reporter { health, probe })
}

impl Reporter {
    /// The server takes no more calls.
    pub async fn not_serving(&self) {
        self.probe.abort();
        set(&self.health, ServingStatus::NotServing).await;
    }

    /// Ends the streams of those who watch, once they had time to hear it:
    /// otherwise the server would wait for them to go.
    pub async fn end_watches(mut self) {
        tokio::time::sleep(FAREWELL).await;
        for service in SERVICES {
            self.health.clear_service_status(service).await;
        }
    }
}

async fn probe(engine: Arc<Engine>, health: HealthReporter) {
    let mut serving = true;
    loop {
        tokio::time::sleep(PROBE).await;
        let answers = tokio::time::timeout(PATIENCE, engine.ping()).await.is_ok_and(|p| p.is_ok());
        if answers == serving {
            continue;
        }
        serving = answers;
        if serving {
            info!("the store answers again: serving");
            set(&health, ServingStatus::Serving).await;
        } else {
            warn!("the store does not answer: not serving");
            set(&health, ServingStatus::NotServing).await;
        }
    }
}

async fn set(health: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        health.set_service_status(service, status).await;
    }
}
