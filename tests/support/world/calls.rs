//! Calls, through a real client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quota_authority::domain::time::Span;
use tonic::transport::Channel;

use super::rules::Rules;
use super::v1::operator_service_client::OperatorServiceClient;
use super::v1::policy_service_client::PolicyServiceClient;
use super::v1::quota_service_client::QuotaServiceClient;
use super::{Refused, World, v1};

/// The most calls that are remembered, to be sent once more at the end.
const REMEMBERED: usize = 64;

/// The calls that took effect, oldest first.
pub type Log = Arc<Mutex<Vec<Sent>>>;

/// A call that took effect.
#[derive(Clone, Debug)]
pub enum Sent {
    Reserve(v1::ReserveRequest),
    Commit(v1::CommitRequest),
    Release(v1::ReleaseRequest),
    Refund(v1::RefundRequest),
}

/// A caller: his connection and the namespace he works in.
#[derive(Clone)]
pub struct Client {
    pub namespace: String,
    pub quota: QuotaServiceClient<Channel>,
    pub policy: PolicyServiceClient<Channel>,
    pub operator: OperatorServiceClient<Channel>,
    log: Log,
}

impl Client {
    pub fn new(namespace: String, channel: Channel, log: Log) -> Self {
        let (quota, policy) =
            (QuotaServiceClient::new(channel.clone()), PolicyServiceClient::new(channel.clone()));
        let operator = OperatorServiceClient::new(channel);
        Self { namespace, quota, policy, operator, log }
    }

    /// The same caller in another namespace.
    pub fn within(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// A Reserve without items yet.
    pub fn reserve(&self, id: &str) -> Reserve {
        let request = v1::ReserveRequest {
            namespace: self.namespace.clone(),
            reservation_id: id.to_owned(),
            ..v1::ReserveRequest::default()
        };
        Reserve { client: self.clone(), request }
    }

    /// A Reserve of `amount` units of user `s`, under [`Rules::of_units`].
    pub fn take(&self, id: &str, amount: i64) -> Reserve {
        self.reserve(id).item("units", amount).with("user", "s")
    }

    /// A Commit or Release of that reservation.
    pub fn settle(&self, id: &str) -> Settle {
        Settle { client: self.clone(), id: id.to_owned(), commit: v1::CommitRequest::default() }
    }

    /// Commits all of it.
    pub async fn commit(&self, id: &str) -> Result<v1::CommitResponse, Refused> {
        self.settle(id).commit().await
    }

    /// Commits these amounts.
    pub async fn commit_some(
        &self,
        id: &str,
        amounts: &[i64],
    ) -> Result<v1::CommitResponse, Refused> {
        self.settle(id).amounts(amounts).commit().await
    }

    /// Releases it.
    pub async fn release(&self, id: &str) -> Result<v1::ReleaseResponse, Refused> {
        self.settle(id).release().await
    }

    pub async fn reservation(&self, id: &str) -> Result<v1::Reservation, Refused> {
        let request = v1::GetReservationRequest {
            namespace: self.namespace.clone(),
            reservation_id: id.to_owned(),
            resource: String::new(),
        };
        let answer = self.quota.clone().get_reservation(request).await?;
        Ok(answer.into_inner().reservation.expect("a reservation"))
    }

    /// The state of that reservation.
    pub async fn state(&self, id: &str) -> v1::ReservationState {
        self.reservation(id).await.expect("a reservation").state()
    }

    pub async fn usage(
        &self,
        metric: &str,
        dimensions: &[(&str, &str)],
    ) -> Result<Vec<v1::LimitStatus>, Refused> {
        self.usage_at(metric, dimensions, None).await
    }

    pub async fn usage_at(
        &self,
        metric: &str,
        dimensions: &[(&str, &str)],
        at: Option<&str>,
    ) -> Result<Vec<v1::LimitStatus>, Refused> {
        let at = at.map(super::instant).map(quota_authority::api::times::timestamp);
        let request = v1::GetUsageRequest {
            namespace: self.namespace.clone(),
            metric: metric.to_owned(),
            dimensions: dims(dimensions),
            at,
            include_holds: false,
        };
        let answer = self.quota.clone().get_usage(request).await?.into_inner();
        answer.read_time.expect("the time of the reading");
        Ok(answer.limits)
    }

    /// Where a limit on the units of user `s` stands: used, held, available.
    pub async fn stands(&self, limit: &str) -> (i64, i64, i64) {
        let limits = self.usage("units", &[("user", "s")]).await.expect("a usage");
        standing(&limits, limit)
    }

    /// How many wait for the first limit of user `s`.
    pub async fn waiting(&self) -> i32 {
        let limits = self.usage("units", &[("user", "s")]).await.expect("a usage");
        limits[0].waiting
    }

    /// Waits until so many wait there.
    pub async fn until_waiting(&self, count: i32) {
        let waiting = async || (self.waiting().await == count).then_some(());
        let what = format!("{count} to wait");
        crate::support::eventually(Duration::from_secs(30), &what, waiting).await;
    }

    /// Whether a Reserve of that would be admitted.
    pub async fn check(
        &self,
        items: &[(&str, i64)],
        dimensions: &[(&str, &str)],
    ) -> Result<v1::CheckResponse, Refused> {
        let item = |&(metric, amount): &(&str, i64)| item(metric, amount);
        let request = v1::CheckRequest {
            namespace: self.namespace.clone(),
            items: items.iter().map(item).collect(),
            dimensions: dims(dimensions),
        };
        Ok(self.quota.clone().check(request).await?.into_inner())
    }

    /// Applies a policy to the client's namespace.
    pub async fn apply(&self, rules: Rules) -> Result<v1::ApplyPolicyResponse, Refused> {
        let policy = v1::Policy { namespace: self.namespace.clone(), ..rules.0 };
        let request = v1::ApplyPolicyRequest { policy: Some(policy), ..Default::default() };
        Ok(self.policy.clone().apply_policy(request).await?.into_inner())
    }

    /// Puts a subject on a plan.
    pub async fn put_on_plan(&self, kind: &str, id: &str, plan: &str) -> Result<(), Refused> {
        let subject = v1::Subject {
            kind: kind.to_owned(),
            id: id.to_owned(),
            plan: plan.to_owned(),
            ..v1::Subject::default()
        };
        let (namespace, etag) = (self.namespace.clone(), String::new());
        let request = v1::PutSubjectRequest { namespace, subject: Some(subject), etag };
        self.policy.clone().put_subject(request).await?;
        Ok(())
    }

    pub async fn delete_subject(&self, kind: &str, id: &str, etag: &str) -> Result<(), Refused> {
        let request = v1::DeleteSubjectRequest {
            namespace: self.namespace.clone(),
            kind: kind.to_owned(),
            id: id.to_owned(),
            etag: etag.to_owned(),
        };
        self.policy.clone().delete_subject(request).await?;
        Ok(())
    }

    pub(super) fn remember(&self, sent: Sent) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() < REMEMBERED {
            log.push(sent);
        }
    }
}

/// A Reserve being made.
#[derive(Clone)]
pub struct Reserve {
    client: Client,
    pub request: v1::ReserveRequest,
}

impl Reserve {
    pub fn item(mut self, metric: &str, amount: i64) -> Self {
        self.request.items.push(item(metric, amount));
        self
    }

    /// An item with dimensions of its own.
    pub fn item_of(mut self, metric: &str, amount: i64, dimensions: &[(&str, &str)]) -> Self {
        self.request.items.push(v1::Item { dimensions: dims(dimensions), ..item(metric, amount) });
        self
    }

    /// A dimension of the whole call.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.request.dimensions.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn ttl(mut self, ttl: Span) -> Self {
        self.request.ttl = Some(duration(ttl));
        self
    }

    /// Waits for room.
    pub fn wait(mut self, wait: Span) -> Self {
        self.request.wait = Some(duration(wait));
        self
    }

    /// Sends it with this deadline.
    pub async fn within(self, deadline: Duration) -> Result<v1::ReserveResponse, Refused> {
        let mut request = tonic::Request::new(self.request);
        request.set_timeout(deadline);
        Ok(self.client.quota.clone().reserve(request).await?.into_inner())
    }

    /// Admit and commit in one step.
    pub fn at_once(mut self) -> Self {
        self.request.commit = true;
        self
    }

    pub async fn send(self) -> Result<v1::ReserveResponse, Refused> {
        let answer = self.client.quota.clone().reserve(self.request.clone()).await?.into_inner();
        self.client.remember(Sent::Reserve(self.request));
        Ok(answer)
    }

    /// Sends it and commits it.
    pub async fn committed(self) -> Result<v1::CommitResponse, Refused> {
        let (client, id) = (self.client.clone(), self.request.reservation_id.clone());
        self.send().await?;
        client.commit(&id).await
    }
}

/// A Commit or Release being made.
#[derive(Clone)]
pub struct Settle {
    client: Client,
    id: String,
    commit: v1::CommitRequest,
}

impl Settle {
    pub fn amounts(mut self, amounts: &[i64]) -> Self {
        self.commit.amounts = amounts.to_vec();
        self
    }

    pub fn resources(mut self, resources: &[&str]) -> Self {
        self.commit.resources = resources.iter().map(ToString::to_string).collect();
        self
    }

    /// What to do where the hold has run out.
    pub fn if_expired(mut self, if_expired: v1::IfExpired) -> Self {
        self.commit.if_expired = if_expired.into();
        self
    }

    pub async fn commit(self) -> Result<v1::CommitResponse, Refused> {
        let mut request = self.commit;
        request.namespace.clone_from(&self.client.namespace);
        request.reservation_id = self.id;
        let answer = self.client.quota.clone().commit(request.clone()).await?.into_inner();
        self.client.remember(Sent::Commit(request));
        Ok(answer)
    }

    pub async fn release(self) -> Result<v1::ReleaseResponse, Refused> {
        self.release_with("", false).await
    }

    pub async fn release_with(
        self,
        reason: &str,
        allow_missing: bool,
    ) -> Result<v1::ReleaseResponse, Refused> {
        let request = v1::ReleaseRequest {
            namespace: self.client.namespace.clone(),
            reservation_id: self.id,
            reason: reason.to_owned(),
            allow_missing,
        };
        let answer = self.client.quota.clone().release(request.clone()).await?.into_inner();
        self.client.remember(Sent::Release(request));
        Ok(answer)
    }
}

impl World {
    /// The only server's client, for cases that need no more.
    pub fn caller(&self) -> Client {
        self.client(0)
    }

    /// One lifetime limit `cap` on the units of each user.
    pub async fn cap(&self, max: i64) -> Client {
        let client = self.caller();
        let cap = super::limit("cap", "units").per(&["user"]).max(max);
        client.apply(Rules::of_units([cap])).await.expect("a policy");
        client
    }

    /// Applies a policy, which must be a good one.
    pub async fn rules(&self, rules: Rules) -> Client {
        let client = self.caller();
        client.apply(rules).await.expect("a policy");
        client
    }

    /// The calls that took effect, as far as they are remembered.
    pub(super) fn sent(&self) -> Vec<Sent> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Sends calls at once, and gives the answers in order.
pub async fn at_once<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let calls: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::with_capacity(calls.len());
    for call in calls {
        answers.push(call.await.expect("a call that ends"));
    }
    answers
}

/// Used, held and available of one of these limits.
fn standing(limits: &[v1::LimitStatus], limit: &str) -> (i64, i64, i64) {
    let found: Vec<_> = limits.iter().filter(|status| status.limit == limit).collect();
    let [status] = found.as_slice() else { panic!("limit {limit} once in {limits:?}") };
    (status.used, status.held, status.available.expect("a limit with a max"))
}

/// Dimensions as a message has them.
pub fn dims(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub fn duration(span: Span) -> prost_types::Duration {
    quota_authority::api::times::duration(span)
}

fn item(metric: &str, amount: i64) -> v1::Item {
    v1::Item { metric: metric.to_owned(), amount: Some(amount), dimensions: HashMap::new() }
}
