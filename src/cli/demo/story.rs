//! The story of a blog, told by what the server answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::crowd::{BLOG, Outcome, PATIENCE, commit, crowd, reserve};
use crate::api::policy_file;
use crate::cli::connect::Connection;
use crate::cli::output::{Failure, Output, Stream, reason, table};
use crate::proto::v1;

const POLICY: &str = include_str!("../../../deploy/policies/blog.yaml");
/// How long a hold of one second may take to be gone.
const EXPIRY: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

/// A user of the story.
const ANNA: &str = "42";
/// Another, of whom the server is told nothing.
const BEN: &str = "7";

/// The story under way.
pub(super) struct Story {
    out: Output,
    server: String,
    connection: Connection,
    rows: Vec<Row>,
    differs: Vec<String>,
}

/// What came of one step.
struct Row {
    step: &'static str,
    admitted: i64,
    refused: i64,
    why: String,
}

impl Story {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn open(out: Output, address: SocketAddr) -> Result<Self, Failure> {
        let server = format!("http://{address}");
        let connection = Connection::open(&server, PATIENCE).await?;
        Ok(Self { out, server, connection, rows: Vec::new(), differs: Vec::new() })
    }

    /// Plays all of it.
    ///
    /// # Errors
    ///
    /// A call that must be answered was not.
    pub async fn play(&mut self) -> Result<(), Failure> {
        self.prepare().await?;
        self.everybody_at_once().await?;
        self.one_more().await?;
        self.edits().await?;
        self.upgrade().await?;
        self.crash().await?;
        self.retry().await?;
        self.release().await
    }

    /// What was admitted and refused, and why.
    ///
    /// # Errors
    ///
    /// stdout does not take it.
    pub fn table(&self) -> Result<(), Failure> {
        let mut table =
            table(Stream::Stdout, ["STEP", "WHY REFUSED", "CALLS", "ADMITTED", "REFUSED"], 2);
        for row in &self.rows {
            let numbers = [row.admitted + row.refused, row.admitted, row.refused];
            let [calls, admitted, refused] = numbers.map(|n| n.to_string());
            table.add_row([row.step, &row.why, &calls, &admitted, &refused]);
        }
        self.out.line("")?;
        self.out.table(&table)?;
        self.out.line("")
    }

    /// What did not come out as it must.
    pub fn differs(&self) -> &[String] {
        &self.differs
    }

    async fn prepare(&self) -> Result<(), Failure> {
        self.out.line(&format!(
            "A blog allows so many posts a month: free 3, basic 20, pro 100.\n\
             Its server listens on {}, on an embedded store in a temporary folder.\n",
            self.server
        ))?;
        let spec = policy_file::parse(POLICY).map_err(|faults| {
            Failure::Faults(faults.iter().map(|fault| format!("blog.yaml:{fault}")).collect())
        })?;
        let policy = Some(policy_file::to_message(&spec));
        let request = v1::ApplyPolicyRequest { policy, ..v1::ApplyPolicyRequest::default() };
        self.connection.policy().apply_policy(self.connection.call(request)).await?;
        self.put_on("free").await
    }

    async fn everybody_at_once(&mut self) -> Result<(), Failure> {
        self.say("100 callers at once each try to publish one post for user 42, on plan free.")?;
        let outcome = crowd(&self.server, ANNA, 100, "rush").await;
        self.say_outcome(&outcome)?;
        self.expect("callers admitted for a free user", 3, outcome.admitted);
        self.expect("callers refused for a free user", 97, outcome.refused());
        self.row("100 callers at once, plan free", outcome);
        self.expect_settled(ANNA, 3).await
    }

    async fn one_more(&mut self) -> Result<(), Failure> {
        self.say("Later user 42 tries a fourth.")?;
        let outcome = crowd(&self.server, ANNA, 1, "fourth").await;
        if let Some(status) = &outcome.example {
            self.tell(&format!("refused ({}): {}", reason(status), status.message()))?;
        }
        self.expect("fourth posts refused", 1, outcome.refused());
        self.row("a fourth post", outcome);
        Ok(())
    }

    async fn edits(&mut self) -> Result<(), Failure> {
        self.say("User 42 edits a post. An edit costs nothing, so nothing is asked for.")?;
        let used = self.usage(ANNA).await?.used;
        self.tell(&format!("used is still {used} of 3"))?;
        self.expect("posts used after an edit", 3, used);
        Ok(())
    }

    async fn upgrade(&mut self) -> Result<(), Failure> {
        self.say(
            "The billing system tells of an upgrade to basic; 100 callers try again at once.",
        )?;
        self.put_on("basic").await?;
        let outcome = crowd(&self.server, ANNA, 100, "upgraded").await;
        self.say_outcome(&outcome)?;
        self.expect("callers admitted after the upgrade", 17, outcome.admitted);
        self.expect("callers refused after the upgrade", 83, outcome.refused());
        self.row("100 callers at once, upgraded to basic", outcome);
        self.expect_settled(ANNA, 20).await
    }

    async fn crash(&mut self) -> Result<(), Failure> {
        self.say(
            "User 7, unknown to the billing system, is on the default plan: free. His backend \
             holds a\npost for one second and crashes before it settles.",
        )?;
        let crashing = Connection::open(&self.server, PATIENCE).await?;
        let ttl = Some(prost_types::Duration { seconds: 1, nanos: 0 });
        let request = v1::ReserveRequest { ttl, ..reserve(BEN, "crashed") };
        crashing.quota().reserve(crashing.call(request)).await?;
        drop(crashing);
        let started = Instant::now();
        let held = self.usage(BEN).await?.held;
        self.tell(&format!("held {held}"))?;
        self.expect("posts held by the crashed backend", 1, held);
        let mut now = held;
        while now > 0 && started.elapsed() < EXPIRY {
            tokio::time::sleep(LOOK).await;
            now = self.usage(BEN).await?.held;
        }
        let after = started.elapsed().as_secs_f64();
        self.tell(&format!("held {now} after {after:.1} s: the hold has expired by itself"))?;
        self.expect("posts held after the hold's time", 0, now);
        self.rows.push(Row::admitted("a hold whose holder crashed, expired"));
        self.expect_settled(BEN, 0).await
    }

    async fn retry(&mut self) -> Result<(), Failure> {
        self.say("He publishes one; every answer is lost, so he sends each call twice, same id.")?;
        let mut replays = 0;
        for _ in 0..2 {
            let request = self.connection.call(reserve(BEN, "retried"));
            let answer = self.connection.quota().reserve(request).await?.into_inner();
            replays += i64::from(answer.replayed);
        }
        for _ in 0..2 {
            let request = self.connection.call(commit("retried"));
            let answer = self.connection.quota().commit(request).await?.into_inner();
            replays += i64::from(answer.replayed);
        }
        let used = self.usage(BEN).await?.used;
        self.tell(&format!("{replays} of 4 answers were replays; used {used}"))?;
        self.expect("replayed answers", 2, replays);
        self.rows.push(Row::admitted("one post, every call sent twice"));
        self.expect_settled(BEN, 1).await
    }

    async fn release(&mut self) -> Result<(), Failure> {
        self.say("He holds another, but cannot create the post, so he releases it.")?;
        let request = self.connection.call(reserve(BEN, "given-up"));
        self.connection.quota().reserve(request).await?;
        let held = self.usage(BEN).await?.held;
        let request = v1::ReleaseRequest {
            namespace: BLOG.to_owned(),
            reservation_id: "given-up".to_owned(),
            reason: "the post was not created".to_owned(),
            ..v1::ReleaseRequest::default()
        };
        self.connection.quota().release(self.connection.call(request)).await?;
        let now = self.usage(BEN).await?;
        let available = now.available.unwrap_or_default();
        self.tell(&format!("held {held}, then {}; available {available} of 3", now.held))?;
        self.expect("posts held before the release", 1, held);
        self.rows.push(Row::admitted("a hold given back"));
        self.expect_settled(BEN, 1).await
    }

    async fn put_on(&self, plan: &str) -> Result<(), Failure> {
        let subject = v1::Subject {
            kind: "user".to_owned(),
            id: ANNA.to_owned(),
            plan: plan.to_owned(),
            ..v1::Subject::default()
        };
        let (namespace, subject) = (BLOG.to_owned(), Some(subject));
        let request = v1::PutSubjectRequest { namespace, subject, etag: String::new() };
        self.connection.policy().put_subject(self.connection.call(request)).await?;
        Ok(())
    }

    async fn usage(&self, user: &str) -> Result<v1::LimitStatus, Failure> {
        let request = v1::GetUsageRequest {
            namespace: BLOG.to_owned(),
            metric: "posts".to_owned(),
            dimensions: [("user".to_owned(), user.to_owned())].into(),
            ..v1::GetUsageRequest::default()
        };
        let answer = self.connection.quota().get_usage(self.connection.call(request)).await?;
        Ok(answer.into_inner().limits.into_iter().next().unwrap_or_default())
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        self.out.line(text)
    }

    fn tell(&self, text: &str) -> Result<(), Failure> {
        self.out.line(&format!("  -> {text}"))
    }

    fn say_outcome(&self, outcome: &Outcome) -> Result<(), Failure> {
        let refused = outcome.refused();
        self.tell(&format!("{} admitted, {refused} refused", outcome.admitted))
    }

    fn row(&mut self, step: &'static str, outcome: Outcome) {
        let (admitted, refused, why) = (outcome.admitted, outcome.refused(), outcome.why());
        self.rows.push(Row { step, admitted, refused, why });
        self.differs.extend(
            outcome.failed.into_iter().map(|call| format!("{step}: a call failed: {call}")),
        );
    }

    fn expect(&mut self, what: &str, expected: i64, actual: i64) {
        if actual != expected {
            self.differs.push(format!("{what}: {actual}, must be {expected}"));
        }
    }

    /// So much is used, and nothing is held any more.
    async fn expect_settled(&mut self, user: &str, posts: i64) -> Result<(), Failure> {
        let now = self.usage(user).await?;
        self.expect(&format!("posts used by user {user}"), posts, now.used);
        self.expect(&format!("posts held by user {user}"), 0, now.held);
        Ok(())
    }
}

impl Row {
    fn admitted(step: &'static str) -> Self {
        Self { step, admitted: 1, refused: 0, why: "-".to_owned() }
    }
}
