//! What the stories have in common: a server, what they tell, and what must
//! come of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tonic::Status;

use super::crowd::{Outcome, PATIENCE, crowd};
use crate::api::policy_file;
use crate::cli::connect::Connection;
use crate::cli::output::{Failure, Output, Stream, reason, table};
use crate::proto::v1;

/// How long a hold of one second may take to be gone.
const EXPIRY: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

/// Where stories play.
pub(super) struct Stage {
    out: Output,
    server: String,
    connection: Connection,
    rows: Vec<Row>,
    differs: Vec<String>,
}

/// A call that waits for room.
pub(super) struct Waiting {
    story: &'static str,
    step: &'static str,
    answer: JoinHandle<Result<tonic::Response<v1::ReserveResponse>, Status>>,
}

/// What came of one step.
struct Row {
    story: &'static str,
    step: &'static str,
    admitted: i64,
    refused: i64,
    why: String,
}

impl Stage {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn open(out: Output, address: SocketAddr) -> Result<Self, Failure> {
        let server = format!("http://{address}");
        let connection = Connection::open(&server, PATIENCE).await?;
        out.line(&format!("A server listens on {server}, on a store in a temporary folder."))?;
        Ok(Self { out, server, connection, rows: Vec::new(), differs: Vec::new() })
    }

    /// What was admitted and refused, and why.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn table(&self) -> Result<(), Failure> {
        let titles = ["STORY", "STEP", "WHY REFUSED", "CALLS", "ADMITTED", "REFUSED"];
        let mut table = table(Stream::Stdout, titles, 3);
        for row in &self.rows {
            let numbers = [row.admitted + row.refused, row.admitted, row.refused];
            let [calls, admitted, refused] = numbers.map(|n| n.to_string());
            table.add_row([row.story, row.step, &row.why, &calls, &admitted, &refused]);
        }
        self.out.line("")?;
        self.out.table(&table)?;
        self.out.line("")
    }

    /// What did not come out as it must.
    pub fn differs(&self) -> &[String] {
        &self.differs
    }

    /// Begins a story under this policy.
    pub async fn begin(&self, about: &str, policy: &str) -> Result<(), Failure> {
        self.out.line(&format!("\n{about}\n"))?;
        let spec = policy_file::parse(policy)
            .map_err(|faults| Failure::Faults(faults.iter().map(ToString::to_string).collect()))?;
        let policy = Some(policy_file::to_message(&spec));
        let request = v1::ApplyPolicyRequest { policy, ..v1::ApplyPolicyRequest::default() };
        self.connection.policy().apply_policy(self.connection.call(request)).await?;
        Ok(())
    }

    /// What happens.
    pub fn say(&self, text: &str) -> Result<(), Failure> {
        self.out.line(text)
    }

    /// What came of it.
    pub fn tell(&self, text: &str) -> Result<(), Failure> {
        self.out.line(&format!("  -> {text}"))
    }

    /// Holds the story to a number.
    pub fn expect(&mut self, what: &str, expected: i64, actual: i64) {
        if actual != expected {
            self.differs.push(format!("{what}: {actual}, must be {expected}"));
        }
    }

    /// Sends these calls all at once, each from a backend of its own that
    /// commits what it gets, and holds the story to how many are admitted.
    pub async fn rush(
        &mut self,
        (story, step): (&'static str, &'static str),
        calls: Vec<v1::ReserveRequest>,
        admitted: i64,
    ) -> Result<(), Failure> {
        let many = i64::try_from(calls.len()).unwrap_or(i64::MAX);
        let outcome = crowd(&self.server, calls).await;
        self.tell(&format!("{} admitted, {} refused", outcome.admitted, outcome.refused()))?;
        self.expect(&format!("{step}: admitted"), admitted, outcome.admitted);
        self.expect(&format!("{step}: refused"), many - admitted, outcome.refused());
        self.rows.push(Row::new(story, step, &outcome));
        let failed = outcome.failed.into_iter();
        self.differs.extend(failed.map(|call| format!("{step}: a call failed: {call}")));
        Ok(())
    }

    /// One call, and the answer, or else the refusal, which is told.
    pub async fn one(
        &mut self,
        (story, step): (&'static str, &'static str),
        call: v1::ReserveRequest,
        passes: bool,
    ) -> Result<Result<v1::ReserveResponse, Status>, Failure> {
        let answer = self.connection.quota().reserve(self.connection.call(call)).await;
        if let Err(status) = &answer {
            self.tell(&format!("refused ({}): {}", reason(status), status.message()))?;
        }
        Ok(self.told((story, step), answer.map(tonic::Response::into_inner), passes))
    }

    /// Holds the story to what came of one call.
    fn told<T>(
        &mut self,
        (story, step): (&'static str, &'static str),
        answer: Result<T, Status>,
        passes: bool,
    ) -> Result<T, Status> {
        let mut outcome = Outcome::default();
        outcome.add(answer.as_ref().map(|_| ()).map_err(Status::clone));
        self.expect(&format!("{step}: admitted"), i64::from(passes), outcome.admitted);
        self.rows.push(Row::new(story, step, &outcome));
        answer
    }

    /// Sends a call whose sender then crashes: his connection goes with him.
    pub async fn crash_after(&self, call: v1::ReserveRequest) -> Result<(), Failure> {
        let crashing = Connection::open(&self.server, PATIENCE).await?;
        crashing.quota().reserve(crashing.call(call)).await?;
        Ok(())
    }

    /// Waits until nothing is held any more, and tells how long that took.
    pub async fn expires(&mut self, usage: &v1::GetUsageRequest) -> Result<(), Failure> {
        let started = Instant::now();
        let mut held = self.usage(usage).await?.held;
        self.tell(&format!("held {held}"))?;
        self.expect("units held by somebody who crashed", 1, held);
        while held > 0 && started.elapsed() < EXPIRY {
            tokio::time::sleep(LOOK).await;
            held = self.usage(usage).await?.held;
        }
        let after = started.elapsed().as_secs_f64();
        self.tell(&format!("held {held} after {after:.1} s: the hold has expired by itself"))?;
        self.expect("units held after the hold's time", 0, held);
        Ok(())
    }

    /// Commits, and tells whether the answer was a replay.
    pub async fn commit(&self, call: v1::CommitRequest) -> Result<bool, Failure> {
        let answer = self.connection.quota().commit(self.connection.call(call)).await?;
        Ok(answer.into_inner().replayed)
    }

    /// Gives a hold back.
    pub async fn release(&self, namespace: &str, id: &str, reason: &str) -> Result<(), Failure> {
        let call = v1::ReleaseRequest {
            namespace: namespace.to_owned(),
            reservation_id: id.to_owned(),
            reason: reason.to_owned(),
            allow_missing: false,
        };
        self.connection.quota().release(self.connection.call(call)).await?;
        Ok(())
    }

    /// Puts off the end of a hold.
    pub async fn extend(&self, namespace: &str, id: &str, seconds: i64) -> Result<(), Failure> {
        let call = v1::ExtendRequest {
            namespace: namespace.to_owned(),
            reservation_id: id.to_owned(),
            ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
        };
        self.connection.quota().extend(self.connection.call(call)).await?;
        Ok(())
    }

    /// Begins a call that waits for room.
    pub fn wait_for(
        &self,
        (story, step): (&'static str, &'static str),
        call: v1::ReserveRequest,
    ) -> Waiting {
        let connection = self.connection.clone();
        let answer =
            tokio::spawn(async move { connection.quota().reserve(connection.call(call)).await });
        Waiting { story, step, answer }
    }

    /// Waits until the server says that somebody waits.
    pub async fn someone_waits(&mut self, usage: &v1::GetUsageRequest) -> Result<(), Failure> {
        let started = Instant::now();
        let mut waiting = self.usage(usage).await?.waiting;
        while waiting == 0 && started.elapsed() < EXPIRY {
            tokio::time::sleep(LOOK).await;
            waiting = self.usage(usage).await?.waiting;
        }
        self.expect("who waits", 1, waiting.into());
        Ok(())
    }

    /// Waits until that call is granted.
    pub async fn granted(
        &mut self,
        waiting: Waiting,
    ) -> Result<Result<v1::ReserveResponse, Status>, Failure> {
        let Waiting { story, step, answer } = waiting;
        let started = Instant::now();
        let answer = answer.await.map_err(|error| Failure::Other(error.into()))?;
        self.tell(&format!("granted {} ms after it was free", started.elapsed().as_millis()))?;
        Ok(self.told((story, step), answer.map(tonic::Response::into_inner), true))
    }

    /// What a billing system tells of a subject.
    pub async fn put(&self, namespace: &str, subject: v1::Subject) -> Result<(), Failure> {
        let (namespace, subject) = (namespace.to_owned(), Some(subject));
        let call = v1::PutSubjectRequest { namespace, subject, etag: String::new() };
        self.connection.policy().put_subject(self.connection.call(call)).await?;
        Ok(())
    }

    /// Where the first of the limits stands.
    pub async fn usage(&self, usage: &v1::GetUsageRequest) -> Result<v1::LimitStatus, Failure> {
        let call = self.connection.call(usage.clone());
        let answer = self.connection.quota().get_usage(call).await?.into_inner();
        Ok(answer.limits.into_iter().next().unwrap_or_default())
    }

    /// The server's time.
    pub async fn now(&self, usage: &v1::GetUsageRequest) -> Result<jiff::Timestamp, Failure> {
        let call = self.connection.call(usage.clone());
        let answer = self.connection.quota().get_usage(call).await?.into_inner();
        let at = answer.read_time.unwrap_or_default();
        jiff::Timestamp::new(at.seconds, at.nanos).map_err(|error| Failure::Other(error.into()))
    }
}

impl Row {
    fn new(story: &'static str, step: &'static str, outcome: &Outcome) -> Self {
        let (admitted, refused) = (outcome.admitted, outcome.refused());
        Self { story, step, admitted, refused, why: outcome.why() }
    }
}

/// A map of dimensions.
pub(super) fn dimensions(pairs: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A question of where a metric stands.
pub(super) fn usage_of(
    namespace: &str,
    metric: &str,
    pairs: &[(&str, &str)],
) -> v1::GetUsageRequest {
    v1::GetUsageRequest {
        namespace: namespace.to_owned(),
        metric: metric.to_owned(),
        dimensions: dimensions(pairs),
        ..v1::GetUsageRequest::default()
    }
}
