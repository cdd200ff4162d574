//! The trail, page by page.

use super::{Client, Refused, v1};

impl Client {
    /// Asks for everything in the trail of the client's namespace, in pages of
    /// the default size.
    pub fn all_events(&self) -> v1::ListEventsRequest {
        v1::ListEventsRequest {
            namespace: self.namespace.clone(),
            ..v1::ListEventsRequest::default()
        }
    }

    /// One page.
    pub async fn events_page(
        &self,
        request: &v1::ListEventsRequest,
    ) -> Result<v1::ListEventsResponse, Refused> {
        Ok(self.operator.clone().list_events(request.clone()).await?.into_inner())
    }

    /// All pages, together.
    pub async fn events(&self, request: &v1::ListEventsRequest) -> Vec<v1::Event> {
        let (mut request, mut events) = (request.clone(), Vec::new());
        loop {
            let page = self.events_page(&request).await.expect("a page of the trail");
            events.extend(page.events);
            if page.next_page_token.is_empty() {
                return events;
            }
            request.page_token = page.next_page_token;
        }
    }
}
