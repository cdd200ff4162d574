//! Everything that is printed: data to stdout, talk to stderr, tables for
//! people, JSON for programs.

mod failure;
mod limits;

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::api::times;
use crate::proto::{FILE_DESCRIPTOR_SET, v1};

pub(super) use failure::{Failure, reason};
pub(super) use limits::{add_limit, limits, no_limits};

/// A message that is printed as JSON, with its name in the contract.
pub(super) trait Named: Message {
    /// Its full name.
    const NAME: &'static str;
}

macro_rules! named {
    ($($message:ident)*) => {
        $(impl Named for v1::$message {
            const NAME: &'static str = concat!("quota.v1.", stringify!($message));
        })*
    };
}

named! {
    AdjustUsageResponse ApplyPolicyResponse CheckResponse CommitResponse DeleteSubjectResponse Event
    ExtendResponse Finding GetPolicyResponse GetSubjectResponse GetUsageResponse LimitStatus
    PolicyRevision PutSubjectResponse ReconcileResponse RefundResponse ReleaseResponse Reservation
    ReserveResponse Subject WatchUsageResponse
}

/// How answers are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// As JSON.
    pub json: bool,
}

impl Output {
    /// For people, or as JSON.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints text for people and a line's end; nothing where programs read.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn line(self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { print(text) }
    }

    /// Prints a table made by [`table`], for people too.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn table(self, table: &Table) -> Result<(), Failure> {
        self.line(&table.trim_fmt())
    }

    /// Prints a message as JSON where programs read; nothing for people.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn message<M: Named>(self, message: &M) -> Result<(), Failure> {
        self.value(&to_json(message)?)
    }

    /// Prints one of many messages as a line of JSON, for programs too.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn one_of_many<M: Named>(self, message: &M) -> Result<(), Failure> {
        if self.json { print(&to_json(message)?.to_string()) } else { Ok(()) }
    }

    /// Prints JSON, for programs too.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn value(self, value: &Value) -> Result<(), Failure> {
        // The alternate form is the indented one.
        if self.json { print(&format!("{value:#}")) } else { Ok(()) }
    }

    /// Says what went wrong on stderr; gives the exit code.
    pub fn failed(self, failure: &Failure) -> u8 {
        if self.json {
            if let Some(value) = failure.to_json() {
                talk(&format!("{value:#}"));
            }
        } else if let Some(text) = failure.to_text() {
            talk(&text);
        }
        failure.exit_code()
    }
}

fn print(text: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Says something on stderr. Where nobody listens, nothing is lost.
pub(super) fn talk(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Which stream a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Data.
    Stdout,
    /// Talk.
    Stderr,
}

/// An empty table: with lines and fitted to the screen on a terminal, in plain
/// columns that are never wrapped otherwise. The columns from `numbers` on are
/// aligned to the right.
pub(super) fn table<const N: usize>(stream: Stream, header: [&str; N], numbers: usize) -> Table {
    let mut table = Table::new();
    let terminal = match stream {
        Stream::Stdout => io::stdout().is_terminal(),
        Stream::Stderr => {
            table.use_stderr();
            io::stderr().is_terminal()
        }
    };
    if terminal {
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic);
    } else {
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    table.set_header(header);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if !terminal && let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table
}

/// An instant for people.
pub(super) fn instant(time: prost_types::Timestamp) -> String {
    times::time("time", time)
        .map_or_else(|_| format!("{} s", time.seconds), |time| time.to_string())
}

/// A message as [`json`] has it.
pub(super) fn to_json<M: Named>(message: &M) -> Result<Value, Failure> {
    json(M::NAME, &message.encode_to_vec())
}

/// An encoded message as canonical proto3 JSON, its keys in alphabetical order,
/// so that equal answers print alike. Fields at their default are
/// printed too: a script should not have to know that a missing `admitted`
/// means false.
fn json(name: &str, encoded: &[u8]) -> Result<Value, Failure> {
    let message = pool()
        .and_then(|pool| {
            Ok(pool
                .get_message_by_name(name)
                .map(|m| DynamicMessage::decode(m, encoded))
                .transpose()?)
        })
        .map_err(Failure::Other)?
        .ok_or_else(|| Failure::Other(anyhow::anyhow!("the contract has no message {name}")))?;
    let options = SerializeOptions::new().skip_default_fields(false);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| Failure::Other(error.into()))
}

/// The descriptors of the contract and of what errors carry.
fn pool() -> anyhow::Result<DescriptorPool> {
    let mut pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET)?;
    pool.decode_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)?;
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_message_is_in_the_contract() {
        let value = json("quota.v1.CheckResponse", &[]).unwrap();
        assert_eq!(value, serde_json::json!({ "admitted": false, "limits": [] }));
        for name in [
            v1::AdjustUsageResponse::NAME,
            v1::ApplyPolicyResponse::NAME,
            v1::ExtendResponse::NAME,
            v1::Finding::NAME,
            v1::ReconcileResponse::NAME,
            v1::RefundResponse::NAME,
            v1::CommitResponse::NAME,
            v1::DeleteSubjectResponse::NAME,
            v1::Event::NAME,
            v1::GetPolicyResponse::NAME,
            v1::GetSubjectResponse::NAME,
            v1::GetUsageResponse::NAME,
            v1::LimitStatus::NAME,
            v1::PolicyRevision::NAME,
            v1::PutSubjectResponse::NAME,
            v1::ReleaseResponse::NAME,
            v1::Reservation::NAME,
            v1::ReserveResponse::NAME,
            v1::Subject::NAME,
            v1::WatchUsageResponse::NAME,
        ] {
            assert!(json(name, &[]).is_ok(), "{name}");
        }
    }

    #[test]
    fn times_and_numbers_are_canonical() {
        let answer = v1::GetUsageResponse {
            limits: vec![v1::LimitStatus { used: 3, ..v1::LimitStatus::default() }],
            read_time: Some(prost_types::Timestamp { seconds: 0, nanos: 500_000_000 }),
            ..v1::GetUsageResponse::default()
        };
        let value = json(v1::GetUsageResponse::NAME, &answer.encode_to_vec()).unwrap();
        assert_eq!(value["readTime"], "1970-01-01T00:00:00.500Z");
        assert_eq!(value["limits"][0]["used"], "3");
    }
}
