//! Many callers at once, each a backend of its own, and what they got.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::cli::connect::Connection;
use crate::cli::output::reason;
use crate::proto::v1;

/// The blog's namespace.
pub(super) const BLOG: &str = "blog";
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
    /// One of the refusals, for a reader.
    pub example: Option<Status>,
}

impl Outcome {
    fn add(&mut self, ended: Result<(), Status>) {
        match ended {
            Ok(()) => self.admitted += 1,
            Err(status) if status.code() == Code::ResourceExhausted => {
                *self.refused.entry(why(&status)).or_default() += 1;
                self.example.get_or_insert(status);
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

/// So many callers at once, each on a connection of its own, each trying to
/// publish one post of `user`.
pub(super) async fn crowd(server: &str, user: &'static str, callers: u32, name: &str) -> Outcome {
    let mut tasks = JoinSet::new();
    for n in 1..=callers {
        tasks.spawn(publish(server.to_owned(), user, format!("{name}-{n}")));
    }
    let mut outcome = Outcome::default();
    while let Some(ended) = tasks.join_next().await {
        outcome.add(ended.unwrap_or_else(|panic| Err(Status::unknown(panic.to_string()))));
    }
    outcome
}

/// What a backend does to publish a post.
async fn publish(server: String, user: &str, id: String) -> Result<(), Status> {
    let connection = Connection::open(&server, PATIENCE)
        .await
        .map_err(|failure| Status::unavailable(failure.to_text().unwrap_or_default()))?;
    connection.quota().reserve(connection.call(reserve(user, &id))).await?;
    // Here the backend creates the post.
    connection.quota().commit(connection.call(commit(&id))).await?;
    Ok(())
}

/// Asks for one post.
pub(super) fn reserve(user: &str, id: &str) -> v1::ReserveRequest {
    v1::ReserveRequest {
        namespace: BLOG.to_owned(),
        reservation_id: id.to_owned(),
        items: vec![v1::Item { metric: "posts".to_owned(), ..v1::Item::default() }],
        dimensions: [("user".to_owned(), user.to_owned())].into(),
        ..v1::ReserveRequest::default()
    }
}

/// Books it, with the name of the post.
pub(super) fn commit(id: &str) -> v1::CommitRequest {
    v1::CommitRequest {
        namespace: BLOG.to_owned(),
        reservation_id: id.to_owned(),
        resources: vec![format!("post/{id}")],
        ..v1::CommitRequest::default()
    }
}
