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
const SERVICES: [&str; 4] =
    ["", "quota.v1.QuotaService", "quota.v1.PolicyService", "quota.v1.OperatorService"];
/// The service that there is under a test clock besides.
const TEST_CLOCK: &str = "quota.testing.v1.TestClockService";

/// Reports the health of a server.
pub(super) struct Reporter {
    services: Services,
    probe: JoinHandle<()>,
}

/// The services of a server, and who is told how they are.
#[derive(Clone)]
struct Services {
    names: Vec<&'static str>,
    health: HealthReporter,
}

/// Starts to watch the store, and gives the service that tells about it.
pub(super) async fn watch(
    engine: Arc<Engine>,
    under_test_clock: bool,
) -> (HealthServer<HealthService>, Reporter) {
    let health = HealthReporter::new();
    let mut names = SERVICES.to_vec();
    names.extend(under_test_clock.then_some(TEST_CLOCK));
    let services = Services { names, health: health.clone() };
    services.are(ServingStatus::Serving).await;
    let service = HealthServer::new(HealthService::from_health_reporter(health));
    let probe = tokio::spawn(probe(engine, services.clone()));
    (service, Reporter { services, probe })
}

impl Reporter {
    /// The server takes no more calls.
    pub async fn not_serving(&self) {
        self.probe.abort();
        self.services.are(ServingStatus::NotServing).await;
    }

    /// Ends the streams of those who watch, once they had time to hear it:
    /// otherwise the server would wait for them to go.
    pub async fn end_watches(mut self) {
        tokio::time::sleep(FAREWELL).await;
        for service in self.services.names {
            self.services.health.clear_service_status(service).await;
        }
    }
}

async fn probe(engine: Arc<Engine>, services: Services) {
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
            services.are(ServingStatus::Serving).await;
        } else {
            warn!("the store does not answer: not serving");
            services.are(ServingStatus::NotServing).await;
        }
    }
}

impl Services {
    async fn are(&self, status: ServingStatus) {
        for service in &self.names {
            self.health.set_service_status(*service, status).await;
        }
    }
}
