//! `TestClockService`, served under a test clock alone.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::catalogue;
use super::convert::times;
use super::deadline::{answer_by, change_by, read_by};
use crate::domain::name::Violation;
use crate::domain::refusal::Refusal;
use crate::domain::time::Span;
use crate::engine::Error;
use crate::proto::testing::v1;
use crate::proto::testing::v1::test_clock_service_server::TestClockService;
use crate::store::TestClock;
use crate::store::test_clock::MoveError;

/// From the first instant to the last: no clock can be moved further.
const LONGEST: Span = Span::from_days(3_652_059);

/// Serves a test clock.
pub struct TestClockApi {
    clock: Arc<TestClock>,
}

impl TestClockApi {
    /// Serves this clock.
    pub fn new(clock: Arc<TestClock>) -> Self {
        Self { clock }
    }
}

#[tonic::async_trait]
impl TestClockService for TestClockApi {
    async fn get(
        &self,
        call: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let read = async { Ok(self.clock.get().await?) };
        let time = read_by(deadline, read).await.map_err(catalogue::failed)?;
        Ok(Response::new(v1::GetResponse { time: Some(times::timestamp(time)) }))
    }

    async fn set(
        &self,
        call: Request<v1::SetRequest>,
    ) -> Result<Response<v1::SetResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let given = call.into_inner().time.ok_or_else(|| Violation::new("time", "must be given"));
        let time = given.and_then(|time| times::time("time", time)).map_err(invalid)?;
        let set = async { self.clock.set(time).await.map_err(|error| failed("time", error)) };
        let time = change_by(deadline, set).await.map_err(catalogue::clock_failed)?;
        Ok(Response::new(v1::SetResponse { time: Some(times::timestamp(time)) }))
    }

    async fn advance(
        &self,
        call: Request<v1::AdvanceRequest>,
    ) -> Result<Response<v1::AdvanceResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let given = call.into_inner().duration;
        let given = given.ok_or_else(|| Violation::new("duration", "must be given"));
        let span = given.and_then(|span| times::span("duration", span, Span::ZERO, LONGEST));
        let span = span.map_err(invalid)?;
        let moved = self.clock.advance(span);
        let moved = async { moved.await.map_err(|error| failed("duration", error)) };
        let time = change_by(deadline, moved).await.map_err(catalogue::clock_failed)?;
        Ok(Response::new(v1::AdvanceResponse { time: Some(times::timestamp(time)) }))
    }
}

fn invalid(fault: Violation) -> Status {
    catalogue::refused(Refusal::InvalidFields(vec![fault]))
}

/// What became of a move that `field` asked for.
fn failed(field: &str, error: MoveError) -> Error {
    let message = match error {
        MoveError::Back(now) => {
            format!("must not be before {now}, where the clock stands: it is never set back")
        }
        MoveError::Beyond(now) => {
            format!("must not take the clock beyond the year 9999; it stands at {now}")
        }
        MoveError::Store(error) => return error.into(),
        MoveError::Unknown(_) => return Error::OutcomeUnknown,
    };
    Error::Refused(Refusal::InvalidFields(vec![Violation::new(field, message)]))
}
