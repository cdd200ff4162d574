//! `PolicyService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::convert::{answer, policy, subject};
use super::deadline::{answer_by, change_by, latest, read_by};
use super::{ANONYMOUS, catalogue};
use crate::domain::name::{SubjectKey, Violation, check_name};
use crate::domain::refusal::Refusal;
use crate::engine::Engine;
use crate::proto::v1;
use crate::proto::v1::policy_service_server::PolicyService;

/// Serves `PolicyService` over an engine.
pub struct PolicyApi {
    engine: Arc<Engine>,
}

impl PolicyApi {
    /// Serves this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl PolicyService for PolicyApi {
    async fn apply_policy(
        &self,
        call: Request<v1::ApplyPolicyRequest>,
    ) -> Result<Response<v1::ApplyPolicyResponse>, Status> {
        let deadline = latest(answer_by(call.metadata()));
        let v1::ApplyPolicyRequest { policy, expected_revision, validate_only } = call.into_inner();
        let given = policy.ok_or_else(|| vec![Violation::new("policy", "must be given")]);
        let mut spec = given.and_then(policy::checked);
        if expected_revision < -1 {
            let message = "must be -1 (none yet), 0 (any) or a revision";
            let mut faults = spec.err().unwrap_or_default();
            faults.push(Violation::new("expected_revision", message));
            spec = Err(faults);
        }
        let spec = spec.map_err(|faults| catalogue::refused(Refusal::InvalidFields(faults)))?;
        let applied = self.engine.apply_policy(spec, expected_revision, validate_only, ANONYMOUS);
        let applied = change_by(Some(deadline), applied).await.map_err(catalogue::failed)?;
        // After the change, by what is counted then; whether it was made is
        // settled here, so that this can only shorten the list.
        let over_limit = match &applied.change {
            Some(change) => self.engine.over_limit(change, deadline).await,
            None => None,
        };
        Ok(Response::new(v1::ApplyPolicyResponse {
            revision: applied.revision,
            changed: applied.changed,
            over_limit: over_limit.as_ref().map(answer::over_limit),
            restarted_limits: applied.restarted,
        }))
    }

    async fn get_policy(
        &self,
        call: Request<v1::GetPolicyRequest>,
    ) -> Result<Response<v1::GetPolicyResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let v1::GetPolicyRequest { namespace, revision } = call.into_inner();
        let mut faults = Vec::new();
        check_name("namespace", &namespace, &mut faults);
        if revision < 0 {
            faults.push(Violation::new("revision", "must be 0 (the current one) or a revision"));
        }
        if !faults.is_empty() {
            return Err(catalogue::refused(Refusal::InvalidFields(faults)));
        }
        let found = read_by(deadline, self.engine.policy(&namespace, revision)).await;
        let found = found.map_err(catalogue::failed)?;
        Ok(Response::new(v1::GetPolicyResponse {
            policy: Some(policy::spec_to_policy(&found.spec)),
            revision: Some(policy::revision(found.head()).1),
        }))
    }

    async fn list_policy_revisions(
        &self,
        call: Request<v1::ListPolicyRevisionsRequest>,
    ) -> Result<Response<v1::ListPolicyRevisionsResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let asked = policy::revisions(call.into_inner());
        let (namespace, page, before) =
            asked.map_err(|faults| catalogue::refused(Refusal::InvalidFields(faults)))?;
        let found = self.engine.policy_revisions(&namespace, before, page.ask());
        let found = read_by(deadline, found).await.map_err(catalogue::failed)?;
        let (revisions, next_page_token) = page.cut(found.into_iter().map(policy::revision));
        Ok(Response::new(v1::ListPolicyRevisionsResponse { revisions, next_page_token }))
    }

    async fn put_subject(
        &self,
        call: Request<v1::PutSubjectRequest>,
    ) -> Result<Response<v1::PutSubjectResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let v1::PutSubjectRequest { namespace, subject, etag } = call.into_inner();
        let subject = subject::from_request(&namespace, subject).map_err(catalogue::refused)?;
        let put = self.engine.put_subject(subject, &etag, ANONYMOUS);
        let put = change_by(deadline, put).await.map_err(catalogue::failed)?;
        Ok(Response::new(v1::PutSubjectResponse {
            subject: Some(subject::message(&put.subject, put.etag)),
            changed: put.changed,
        }))
    }

    async fn get_subject(
        &self,
        call: Request<v1::GetSubjectRequest>,
    ) -> Result<Response<v1::GetSubjectResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let v1::GetSubjectRequest { namespace, kind, id } = call.into_inner();
        subject::check_key(&namespace, &kind, &id).map_err(catalogue::refused)?;
        let found = read_by(deadline, self.engine.subject(&namespace, &kind, &id)).await;
        let (found, etag) = found.map_err(catalogue::failed)?;
        let subject = Some(subject::message(&found, etag));
        Ok(Response::new(v1::GetSubjectResponse { subject }))
    }

    async fn list_subjects(
        &self,
        call: Request<v1::ListSubjectsRequest>,
    ) -> Result<Response<v1::ListSubjectsResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let listing = subject::listing(call.into_inner()).map_err(catalogue::refused)?;
        let subject::Listing { namespace, kind, plan, page } = listing;
        let after = page.after.clone().map(SubjectKey::from_stored);
        let (kind, plan) = (kind.as_deref(), plan.as_deref());
        let found = self.engine.subjects(&namespace, kind, plan, after.as_ref(), page.ask());
        let found = read_by(deadline, found).await.map_err(catalogue::failed)?;
        let rows = found
            .into_iter()
            .map(|(found, etag)| (found.key().as_str().to_owned(), subject::message(&found, etag)));
        let (subjects, next_page_token) = page.cut(rows);
        Ok(Response::new(v1::ListSubjectsResponse { subjects, next_page_token }))
    }

    async fn delete_subject(
        &self,
        call: Request<v1::DeleteSubjectRequest>,
    ) -> Result<Response<v1::DeleteSubjectResponse>, Status> {
        let deadline = answer_by(call.metadata());
        let v1::DeleteSubjectRequest { namespace, kind, id, etag } = call.into_inner();
        subject::check_key(&namespace, &kind, &id).map_err(catalogue::refused)?;
        let deleted = self.engine.delete_subject(&namespace, &kind, &id, &etag, ANONYMOUS);
        change_by(deadline, deleted).await.map_err(catalogue::failed)?;
        Ok(Response::new(v1::DeleteSubjectResponse {}))
    }
}
