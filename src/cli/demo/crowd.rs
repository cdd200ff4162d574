//! Many callers at once, each a backend of its own, and what they got.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::cli::connect::Connection;
use crate::cli::output::reason;
use crate::proto::v1;

/// How long any call may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How a number of calls ended.
#[derive(Default)]
pub(super) struct Outcome {
    /// How many were admitted, and committed.
    pub admitted: i64,
    /// How many were refused, for each reason.
    refused: BTreeMap<String, i64>,
    /// Calls that failed otherwise.
    pub failed: Vec<String>,
}

impl Outcome {
    /// One more call has ended.
    pub fn add(&mut self, ended: Result<(), Status>) {
        match ended {
            Ok(()) => self.admitted += 1,
            Err(status) if status.code() == Code::ResourceExhausted => {
                *self.refused.entry(why(&status)).or_default() += 1;
            }
            Err(status) => self.failed.push(format!("{}: {}", reason(&status), status.message())),
        }
    }

    /// How many were refused.
    pub fn refused(&self) -> i64 {
        self.refused.values().sum()
    }

    /// Why.
    pub fn why(&self) -> String {
        let reasons: Vec<&str> = self.refused.keys().map(String::as_str).collect();
        if reasons.is_empty() { "-".to_owned() } else { reasons.join(", ") }
    }
}

/// The reason, and the limit that it is about.
fn why(status: &Status) -> String {
    let info = status.get_details_error_info();
    let limit = info.and_then(|mut info| info.metadata.remove("limit"));
    let reason = reason(status);
    limit.map_or_else(|| reason.clone(), |limit| format!("{reason}: {limit}"))
}

/// As many callers at once, each on a connection of its own, each committing
/// what it gets.
pub(super) async fn crowd(server: &str, calls: Vec<v1::ReserveRequest>) -> Outcome {
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(take(server.to_owned(), call));
    }
    let mut outcome = Outcome::default();
    while let Some(ended) = tasks.join_next().await {
        outcome.add(ended.unwrap_or_else(|panic| Err(Status::unknown(panic.to_string()))));
    }
    outcome
}

/// What a backend does.
async fn take(server: String, reserve: v1::ReserveRequest) -> Result<(), Status> {
    let connection = Connection::open(&server, PATIENCE)
        .await
        .map_err(|failure| Status::unavailable(failure.to_text().unwrap_or_default()))?;
    let commit = v1::CommitRequest {
        namespace: reserve.namespace.clone(),
        reservation_id: reserve.reservation_id.clone(),
        ..v1::CommitRequest::default()
    };
    connection.quota().reserve(connection.call(reserve)).await?;
    // Here the backend creates what it asked for.
    connection.quota().commit(connection.call(commit)).await?;
    Ok(())
}
