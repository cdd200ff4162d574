//! What went wrong, in words, in JSON and as an exit code.

use std::fmt::Write as _;
use std::io;

use prost::Message as _;
use prost_types::Any;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{json as message_json, limits};
use crate::cli::exit;
use crate::domain::time::Span;
use crate::proto::v1;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(in crate::cli) enum Failure {
    /// The server answered with an error.
    Status(Box<Status>),
    /// The same, to a reserve whose id the caller has not chosen and needs to
    /// send it again.
    Unsettled {
        /// What the server answered.
        status: Box<Status>,
        /// The id.
        id: String,
    },
    /// No connection.
    Unreachable {
        /// Where to.
        address: String,
        /// Why not.
        cause: String,
    },
    /// Wrong use; says what would be right.
    Usage(String),
    /// Wrong use, in several places; each line says where.
    Faults(Vec<String>),
    /// Whoever read stdout has gone. He has what he wanted.
    NobodyListens,
    /// Anything else.
    Other(anyhow::Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(named(status)))
    }
}

/// A call ends as cancelled here when its own deadline has passed, since
/// nobody else cancels it: by its right name.
fn named(status: Status) -> Status {
    if status.code() == Code::Cancelled && status.details().is_empty() {
        return Status::deadline_exceeded("the server did not answer within --timeout");
    }
    status
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::NobodyListens;
        }
        Self::Other(anyhow::Error::new(error).context("cannot write to stdout"))
    }
}

impl Failure {
    /// A reserve that may have been admitted although it failed, under an id
    /// that its caller has not chosen.
    pub fn unsettled(status: Status, id: String) -> Self {
        Self::Unsettled { status: Box::new(named(status)), id }
    }

    /// The exit code that says so.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Status(status) | Self::Unsettled { status, .. } => code_of(status),
            Self::Unreachable { .. } => exit::UNREACHABLE,
            Self::Usage(_) | Self::Faults(_) => exit::USAGE,
            Self::NobodyListens => exit::OK,
            Self::Other(_) => exit::FAILED,
        }
    }

    /// For people.
    pub fn to_text(&self) -> Option<String> {
        Some(match self {
            Self::Status(status) => status_text(status),
            Self::Unsettled { status, id } => {
                format!("{}\nto send the same request again, add --id {id}", status_text(status))
            }
            Self::Unreachable { address, cause } => {
                format!("cannot reach the server at {address}: {cause}")
            }
            Self::Usage(message) => format!("error: {message}"),
            Self::Faults(faults) => faults.join("\n"),
            Self::NobodyListens => return None,
            Self::Other(error) => format!("failed: {error:#}"),
        })
    }

    /// For programs: one object with code, reason, message and details.
    pub fn to_json(&self) -> Option<Value> {
        let local = |code: Code, message: String| json!({ "code": code_name(code), "reason": "", "message": message, "details": [] });
        Some(match self {
            Self::Status(status) => status_json(status),
            Self::Unsettled { status, id } => {
                let mut value = status_json(status);
                value["reservationId"] = json!(id);
                value
            }
            Self::Unreachable { .. } => local(Code::Unavailable, self.to_text()?),
            Self::Usage(message) => local(Code::InvalidArgument, message.clone()),
            Self::Faults(faults) => local(Code::InvalidArgument, faults.join("\n")),
            Self::NobodyListens => return None,
            Self::Other(error) => local(Code::Unknown, format!("{error:#}")),
        })
    }
}

/// The reason in a status, or the name of its code where it has none.
pub(in crate::cli) fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().filter(|info| !info.reason.is_empty());
    info.map_or_else(|| code_name(status.code()), |info| info.reason)
}

fn code_of(status: &Status) -> u8 {
    match status.code() {
        Code::InvalidArgument => exit::USAGE,
        Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::AlreadyExists
        | Code::NotFound => exit::REFUSED,
        Code::Unavailable | Code::DeadlineExceeded => exit::UNREACHABLE,
        _ if broken(status) => exit::UNREACHABLE,
        _ => exit::FAILED,
    }
}

/// Whether the connection broke, rather than the server answered.
fn broken(status: &Status) -> bool {
    let source = std::error::Error::source(status);
    source.is_some_and(<dyn std::error::Error>::is::<tonic::transport::Error>)
}

fn status_text(status: &Status) -> String {
    let what = match code_of(status) {
        exit::USAGE => "invalid",
        exit::REFUSED => "refused",
        exit::UNREACHABLE => "unavailable",
        _ => "failed",
    };
    let mut text = format!("{what} ({})", reason(status));
    match status.get_details_bad_request() {
        // The message joins what here gets a line each.
        Some(faults) if !faults.field_violations.is_empty() => {
            text.push(':');
            for fault in faults.field_violations {
                let _ = write!(text, "\n  {}: {}", fault.field, fault.description);
            }
        }
        _ => {
            let _ = write!(text, ": {}", status.message());
        }
    }
    let refusal = details(status).into_iter().find_map(|detail| {
        let named = detail.type_url.ends_with("/quota.v1.Refusal");
        named.then(|| v1::Refusal::decode(&*detail.value).ok())?
    });
    if let Some(refusal) = refusal {
        let _ = write!(text, "\n{}", limits::failing(&refusal.limits).trim_fmt());
        let total = usize::try_from(refusal.total).unwrap_or_default();
        let left_out = total.saturating_sub(refusal.limits.len());
        if left_out > 0 {
            let _ = write!(text, "\nand {left_out} more");
        }
    }
    if let Some(hint) = retry_hint(status) {
        let _ = write!(text, "\n{hint}");
    }
    text
}

/// When to come back, where the server says that it helps.
fn retry_hint(status: &Status) -> Option<String> {
    let delay = status.get_details_retry_info()?.retry_delay?;
    let info = status.get_details_error_info();
    let at = info.and_then(|mut info| info.metadata.remove("retry_time"));
    let delay = Span::from_millis(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX));
    Some(at.map_or_else(|| format!("try again in {delay}"), |at| format!("could pass at {at}")))
}

fn status_json(status: &Status) -> Value {
    let details: Vec<Value> = details(status)
        .iter()
        .map(|detail| {
            // A detail that is unknown here is still worth its name.
            message_json("google.protobuf.Any", &detail.encode_to_vec())
                .unwrap_or_else(|_| json!({ "@type": detail.type_url }))
        })
        .collect();
    json!({
        "code": code_name(status.code()),
        "reason": status.get_details_error_info().map(|info| info.reason).unwrap_or_default(),
        "message": status.message(),
        "details": details,
    })
}

fn details(status: &Status) -> Vec<Any> {
    tonic_types::Status::decode(status.details()).map(|status| status.details).unwrap_or_default()
}

/// `RESOURCE_EXHAUSTED`, as the protocol calls it.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_protocol() {
        assert_eq!(code_name(Code::ResourceExhausted), "RESOURCE_EXHAUSTED");
        assert_eq!(code_name(Code::Ok), "OK");
        assert_eq!(code_name(Code::NotFound), "NOT_FOUND");
    }

    #[test]
    fn exit_codes_tell_refused_from_unreachable_from_wrong_use() {
        for (code, expected) in [
            (Code::InvalidArgument, 2),
            (Code::ResourceExhausted, 3),
            (Code::FailedPrecondition, 3),
            (Code::AlreadyExists, 3),
            (Code::NotFound, 3),
            (Code::Unavailable, 4),
            (Code::DeadlineExceeded, 4),
            (Code::Unimplemented, 1),
            (Code::Internal, 1),
        ] {
            assert_eq!(Failure::from(Status::new(code, "")).exit_code(), expected, "{code:?}");
        }
    }

    #[test]
    fn every_detail_of_an_error_is_json() {
        let mut refusal = v1::Refusal { limits: vec![v1::LimitStatus::default()], total: 2 };
        refusal.limits[0].limit = "posts".to_owned();
        let any =
            |name: &str, value| Any { type_url: format!("type.googleapis.com/{name}"), value };
        let info = tonic_types::pb::ErrorInfo {
            reason: "QUOTA_EXCEEDED".to_owned(),
            ..tonic_types::pb::ErrorInfo::default()
        };
        let code = Code::ResourceExhausted;
        let details = vec![
            any("google.rpc.ErrorInfo", info.encode_to_vec()),
            any("quota.v1.Refusal", refusal.encode_to_vec()),
            any("a.later.Detail", Vec::new()),
        ];
        let body = tonic_types::Status { code: code as i32, message: "no".to_owned(), details };
        let status = Status::with_details(code, "no", body.encode_to_vec().into());
        let value = status_json(&status);
        assert_eq!(value["code"], "RESOURCE_EXHAUSTED");
        assert_eq!(value["reason"], "QUOTA_EXCEEDED");
        assert_eq!(value["details"][1]["limits"][0]["limit"], "posts");
        assert_eq!(value["details"][2]["@type"], "type.googleapis.com/a.later.Detail");
        let text = status_text(&status);
        assert!(text.starts_with("refused (QUOTA_EXCEEDED): no\n"), "{text}");
        assert!(text.ends_with("and 1 more"), "{text}");
    }
}
