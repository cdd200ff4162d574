//! A server with the documents' policy, and snippets that run against it.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use quota_authority::proto::v1::quota_service_client::QuotaServiceClient;
use quota_authority::proto::v1::{self, ReservationState};
use tonic::transport::Channel;

use crate::language::Language;
use crate::support::{Process, RequireTool as _, Server, eventually};

/// How long anything may take on a busy machine.
pub const LONG: Duration = Duration::from_mins(1);
const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/policies/docs.yaml");
/// The document that the snippets write.
const DOC: (&str, &str) = ("doc", "doc-7");

pub struct Stage {
    server: Server,
    quota: QuotaServiceClient<Channel>,
}

impl Stage {
    /// `None` where one of the languages is not to be had.
    pub async fn new(languages: &[Language]) -> Option<Self> {
        for language in languages.iter().copied() {
            // Fetching may take minutes; not on the runtime's own threads.
            let set_up = tokio::task::spawn_blocking(move || language.command().map(drop));
            set_up.await.expect("no panic").require_tool(&format!("{language:?}"))?;
        }
        let server = Server::start(&["--store", "memory", "--policy", POLICY], &[]).await;
        let quota = QuotaServiceClient::new(server.channel().await);
        Some(Self { server, quota })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Starts a snippet against the server.
    pub fn start(&self, language: Language, ttl: u32, work: f64) -> Run {
        Run::start(self.address(), language, ttl, work)
    }

    /// All that were ever admitted, oldest first.
    pub async fn locks(&self) -> Vec<Lock> {
        let request = v1::ListReservationsRequest {
            namespace: "docs".to_owned(),
            limit: "one-writer".to_owned(),
            dimensions: [DOC].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        let answer = self.quota.clone().list_reservations(request).await.expect("a list");
        let found = answer.into_inner().reservations;
        let mut locks: Vec<_> = found.into_iter().filter_map(Lock::of).collect();
        locks.sort_by_key(|lock| lock.token);
        locks
    }

    /// Waits until the `n`-th lock is held, and gives it.
    pub async fn held(&self, n: usize) -> Lock {
        eventually(LONG, "the lock to be held", async || {
            let lock = self.locks().await.into_iter().nth(n - 1)?;
            (lock.state == ReservationState::Held).then_some(lock)
        })
        .await
    }

    /// Waits until so many wait for the lock.
    pub async fn waiting(&self, count: i32) {
        let request = v1::GetUsageRequest {
            namespace: "docs".to_owned(),
            metric: "edit".to_owned(),
            dimensions: [DOC].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        eventually(LONG, "those who wait", async || {
            let usage = self.quota.clone().get_usage(request.clone()).await.expect("usage");
            (usage.into_inner().limits[0].waiting == count).then_some(())
        })
        .await;
    }

    /// Locks the document from here.
    pub async fn lock(&self, id: &str, wait: Duration) {
        let span = |seconds| prost_types::Duration { seconds, nanos: 0 };
        let request = v1::ReserveRequest {
            namespace: "docs".to_owned(),
            reservation_id: id.to_owned(),
            items: vec![v1::Item { metric: "edit".to_owned(), ..Default::default() }],
            dimensions: [DOC].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ttl: Some(span(60)),
            wait: Some(span(wait.as_secs().try_into().expect("a short time"))),
            ..Default::default()
        };
        self.quota.clone().reserve(request).await.expect("the lock");
    }

    /// Releases a lock, whoever holds it.
    pub async fn release(&self, id: &str) {
        let request = v1::ReleaseRequest {
            namespace: "docs".to_owned(),
            reservation_id: id.to_owned(),
            ..Default::default()
        };
        self.quota.clone().release(request).await.expect("a release");
    }
}

/// One time that somebody held the lock, times in milliseconds.
#[derive(Clone, Debug)]
pub struct Lock {
    pub id: String,
    pub state: ReservationState,
    pub token: i64,
    pub from: i64,
    /// When it was released or ran out; of a held one when it would run out.
    pub until: i64,
    /// Whether it was ever renewed.
    pub extended: bool,
}

impl Lock {
    /// `None` of a lock that was cancelled before it was asked for.
    fn of(lock: v1::Reservation) -> Option<Self> {
        let millis =
            |at: &prost_types::Timestamp| at.seconds * 1000 + i64::from(at.nanos) / 1_000_000;
        let until = lock.settle_time.as_ref().or(lock.expire_time.as_ref()).map(millis);
        Some(Self {
            state: lock.state(),
            token: lock.charges.first()?.fencing_token,
            from: lock.create_time.as_ref().map(millis).expect("a create_time"),
            until: until.expect("an end"),
            extended: lock.history.iter().any(|entry| entry.event == "extended"),
            id: lock.reservation_id,
        })
    }

    pub fn millis(&self) -> i64 {
        self.until - self.from
    }
}

/// A snippet that runs.
pub struct Run {
    process: Process,
}

impl Run {
    /// Starts a snippet against what listens at `server`.
    pub fn start(server: SocketAddr, language: Language, ttl: u32, work: f64) -> Self {
        let mut command = language.command().expect("the stage has set it up");
        command
            .env("QUOTAD_SERVER", server.to_string())
            .env("LOCK_TTL_SECONDS", ttl.to_string())
            .env("WORK_SECONDS", work.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self { process: Process::spawn(&mut command) }
    }

    /// `SIGKILL`.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Waits for its end: the token that it saved with, or what it complained
    /// of.
    pub async fn end(mut self) -> Result<i64, String> {
        let ended = eventually(LONG, "a snippet to end", async || self.process.ended()).await;
        let (mut out, mut err) = (String::new(), String::new());
        let child = self.process.child();
        child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
        child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        if !ended.success() {
            assert_eq!(out, "", "it saved nothing");
            return Err(err);
        }
        let token =
            out.strip_prefix("saved doc-7 with token ").and_then(|rest| rest.strip_suffix('\n'));
        Ok(token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{out}{err}")))
    }
}
