//! What operators do: correct, recount, mend, compare; and the hand that breaks
//! what they find.

use std::sync::Arc;

use quota_authority::domain::counter::Counter;
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::reservation::Reservation;
use quota_authority::domain::state::Keys;
use quota_authority::store::{Change, ChangeSet, Extent, Removal, Versioned};

use super::calls::dims;
use super::{Client, Refused, World, v1};

impl Client {
    /// Adds to the counter of that key by hand.
    pub async fn adjust(
        &self,
        id: &str,
        limit: &str,
        key: &[(&str, &str)],
        delta: i64,
    ) -> Result<v1::AdjustUsageResponse, Refused> {
        let request = v1::AdjustUsageRequest {
            namespace: self.namespace.clone(),
            limit: limit.to_owned(),
            key: dims(key),
            delta,
            adjustment_id: id.to_owned(),
            reason: "a case".to_owned(),
        };
        Ok(self.operator.clone().adjust_usage(request).await?.into_inner())
    }

    /// What an audit of the namespace finds.
    pub async fn audit(&self) -> Result<Vec<v1::Finding>, Refused> {
        self.audit_of("").await
    }

    /// What an audit of that limit finds.
    pub async fn audit_of(&self, limit: &str) -> Result<Vec<v1::Finding>, Refused> {
        let request = v1::AuditRequest {
            namespace: self.namespace.clone(),
            limit: limit.to_owned(),
            progress: false,
        };
        let mut steps = self.operator.clone().audit(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(step) = steps.message().await? {
            found.push(step.finding.expect("a finding in every step that was not asked for"));
        }
        Ok(found)
    }

    /// What a repair of the namespace finds and mends.
    pub async fn repair(&self) -> Result<Vec<v1::Finding>, Refused> {
        let request = v1::RepairRequest {
            namespace: self.namespace.clone(),
            limit: String::new(),
            reason: "a case".to_owned(),
            progress: false,
        };
        let mut steps = self.operator.clone().repair(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(step) = steps.message().await? {
            found.push(step.finding.expect("a finding in every step that was not asked for"));
        }
        Ok(found)
    }

    /// Compares the resources of a limit with those that exist, which are told
    /// in pieces of two.
    pub async fn reconcile(
        &self,
        first: v1::ReconcileRequest,
        live: &[&str],
    ) -> Result<Vec<v1::ReconcileResponse>, Refused> {
        let first = v1::ReconcileRequest { namespace: self.namespace.clone(), ..first };
        let pieces = live.chunks(2).map(|names| v1::ReconcileRequest {
            resources: names.iter().map(ToString::to_string).collect(),
            ..v1::ReconcileRequest::default()
        });
        let pieces: Vec<_> = std::iter::once(first).chain(pieces).collect();
        let pieces = futures_util::stream::iter(pieces);
        let mut answers = self.operator.clone().reconcile(pieces).await?.into_inner();
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await? {
            found.push(answer);
        }
        Ok(found)
    }
}

impl World {
    /// Changes a stored counter of that limit by hand, past all rules.
    pub async fn tamper(&self, limit: &str, with: impl FnOnce(&mut Counter)) {
        let (_, counters) = self.records().await;
        let mut of_limit = counters.into_iter().filter(|counter| counter.id.limit == limit);
        let id = of_limit.next().expect("a counter of that limit").id;
        let keys = Keys { counters: vec![Arc::clone(&id)], ..Keys::default() };
        let loaded = self.store().load(&keys).await.expect("a counter").counters.remove(&id);
        let Versioned { version, mut value } = loaded.flatten().expect("a counter");
        with(&mut value);
        let change = Change {
            expected: Some(version),
            version: version + 1,
            value,
            purge_at: None,
            proven: false,
            extent: Extent::Whole,
        };
        let changes = ChangeSet { counters: vec![change], ..ChangeSet::default() };
        self.store().write(&changes).await.expect("it is written");
    }

    /// Changes a stored reservation by hand; `None` removes it.
    pub async fn tamper_with(
        &self,
        client: &Client,
        id: &str,
        with: impl FnOnce(&Reservation) -> Option<Reservation>,
    ) {
        let key = ReservationKey::new(&client.namespace, id);
        let keys = Keys { reservations: vec![key.clone()], ..Keys::default() };
        let loaded = self.store().load(&keys).await.expect("an answer").reservations;
        let row = loaded.into_values().flatten().next().expect("a reservation");
        let changes = match with(&row.value) {
            None => ChangeSet {
                removed_reservations: vec![Removal { key, expected: row.version }],
                ..ChangeSet::default()
            },
            Some(value) => {
                let change = Change {
                    expected: Some(row.version),
                    version: row.version + 1,
                    purge_at: value.purge_at,
                    value: Arc::new(value),
                    proven: false,
                    extent: Extent::Whole,
                };
                ChangeSet { reservations: vec![change], ..ChangeSet::default() }
            }
        };
        self.store().write(&changes).await.expect("it is written");
    }
}
