//! `QuotaService`.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::convert::page::{self, Filling};
use super::convert::{answer, listing, request, times};
use super::deadline::{answer_by, read_by};
use super::refused::{self, submit};
use super::{ANONYMOUS, catalogue};
use crate::domain::decide::{Answer, Command, Usage};
use crate::domain::reservation::Reservation;
use crate::domain::status::LimitStatus;
use crate::engine::{Engine, Error, Holds};
use crate::proto::v1;
use crate::proto::v1::quota_service_server::QuotaService;

/// Serves `QuotaService` over an engine.
pub struct QuotaApi {
    engine: Arc<Engine>,
}

impl QuotaApi {
    /// Serves this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl QuotaService for QuotaApi {
    async fn reserve(
        &self,
        call: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let (command, wait) =
            request::reserve(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = refused::reserve(&self.engine, command, wait, deadline).await?;
        let (reservation, limits, replayed) = parts(answer);
        Ok(Response::new(v1::ReserveResponse { reservation, limits, replayed }))
    }

    async fn commit(
        &self,
        call: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let command = request::commit(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = submit(&self.engine, Command::Commit(command), deadline).await?;
        let (reservation, limits, replayed) = parts(answer);
        Ok(Response::new(v1::CommitResponse { reservation, limits, replayed }))
    }

    async fn release(
        &self,
        call: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let command = request::release(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = submit(&self.engine, Command::Release(command), deadline).await?;
        let (reservation, limits, replayed) = parts(answer);
        Ok(Response::new(v1::ReleaseResponse { reservation, limits, replayed }))
    }

    async fn extend(
        &self,
        call: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let command = request::extend(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = submit(&self.engine, Command::Extend(command), deadline).await?;
        let (reservation, ..) = parts(answer);
        Ok(Response::new(v1::ExtendResponse { reservation }))
    }

    async fn refund(
        &self,
        call: Request<v1::RefundRequest>,
    ) -> Result<Response<v1::RefundResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let command = request::refund(call.into_inner(), ANONYMOUS).map_err(catalogue::refused)?;
        let answer = submit(&self.engine, Command::Refund(command), deadline).await?;
        let (reservation, limits, replayed) = parts(answer);
        Ok(Response::new(v1::RefundResponse { reservation, limits, replayed }))
    }

    async fn check(
        &self,
        call: Request<v1::CheckRequest>,
    ) -> Result<Response<v1::CheckResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let (namespace, items) = request::check(call.into_inner()).map_err(catalogue::refused)?;
        let usage = read_by(deadline, self.engine.check(&namespace, &items)).await;
        let usage = usage.map_err(catalogue::failed)?;
        let admitted = usage.admits();
        Ok(Response::new(v1::CheckResponse { admitted, limits: answer::limits(&usage.limits) }))
    }

    async fn get_reservation(
        &self,
        call: Request<v1::GetReservationRequest>,
    ) -> Result<Response<v1::GetReservationResponse>, Status> {
        let (namespace, find_by) = request::find(call.get_ref()).map_err(catalogue::refused)?;
        let deadline = answer_by(call.metadata());
        let found = read_by(deadline, self.engine.reservation(&namespace, &find_by)).await;
        let (reservation, now) = found.map_err(catalogue::failed)?;
        let reservation = Some(answer::reservation(&reservation, now));
        Ok(Response::new(v1::GetReservationResponse { reservation }))
    }

    async fn watch_usage(
        &self,
        call: Request<v1::WatchUsageRequest>,
    ) -> Result<Response<BoxStream<v1::WatchUsageResponse>>, Status> {
        let query = request::watch(call.into_inner()).map_err(catalogue::refused)?;
        let request::UsageQuery { namespace, metric, dimensions, .. } = query;
        let watch = self.engine.watch(namespace, metric, dimensions);
        let mut watch = watch.map_err(catalogue::watch_failed)?;
        // Whatever is wrong with the call is told before a stream begins.
        let first = reading(watch.next().await)?;
        let rest = stream::unfold(Some(watch), async |watch| {
            let mut watch = watch?;
            let next = reading(watch.next().await);
            let watch = next.is_ok().then_some(watch);
            Some((next, watch))
        });
        let readings = stream::once(std::future::ready(Ok(first))).chain(rest);
        Ok(Response::new(readings.boxed()))
    }

    async fn get_usage(
        &self,
        call: Request<v1::GetUsageRequest>,
    ) -> Result<Response<v1::GetUsageResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let query = request::usage(call.into_inner()).map_err(catalogue::refused)?;
        let request::UsageQuery { namespace, metric, dimensions, at, include_holds } = query;
        let (usage, holds) = if include_holds {
            let read = self.engine.usage_and_holds(&namespace, &metric, &dimensions, at);
            read_by(deadline, read).await.map_err(catalogue::failed)?
        } else {
            let read = self.engine.usage(&namespace, &metric, &dimensions, at);
            (read_by(deadline, read).await.map_err(catalogue::failed)?, Holds::default())
        };
        let Usage { limits, now, .. } = usage;
        let reservations = holds.reservations.iter();
        let (listed, cut) = page::cut_to_fit(reservations.map(|r| answer::reservation(r, now)));
        Ok(Response::new(v1::GetUsageResponse {
            limits: answer::limits(&limits),
            holds: listed,
            read_time: Some(times::timestamp(now)),
            holds_incomplete: holds.incomplete || cut,
        }))
    }

    async fn list_reservations(
        &self,
        call: Request<v1::ListReservationsRequest>,
    ) -> Result<Response<v1::ListReservationsResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let asked = listing::reservations(call.into_inner()).map_err(catalogue::refused)?;
        let listing::Listing { query, page, place } = asked;
        let mut filling = Filling::new(&page);
        let mut take = |found: &Reservation, now| filling.add(answer::reservation(found, now));
        let read = self.engine.reservations(&query, place, page.size(), &mut take);
        let next = read_by(deadline, read).await.map_err(catalogue::failed)?;
        let next = next.map(|place| listing::reservation_token(&place));
        let (reservations, next_page_token) = filling.end(next);
        Ok(Response::new(v1::ListReservationsResponse { reservations, next_page_token }))
    }

    async fn list_usage(
        &self,
        call: Request<v1::ListUsageRequest>,
    ) -> Result<Response<v1::ListUsageResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let asked = listing::counters(call.into_inner()).map_err(catalogue::refused)?;
        let listing::Listing { query, page, place } = asked;
        let mut filling = Filling::new(&page);
        let mut take = |found: &LimitStatus| filling.add(answer::limit(found));
        let read = self.engine.counters(&query, place, page.size(), &mut take);
        let next = read_by(deadline, read).await.map_err(catalogue::failed)?;
        let next = next.map(|place| listing::counter_token(&place));
        let (limits, next_page_token) = filling.end(next);
        Ok(Response::new(v1::ListUsageResponse { limits, next_page_token }))
    }
}

fn reading(usage: Result<Usage, Error>) -> Result<v1::WatchUsageResponse, Status> {
    let Usage { limits, now, .. } = usage.map_err(catalogue::watch_failed)?;
    let read_time = Some(times::timestamp(now));
    Ok(v1::WatchUsageResponse { limits: answer::limits(&limits), read_time })
}

fn parts(answer: Answer) -> (Option<v1::Reservation>, Vec<v1::LimitStatus>, bool) {
    let reservation = answer::reservation(&answer.reservation, answer.now);
    (Some(reservation), answer::limits(&answer.limits), answer.replayed)
}
