//! Renewing what is held, and giving back what was used.

use quota_authority::domain::time::Span;

use super::calls::{Sent, duration};
use super::{Client, Refused, v1};

impl Client {
    /// Puts off the end of that hold.
    pub async fn extend(&self, id: &str, ttl: Span) -> Result<v1::Reservation, Refused> {
        let request = v1::ExtendRequest {
            namespace: self.namespace.clone(),
            reservation_id: id.to_owned(),
            ttl: Some(duration(ttl)),
        };
        let answer = self.quota.clone().extend(request).await?.into_inner();
        Ok(answer.reservation.expect("a reservation"))
    }

    /// A refund of that reservation.
    pub fn refund(&self, id: &str, refund_id: &str) -> Refund {
        let request = v1::RefundRequest {
            namespace: self.namespace.clone(),
            reservation_id: id.to_owned(),
            refund_id: refund_id.to_owned(),
            ..v1::RefundRequest::default()
        };
        Refund { client: self.clone(), request }
    }

    /// A refund of the reservation that this resource is bound to.
    pub fn refund_of(&self, resource: &str, refund_id: &str) -> Refund {
        let mut refund = self.refund("", refund_id);
        resource.clone_into(&mut refund.request.resource);
        refund
    }

    /// The reservation that a resource is bound to.
    pub async fn owner_of(&self, resource: &str) -> Result<v1::Reservation, Refused> {
        let request = v1::GetReservationRequest {
            namespace: self.namespace.clone(),
            reservation_id: String::new(),
            resource: resource.to_owned(),
        };
        let answer = self.quota.clone().get_reservation(request).await?.into_inner();
        Ok(answer.reservation.expect("a reservation"))
    }
}

/// A Refund being made.
#[derive(Clone)]
pub struct Refund {
    client: Client,
    pub request: v1::RefundRequest,
}

impl Refund {
    pub fn amounts(mut self, amounts: &[i64]) -> Self {
        self.request.amounts = amounts.to_vec();
        self
    }

    pub fn because(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.request.reason);
        self
    }

    pub async fn send(self) -> Result<v1::RefundResponse, Refused> {
        let answer = self.client.quota.clone().refund(self.request.clone()).await?.into_inner();
        self.client.remember(Sent::Refund(self.request));
        Ok(answer)
    }
}
