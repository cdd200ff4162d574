//! Refusals, taken apart as a client in any language would.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;
use quota_authority::api::{DOMAIN, Reason};
use tonic::{Code, Status};
use tonic_types::pb;

use super::v1;

/// The most bytes that headers of a status may have.
const MAX_METADATA: usize = 8 << 10;

/// A call that did not succeed.
#[derive(Clone, Debug)]
pub struct Refused {
    pub code: Code,
    pub message: String,
    pub reason: Reason,
    pub metadata: HashMap<String, String>,
    pub violations: Vec<pb::bad_request::FieldViolation>,
    pub quota_failure: Option<pb::QuotaFailure>,
    pub refusal: Option<v1::Refusal>,
    pub retry: Option<Duration>,
}

impl From<Status> for Refused {
    /// Takes a status apart, and holds it to what every status must have.
    fn from(status: Status) -> Self {
        let details = pb::Status::decode(status.details()).expect("details that decode");
        assert!(!details.details.is_empty(), "a status without details: {status:?}");
        assert_eq!(details.code, status.code() as i32, "{status:?}");
        let find = |name: &str| {
            let url = format!("type.googleapis.com/{name}");
            details.details.iter().find(|any| any.type_url == url).map(|any| any.value.as_slice())
        };
        let info = find("google.rpc.ErrorInfo").expect("an ErrorInfo in every status");
        let info = pb::ErrorInfo::decode(info).expect("an ErrorInfo that decodes");
        assert_eq!(info.domain, DOMAIN);
        let reason = Reason::from_str_name(&info.reason).expect("a reason of the catalogue");
        assert_eq!(status.code(), code_of(reason), "the code of {reason:?}");
        assert!(!status.message().is_empty(), "a message for {reason:?}");
        let mut headers = tonic::codegen::http::HeaderMap::new();
        status.add_header(&mut headers).expect("a status that fits into headers");
        let size: usize =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(size < MAX_METADATA, "{size} bytes of metadata: {reason:?}");
        let retry = find("google.rpc.RetryInfo").map(|bytes| {
            let retry = pb::RetryInfo::decode(bytes).expect("a RetryInfo that decodes");
            Duration::try_from(retry.retry_delay.expect("a delay")).expect("a delay, not negative")
        });
        Self {
            code: status.code(),
            message: status.message().to_owned(),
            reason,
            metadata: info.metadata,
            violations: find("google.rpc.BadRequest").map_or_else(Vec::new, |bytes| {
                pb::BadRequest::decode(bytes).expect("a BadRequest that decodes").field_violations
            }),
            quota_failure: find("google.rpc.QuotaFailure")
                .map(|bytes| pb::QuotaFailure::decode(bytes).expect("a QuotaFailure that decodes")),
            refusal: find("quota.v1.Refusal")
                .map(|bytes| v1::Refusal::decode(bytes).expect("a Refusal that decodes")),
            retry,
        }
    }
}

impl Refused {
    /// The fields that a `BadRequest` names.
    pub fn fields(&self) -> Vec<&str> {
        self.violations.iter().map(|violation| violation.field.as_str()).collect()
    }
}

/// What a denial must say.
pub trait Denied {
    /// Asserts that the call was denied by these limits and no others, in that
    /// order, and gives the refusal.
    fn denied(self, limits: &[&str]) -> Refused;
    /// Asserts that the call was refused for that reason.
    fn refused(self, reason: Reason) -> Refused;
    /// Asserts that the call was refused for these fields and no others.
    fn invalid(self, fields: &[&str]) -> Refused;
}

impl<T: std::fmt::Debug> Denied for Result<T, Refused> {
    #[track_caller]
    fn denied(self, limits: &[&str]) -> Refused {
        let refused = self.refused(Reason::QuotaExceeded);
        let refusal = refused.refusal.clone().expect("a quota.v1.Refusal");
        let named: Vec<&str> = refusal.limits.iter().map(|status| status.limit.as_str()).collect();
        assert_eq!(named, limits, "the limits that refuse");
        assert_eq!(usize::try_from(refusal.total), Ok(limits.len()));
        assert_eq!(refused.metadata["limit"], limits[0]);
        let failure = refused.quota_failure.as_ref().expect("a QuotaFailure");
        assert_eq!(failure.violations.len(), limits.len());
        for (violation, limit) in failure.violations.iter().zip(limits) {
            assert_eq!(violation.subject, format!("limit:{limit}"));
        }
        for status in &refusal.limits {
            assert!(status.exceeded && status.enforced && status.requested > 0, "{status:?}");
            assert!(status.used >= 0 && status.held >= 0, "{status:?}");
        }
        let waits = refusal.limits.iter().all(|status| status.retry_time.is_some());
        assert_eq!(refused.retry.is_some(), waits, "RetryInfo where waiting helps");
        refused
    }

    #[track_caller]
    fn refused(self, reason: Reason) -> Refused {
        let refused = self.expect_err("a refusal");
        assert_eq!(refused.reason, reason, "{refused:?}");
        refused
    }

    #[track_caller]
    fn invalid(self, fields: &[&str]) -> Refused {
        let refused = self.refused(Reason::InvalidField);
        assert_eq!(refused.fields(), fields, "{}", refused.message);
        assert!(refused.violations.iter().all(|violation| !violation.description.is_empty()));
        refused
    }
}

/// The table of the contract.
fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::Unspecified => panic!("never sent"),
        Reason::QuotaExceeded | Reason::WaitTimedOut => Code::ResourceExhausted,
        Reason::InvalidField => Code::InvalidArgument,
        Reason::ReservationNotFound
        | Reason::NamespaceNotFound
        | Reason::MetricNotFound
        | Reason::LimitNotFound
        | Reason::SubjectNotFound => Code::NotFound,
        Reason::ReservationExpired
        | Reason::AlreadyCommitted
        | Reason::AlreadyReleased
        | Reason::NotCommitted
        | Reason::RefundExceedsCommit
        | Reason::AmountExceedsHold
        | Reason::NoLimitApplies
        | Reason::UnknownPlan
        | Reason::PeriodUnavailable
        | Reason::SubjectFrozen
        | Reason::PolicyRevisionMismatch => Code::FailedPrecondition,
        Reason::ReservationIdReused | Reason::ResourceAlreadyBound => Code::AlreadyExists,
        Reason::CredentialsMissing | Reason::CredentialsInvalid => Code::Unauthenticated,
        Reason::PermissionDenied => Code::PermissionDenied,
        Reason::Overloaded | Reason::StoreUnavailable | Reason::OutcomeUnknown => Code::Unavailable,
    }
}
