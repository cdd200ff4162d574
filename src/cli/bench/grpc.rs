//! Callers of a server, over gRPC.

use std::time::Instant;

use tonic::Status;

use super::load::{Caller, Step};
use super::{Args, METRIC, NAMESPACE};
use crate::cli::connect::Connection;
use crate::cli::output::reason;
use crate::proto::v1;

/// A backend's worker: reserves, commits, and begins anew.
pub(super) struct GrpcCaller {
    connection: Connection,
    key: String,
    /// The ids that were committed, to be sent again.
    done: Vec<String>,
    replay_percent: u8,
}

/// So many callers, dealt out over keys of this run's own and connections.
pub(super) fn callers(args: &Args, connections: &[Connection]) -> Vec<GrpcCaller> {
    let run = uuid::Uuid::now_v7();
    let connections = connections.iter().cycle();
    (0..u32::from(args.callers))
        .zip(connections)
        .map(|(n, connection)| GrpcCaller {
            connection: connection.clone(),
            key: format!("{run}-{}", n % args.keys),
            done: Vec::new(),
            replay_percent: 0,
        })
        .collect()
}

/// The same callers, now sending earlier ids again now and then.
pub(super) fn replaying(mut callers: Vec<GrpcCaller>, percent: u8) -> Vec<GrpcCaller> {
    for caller in &mut callers {
        caller.replay_percent = percent;
    }
    callers
}

impl GrpcCaller {
    async fn reserve(&self, id: &str) -> Result<bool, String> {
        let request = v1::ReserveRequest {
            namespace: NAMESPACE.to_owned(),
            reservation_id: id.to_owned(),
            items: vec![v1::Item { metric: METRIC.to_owned(), ..v1::Item::default() }],
            dimensions: [("key".to_owned(), self.key.clone())].into(),
            ..v1::ReserveRequest::default()
        };
        let answer = self.connection.quota().reserve(self.connection.call(request)).await;
        Ok(answer.map_err(|status| brief(&status))?.into_inner().replayed)
    }

    async fn commit(&self, id: &str) -> Result<(), String> {
        let request = v1::CommitRequest {
            namespace: NAMESPACE.to_owned(),
            reservation_id: id.to_owned(),
            ..v1::CommitRequest::default()
        };
        self.connection
            .quota()
            .commit(self.connection.call(request))
            .await
            .map_err(|status| brief(&status))?;
        Ok(())
    }
}

impl Caller for GrpcCaller {
    async fn step(&mut self, _end: Instant) -> Result<Step, String> {
        let started = Instant::now();
        if fastrand::u8(0..100) < self.replay_percent && !self.done.is_empty() {
            let id = &self.done[fastrand::usize(..self.done.len())];
            return if self.reserve(id).await? {
                Ok(Step::Replay(started.elapsed()))
            } else {
                Err("an id that was sent again was admitted again".to_owned())
            };
        }
        let id = uuid::Uuid::now_v7().to_string();
        self.reserve(&id).await?;
        let reserved = Instant::now();
        self.commit(&id).await?;
        let commit = reserved.elapsed();
        self.done.push(id);
        Ok(Step::Pair { reserve: reserved - started, commit })
    }
}

fn brief(status: &Status) -> String {
    format!("{}: {}", reason(status), status.message())
}
