//! Where the server is, and how to talk to it.

use std::error::Error;
use std::time::Duration;

use clap::Args;
use tonic::Request;
use tonic::transport::{Channel, Endpoint, Uri};

use super::output::{Failure, Output};
use super::parse;
use crate::proto::v1::operator_service_client::OperatorServiceClient;
use crate::proto::v1::policy_service_client::PolicyServiceClient;
use crate::proto::v1::quota_service_client::QuotaServiceClient;

/// The most that a page of a listing may have; whoever wants all reads fewer.
pub(super) const MAX_PAGE: i32 = 1000;

/// The flags of every command that asks a server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connect {
    /// The server: http://HOST:PORT, or HOST:PORT.
    #[arg(
        long,
        env = "QUOTAD_SERVER",
        default_value = "http://127.0.0.1:50051",
        value_name = "ADDRESS",
        value_parser = address
    )]
    server: String,
    /// How long each call may take, such as 500ms or 10s.
    #[arg(long, default_value = "10s", value_name = "LENGTH", value_parser = parse::patience)]
    timeout: Duration,
    /// Print answers as JSON (proto3, every field), and errors as JSON on
    /// stderr.
    #[arg(long)]
    json: bool,
}

/// The flag of every command that works in one namespace.
#[derive(Clone, Debug, Args)]
pub(super) struct Namespace {
    /// The namespace.
    #[arg(short, long, env = "QUOTAD_NAMESPACE")]
    pub namespace: String,
}

impl Connect {
    /// How answers are printed.
    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// Nobody answers there.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(&self.server, self.timeout).await
    }
}

/// A connection to a server, which connects again by itself when it breaks.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    channel: Channel,
    timeout: Duration,
}

impl Connection {
    /// Connects to a server at `http://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// Nobody answers there within `timeout`, which later holds for each call.
    pub async fn open(server: &str, timeout: Duration) -> Result<Self, Failure> {
        let unreachable =
            |cause: String| Failure::Unreachable { address: server.to_owned(), cause };
        let endpoint =
            Endpoint::from_shared(server.to_owned()).map_err(|e| unreachable(root(&e)))?;
        let endpoint = endpoint.connect_timeout(timeout);
        match tokio::time::timeout(timeout, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(Self { channel, timeout }),
            Ok(Err(error)) => Err(unreachable(root(&error))),
            Err(_) => Err(unreachable(format!("no answer within {timeout:?}"))),
        }
    }

    /// Reserves, commits, and so on.
    pub fn quota(&self) -> QuotaServiceClient<Channel> {
        QuotaServiceClient::new(self.channel.clone())
    }

    /// Policies and subjects.
    pub fn policy(&self) -> PolicyServiceClient<Channel> {
        PolicyServiceClient::new(self.channel.clone())
    }

    /// A call that may wait this long before it gets anywhere, on top of the
    /// time that any call may take.
    pub fn call_waiting<T>(&self, message: T, wait: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout.saturating_add(wait));
        request
    }

    /// The trail.
    pub fn operator(&self) -> OperatorServiceClient<Channel> {
        OperatorServiceClient::new(self.channel.clone())
    }

    /// A call with the deadline in its metadata, so that the server knows it.
    pub fn call<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }
}

/// A server's address in the form that a connection is made from.
///
/// # Errors
///
/// What would be right, for a person.
pub(super) fn address(text: &str) -> Result<String, String> {
    let malformed = || "must be http://HOST:PORT or HOST:PORT".to_owned();
    if text.starts_with("https://") {
        return Err("TLS is not spoken by this version; use http://HOST:PORT".to_owned());
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let uri: Uri =
        format!("http://{}", rest.trim_end_matches('/')).parse().map_err(|_| malformed())?;
    let plain = uri.path() == "/" && uri.query().is_none();
    if plain && uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some() {
        Ok(uri.to_string().trim_end_matches('/').to_owned())
    } else {
        Err(malformed())
    }
}

/// The error at the bottom: "transport error" tells nobody anything.
fn root(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for (text, expected) in [
            ("127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("http://127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("http://quota.internal:80/", "http://quota.internal:80"),
            ("[::1]:50051", "http://[::1]:50051"),
            ("localhost:1", "http://localhost:1"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected), "{text}");
        }
        for text in
            ["", "localhost", "http://", "https://a:1", "ftp://a:1", "a:1/path", ":50051", "a:x"]
        {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
