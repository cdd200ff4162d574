//! `OperatorService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::catalogue;
use super::convert::trail;
use super::deadline::{answer_by, read_by};
use crate::engine::Engine;
use crate::proto::v1;
use crate::proto::v1::operator_service_server::OperatorService;

/// Serves `OperatorService` over an engine. RPCs that are not here answer
/// UNIMPLEMENTED.
pub struct OperatorApi {
    engine: Arc<Engine>,
}

impl OperatorApi {
    /// Serves this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl OperatorService for OperatorApi {
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
