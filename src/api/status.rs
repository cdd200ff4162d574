//! The one place that builds a gRPC status.
//!
//! Every error carries a `google.rpc.ErrorInfo` with a reason from the
//! catalogue, and what that reason calls for besides. All details together
//! stay under [`MAX_DETAILS`], since they travel as metadata, which many
//! proxies and clients bound at 8 KiB.

use std::collections::HashMap;

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb::{
    BadRequest, ErrorInfo, QuotaFailure, RetryInfo, bad_request::FieldViolation, quota_failure,
};

use super::convert::{answer, times};
use crate::domain::name::Violation;
use crate::domain::status::LimitStatus;
use crate::domain::time::Span;
use crate::proto::v1;

/// The domain of every reason.
pub const DOMAIN: &str = "quota.v1";

/// The catalogue of reasons.
pub type Reason = v1::ErrorReason;

/// The most bytes of encoded details: as base64, with a message of
/// [`MAX_MESSAGE`] beside it, they stay under 8 KiB.
const MAX_DETAILS: usize = 4200;
/// The most bytes of a message; a byte may take three on the wire.
const MAX_MESSAGE: usize = 512;

/// A status being made.
pub(super) struct Draft {
    code: Code,
    message: String,
    info: ErrorInfo,
    details: Vec<Any>,
}

impl Draft {
    pub fn new(code: Code, reason: Reason, message: impl Into<String>) -> Self {
        let (reason, domain) = (reason.as_str_name().to_owned(), DOMAIN.to_owned());
        let info = ErrorInfo { reason, domain, metadata: HashMap::new() };
        Self { code, message: message.into(), info, details: Vec::new() }
    }

    /// A value that the message mentions.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.info.metadata.insert(name.to_owned(), shorten(&value.to_string()));
        self
    }

    /// When to send the call again.
    pub fn retry(mut self, after: Span) -> Self {
        let retry = RetryInfo { retry_delay: Some(times::duration(after)) };
        self.details.push(any("google.rpc.RetryInfo", &retry));
        self
    }

    /// The violations, as many as fit.
    pub fn bad_request(mut self, violations: &[Violation]) -> Self {
        let mut detail = BadRequest::default();
        let room = self.room();
        for violation in violations {
            // A path may hold a name that is itself too long: it is shortened,
            // so that at least the first violation always fits.
            detail.field_violations.push(FieldViolation {
                field: shorten(&violation.field),
                description: shorten(&violation.message),
                ..FieldViolation::default()
            });
            if detail.encoded_len() > room {
                detail.field_violations.pop();
                break;
            }
        }
        self.details.push(any("google.rpc.BadRequest", &detail));
        self
    }

    /// The failing limits, as many as fit, once for programs that know this
    /// contract and once for those that only know `google.rpc`.
    pub fn refusal(
        mut self,
        limits: &[LimitStatus],
        describe: impl Fn(&LimitStatus) -> String,
    ) -> Self {
        let room = self.room();
        let total = i32::try_from(limits.len()).unwrap_or(i32::MAX);
        let mut detail = v1::Refusal { limits: Vec::new(), total };
        let mut failure = QuotaFailure::default();
        for limit in limits {
            let mut status = answer::limit(limit);
            if status.encoded_len() > room / 2 {
                // Sixteen long values: the limit is named even so.
                status.key.clear();
            }
            detail.limits.push(status);
            failure.violations.push(quota_failure::Violation {
                subject: format!("limit:{}", limit.counter.limit),
                description: describe(limit),
                ..quota_failure::Violation::default()
            });
            if detail.encoded_len() + failure.encoded_len() > room {
                detail.limits.pop();
                failure.violations.pop();
                break;
            }
        }
        self.details.push(any("google.rpc.QuotaFailure", &failure));
        self.details.push(any("quota.v1.Refusal", &detail));
        self
    }

    /// Bytes left for one more detail.
    fn room(&self) -> usize {
        let used: usize = self.details.iter().map(Message::encoded_len).sum();
        MAX_DETAILS.saturating_sub(used + self.info.encoded_len() + 256)
    }

    /// The reason, the message and the values in it.
    pub fn told(self) -> (String, String, HashMap<String, String>) {
        (self.info.reason, shorten(&self.message), self.info.metadata)
    }

    pub fn build(self) -> Status {
        let message = shorten(&self.message);
        let mut details = vec![any("google.rpc.ErrorInfo", &self.info)];
        details.extend(self.details);
        let code = self.code as i32;
        let status = tonic_types::Status { code, message: message.clone(), details };
        Status::with_details(self.code, message, status.encode_to_vec().into())
    }
}

fn any(type_name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: message.encode_to_vec() }
}

/// At most [`MAX_MESSAGE`] bytes of `text`.
pub(super) fn shorten(text: &str) -> String {
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8());
    format!("{}…", &text[..end])
}
