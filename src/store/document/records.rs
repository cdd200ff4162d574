//! Resource bindings and policy revisions as documents.

use serde::{Deserialize, Serialize};

use super::{PolicyDoc, damaged, date, time};
use crate::domain::name::{ReservationKey, ResourceKey, join_key};
use crate::domain::policy::{PolicyRevision, RevisionHead};
use crate::store::{Binding, StoreError};

/// The binding of a resource.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResourceDoc {
    /// [`ResourceKey`].
    #[serde(rename = "_id")]
    pub id: String,
    namespace: String,
    resource: String,
    /// Of what a refund has left behind that was asked for by resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refund_id: Option<String>,
    reservation_id: String,
    /// When retention may remove it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<bson::DateTime>,
}

impl ResourceDoc {
    /// The document of a binding.
    pub fn new(binding: &Binding) -> Self {
        Self {
            id: binding.resource.as_str().to_owned(),
            namespace: binding.resource.namespace().into_owned(),
            resource: binding.resource.resource().into_owned(),
            refund_id: binding.resource.refund_id().map(std::borrow::Cow::into_owned),
            reservation_id: binding.owner.id().into_owned(),
            purge_at: binding.purge_at.map(date),
        }
    }

    /// The resource.
    pub fn key(&self) -> ResourceKey {
        match &self.refund_id {
            None => ResourceKey::new(&self.namespace, &self.resource),
            Some(refund) => ResourceKey::of_refund(&self.namespace, &self.resource, refund),
        }
    }

    /// The reservation that it belongs to.
    pub fn owner(&self) -> ReservationKey {
        ReservationKey::new(&self.namespace, &self.reservation_id)
    }
}

/// A revision of a policy.
#[derive(Debug, Serialize, Deserialize)]
pub struct RevisionDoc {
    /// Namespace and revision.
    #[serde(rename = "_id")]
    pub id: String,
    namespace: String,
    revision: i64,
    policy: PolicyDoc,
    generations: Vec<GenerationDoc>,
    /// Limits that are gone, as a policy that has nothing else.
    retired: PolicyDoc,
    retired_generations: Vec<GenerationDoc>,
    create_time: bson::DateTime,
    principal: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    from_file: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct GenerationDoc {
    limit: String,
    generation: i64,
}

impl RevisionDoc {
    /// The `_id` of a revision.
    pub fn key(namespace: &str, revision: i64) -> String {
        join_key([namespace, &revision.to_string()])
    }

    /// The document of a revision.
    pub fn new(revision: &PolicyRevision) -> Self {
        let namespace = revision.spec.namespace.clone();
        let generation = |(limit, generation): (&String, &i64)| GenerationDoc {
            limit: limit.clone(),
            generation: *generation,
        };
        let mut retired = revision.spec.clone();
        retired.limits = revision.retired.iter().map(|(limit, _)| limit.clone()).collect();
        Self {
            id: Self::key(&namespace, revision.revision),
            namespace,
            revision: revision.revision,
            policy: PolicyDoc::from_spec(&revision.spec),
            generations: revision.generations.iter().map(generation).collect(),
            retired: PolicyDoc::from_spec(&retired),
            retired_generations: revision
                .retired
                .iter()
                .map(|(limit, n)| generation((&limit.name, n)))
                .collect(),
            create_time: date(revision.create_time),
            principal: revision.principal.clone(),
            from_file: revision.from_file,
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<PolicyRevision, StoreError> {
        let id = self.id.clone();
        let faults = |faults: Vec<crate::domain::name::Violation>| {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            damaged(&id, faults.join("; "))
        };
        let retired = self.retired.into_spec().map_err(faults)?.limits.into_iter();
        let generations = self.retired_generations.into_iter().map(|doc| doc.generation);
        Ok(PolicyRevision {
            revision: self.revision,
            spec: self.policy.into_spec().map_err(faults)?,
            generations: self
                .generations
                .into_iter()
                .map(|doc| (doc.limit, doc.generation))
                .collect(),
            retired: retired.zip(generations).collect(),
            create_time: time(self.create_time).map_err(|message| damaged(&id, message))?,
            principal: self.principal,
            from_file: self.from_file,
        })
    }
}

/// What is read of a revision where its policy is of no interest.
#[derive(Debug, Deserialize)]
pub struct RevisionHeadDoc {
    #[serde(rename = "_id")]
    id: String,
    revision: i64,
    create_time: bson::DateTime,
    principal: String,
}

impl RevisionHeadDoc {
    /// The fields that it has.
    pub const FIELDS: [&str; 4] = ["_id", "revision", "create_time", "principal"];

    /// The record.
    ///
    /// # Errors
    ///
    /// The document is damaged.
    pub fn record(self) -> Result<RevisionHead, StoreError> {
        Ok(RevisionHead {
            revision: self.revision,
            create_time: time(self.create_time).map_err(|message| damaged(&self.id, message))?,
            principal: self.principal,
        })
    }
}
