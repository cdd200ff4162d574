//! `OperatorService`.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{answer, operator, trail};
use super::deadline::{answer_by, read_by};
use super::refused::submit;
use super::{ANONYMOUS, catalogue};
use crate::domain::decide::{Answer, Command};
use crate::engine::{AuditQuery, AuditStep, Discrepancy, Engine};
use crate::proto::v1;
use crate::proto::v1::operator_service_server::OperatorService;

/// How many answers of a stream may wait for a slow reader.
const AHEAD: usize = 16;

/// Answers as they come.
type Stream<T> = BoxStream<'static, Result<T, Status>>;

/// Serves `OperatorService` over an engine.
pub struct OperatorApi {
    engine: Arc<Engine>,
}

impl OperatorApi {
    /// Serves this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl OperatorApi {
    /// An audit or a repair under way. It ends when nobody reads it any more.
    fn recount(&self, query: AuditQuery) -> Stream<AuditStep> {
        let (told, steps) = mpsc::channel(AHEAD);
        tokio::spawn(Arc::clone(&self.engine).audit(query, told));
        ReceiverStream::new(steps).map(|step| step.map_err(catalogue::failed)).boxed()
    }
}

/// Compares what the caller says exists with what is committed.
async fn reconcile(
    engine: Arc<Engine>,
    mut pieces: Streaming<v1::ReconcileRequest>,
    found: mpsc::Sender<Result<v1::ReconcileResponse, Status>>,
) -> Result<(), Status> {
    let mut first = pieces.message().await?.unwrap_or_default();
    let query = operator::reconcile(&mut first, ANONYMOUS).map_err(catalogue::refused)?;
    let mut reconciliation = engine.reconcile(query).await.map_err(catalogue::failed)?;
    let mut piece = Some(first);
    while let Some(v1::ReconcileRequest { resources, .. }) = piece {
        let names = operator::piece(resources).map_err(catalogue::refused)?;
        let missing = reconciliation.exist(names).await.map_err(catalogue::failed)?;
        if tell(&found, missing).await.is_break() {
            return Ok(());
        }
        piece = pieces.message().await?;
    }
    while let Some(leaked) = reconciliation.leaked().await.map_err(catalogue::failed)? {
        if tell(&found, leaked).await.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

async fn tell(
    reader: &mpsc::Sender<Result<v1::ReconcileResponse, Status>>,
    found: Vec<Discrepancy>,
) -> ControlFlow<()> {
    for discrepancy in found {
        if reader.send(Ok(operator::discrepancy(discrepancy))).await.is_err() {
            return ControlFlow::Break(());
        }
    }
    ControlFlow::Continue(())
}

#[tonic::async_trait]
impl OperatorService for OperatorApi {
    async fn adjust_usage(
        &self,
        call: Request<v1::AdjustUsageRequest>,
    ) -> Result<Response<v1::AdjustUsageResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let command = operator::adjust(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = submit(&self.engine, Command::Adjust(command), deadline).await?;
        let Answer { limits, replayed, .. } = answer;
        let limit = limits.first().map(answer::limit);
        Ok(Response::new(v1::AdjustUsageResponse { limit, replayed }))
    }

    async fn audit(
        &self,
        call: Request<v1::AuditRequest>,
    ) -> Result<Response<Stream<v1::AuditResponse>>, Status> {
        let query = operator::audit(call.into_inner()).map_err(catalogue::refused)?;
        let steps = self.recount(query).map(|step| {
            let (finding, counters, reservations) = operator::step(step?);
            Ok(v1::AuditResponse { finding, counters, reservations })
        });
        Ok(Response::new(steps.boxed()))
    }

    async fn repair(
        &self,
        call: Request<v1::RepairRequest>,
    ) -> Result<Response<Stream<v1::RepairResponse>>, Status> {
        let query = operator::repair(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let steps = self.recount(query).map(|step| {
            let (finding, counters, reservations) = operator::step(step?);
            Ok(v1::RepairResponse { finding, counters, reservations })
        });
        Ok(Response::new(steps.boxed()))
    }

    async fn reconcile(
        &self,
        call: Request<Streaming<v1::ReconcileRequest>>,
    ) -> Result<Response<Stream<v1::ReconcileResponse>>, Status> {
        let (found, answers) = mpsc::channel(AHEAD);
        let engine = Arc::clone(&self.engine);
        tokio::spawn(async move {
            let told = found.clone();
            if let Err(status) = reconcile(engine, call.into_inner(), found).await {
                let _ = told.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(answers).boxed()))
    }

    async fn list_events(
        &self,
        call: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let listing = trail::listing(call.into_inner()).map_err(catalogue::refused)?;
        let trail::Listing { query, page, after } = listing;
        let found = self.engine.trail(&query, after.as_ref(), page.ask());
        let found = read_by(deadline, found).await.map_err(catalogue::failed)?;
        let entries = found.entries.into_iter();
        let entries = entries.map(|(mark, entry)| (mark.to_text(), trail::event(entry)));
        let (events, mut next_page_token) = page.cut(entries);
        if let Some(next) = found.next.filter(|_| next_page_token.is_empty()) {
            next_page_token = page.lead_on(&next.to_text());
        }
        Ok(Response::new(v1::ListEventsResponse { events, next_page_token }))
    }
}
