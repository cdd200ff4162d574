//! The policy file: YAML as people write it, and where each fault stands.

mod place;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{MessageFormatter as _, NonFiniteFloatPolicy, Options, UserMessageFormatter};

use super::convert;
use crate::domain::name::Violation;
use crate::domain::policy::{PolicySpec, check};
use crate::proto::v1;
use crate::store::document::policy::PolicyDoc;
use place::{Node, Place};

/// The longest policy file, in bytes: as much as a message of the API may have.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// One fault of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// Path of the field, such as `limits[2].max`; empty where the text is no
    /// YAML or the document as a whole is meant.
    pub field: String,
    /// What is wrong, naming what is allowed.
    pub message: String,
}

impl fmt::Display for Fault {
    /// `12:5: limits[2].max: must be …`, on one line whatever the field is
    /// called.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.field.is_empty() {
            let field = self.field.replace(char::is_control, "\u{fffd}");
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Reads a policy file of at most [`MAX_FILE_BYTES`]: one YAML document with
/// the keys of `quota.v1.Policy`. Anchors and aliases are allowed, within
/// bounds; merge keys are not.
///
/// # Errors
///
/// Every fault of the document, in the order of its lines: of its form and of
/// what it says. Where the text is no YAML, the first fault, since what follows
/// can be taken for anything.
pub fn parse(text: &str) -> Result<PolicySpec, Vec<Fault>> {
    if text.len() > MAX_FILE_BYTES {
        let message = format!("has {} bytes; at most {MAX_FILE_BYTES} are allowed", text.len());
        return Err(vec![Fault { line: 1, column: 1, field: String::new(), message }]);
    }
    let root: Node = serde_saphyr::from_str_with_options(text, options())
        .map_err(|error| vec![no_yaml(&error)])?;
    let (spec, mut violations) = PolicyDoc::from(root.tree(text)).read();
    let of_form = violations.len();
    for violation in check::faults(&spec) {
        if !violations[..of_form].iter().any(|earlier| follows(&violation.field, &earlier.field)) {
            violations.push(violation);
        }
    }
    if violations.is_empty() {
        return Ok(spec);
    }
    let mut faults: Vec<Fault> = violations.into_iter().map(|fault| placed(&root, fault)).collect();
    faults.sort_by_key(|fault| (fault.line, fault.column));
    Err(faults)
}

/// Writes a policy as such a file.
///
/// # Errors
///
/// The policy has something that YAML cannot carry; none that [`parse`] or the
/// API accepts has.
pub fn to_yaml(spec: &PolicySpec) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(&PolicyDoc::from_spec(spec))
}

/// The message of a policy, as a client sends it.
pub fn to_message(spec: &PolicySpec) -> v1::Policy {
    convert::policy::spec_to_policy(spec)
}

/// The policy of a message, as a server answers it.
///
/// # Errors
///
/// What this version does not know.
pub fn from_message(policy: v1::Policy) -> Result<PolicySpec, Vec<Violation>> {
    convert::policy::checked(policy)
}

/// YAML 1.2, strictly: no `yes` for true, no `1_000`. Doubled keys pass, to be
/// reported with everything else.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 500_000,
            max_nodes: 200_000,
            max_depth: 32,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 8,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        null_as_string: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn no_yaml(error: &serde_saphyr::Error) -> Fault {
    let place = error.location().map_or(Place { line: 1, column: 1 }, Place::from);
    let mut error = error.without_snippet();
    while let serde_saphyr::Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    let message = UserMessageFormatter.format_message(error);
    let message = message.replace(char::is_control, "\u{fffd}");
    Fault { line: place.line, column: place.column, field: String::new(), message }
}

fn placed(root: &Node, violation: Violation) -> Fault {
    let Place { line, column } = root.find(&violation.field);
    Fault { line, column, field: violation.field, message: violation.message }
}

/// Whether a fault of content may be no more than a consequence of an earlier
/// one of form, because it was found in what stands in for the unreadable part.
fn follows(field: &str, earlier: &str) -> bool {
    if within(field, earlier) {
        return true;
    }
    let (limit, key) = split_limit(field);
    // Which dimensions are named and required decides whether a limit can be
    // escaped (a fault of the limit as a whole), which of them are `per`,
    // whether a max by plan has a subject.
    let of_limit = !limit.is_empty() && key.is_empty();
    if within(earlier, "metrics") {
        return of_limit || (earlier == "metrics" && key == "metric");
    }
    if within(earlier, "plans") {
        return field == "default_plan" || within(key, "max.by_plan");
    }
    let (earlier_limit, cause) = split_limit(earlier);
    let caused_by = |keys: &[&str]| keys.iter().any(|one| within(cause, one));
    !limit.is_empty()
        && limit == earlier_limit
        && (of_limit && caused_by(&["metric", "where", "per", "optional", "plan_of"])
            || key == "max" && caused_by(&["per", "plan_of"]))
}

/// Whether `path` is `outer` or lies below it.
fn within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    outer.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A path as that of a whole limit and the rest below it; two empty parts
/// where it is outside of limits.
fn split_limit(path: &str) -> (&str, &str) {
    if !path.starts_with("limits[") {
        return ("", "");
    }
    path.split_once('.').unwrap_or((path, ""))
}
