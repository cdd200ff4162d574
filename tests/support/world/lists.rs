//! Listings and live holds, asked for through the API.

use super::{Client, Refused, dims, v1};

impl Client {
    /// Where the limits stand on the units of user `s`, and the live holds.
    pub async fn holds(&self) -> v1::GetUsageResponse {
        self.holds_of("units", &[("user", "s")], None).await.expect("a usage")
    }

    pub async fn holds_of(
        &self,
        metric: &str,
        dimensions: &[(&str, &str)],
        at: Option<&str>,
    ) -> Result<v1::GetUsageResponse, Refused> {
        let request = v1::GetUsageRequest {
            namespace: self.namespace.clone(),
            metric: metric.to_owned(),
            dimensions: dims(dimensions),
            at: at.map(super::instant).map(quota_authority::api::times::timestamp),
            include_holds: true,
        };
        Ok(self.quota.clone().get_usage(request).await?.into_inner())
    }

    /// One page of that listing.
    pub async fn page(
        &self,
        asked: &v1::ListReservationsRequest,
        size: i32,
        token: &str,
    ) -> Result<(Vec<v1::Reservation>, String), Refused> {
        let request = v1::ListReservationsRequest {
            namespace: self.namespace.clone(),
            page_size: size,
            page_token: token.to_owned(),
            ..asked.clone()
        };
        let answer = self.quota.clone().list_reservations(request).await?.into_inner();
        Ok((answer.reservations, answer.next_page_token))
    }

    /// All reservations of that listing, in pages of that size.
    pub async fn list(
        &self,
        asked: &v1::ListReservationsRequest,
        size: i32,
    ) -> Vec<v1::Reservation> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let (page, next) = self.page(asked, size, &token).await.expect("a page");
            assert!(page.len() <= usize::try_from(if size == 0 { 100 } else { size }).unwrap());
            all.extend(page);
            if next.is_empty() {
                return all;
            }
            token = next;
        }
    }

    /// The ids of all of them.
    pub async fn ids(&self, asked: &v1::ListReservationsRequest) -> Vec<String> {
        let all = self.list(asked, 0).await;
        all.into_iter().map(|reservation| reservation.reservation_id).collect()
    }

    /// All counters of that listing, in pages of that size.
    pub async fn counters(
        &self,
        asked: &v1::ListUsageRequest,
        size: i32,
    ) -> Result<Vec<v1::LimitStatus>, Refused> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListUsageRequest {
                namespace: self.namespace.clone(),
                page_size: size,
                page_token: token,
                ..asked.clone()
            };
            let answer = self.quota.clone().list_usage(request).await?.into_inner();
            all.extend(answer.limits);
            if answer.next_page_token.is_empty() {
                return Ok(all);
            }
            token = answer.next_page_token;
        }
    }
}
