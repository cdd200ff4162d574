//! Callers at work, and what they took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The warm-up is the measured time over this.
const WARM_UP: u32 = 5;
/// After a failed call, so that a dead server is not called in a tight loop.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody who does the same over and over, one after the other.
pub(super) trait Caller: Send + 'static {
    /// One more round. What it begins, it ends in good order, but it need not
    /// try again once `end` has passed.
    fn step(&mut self, end: Instant) -> impl Future<Output = Result<Step, String>> + Send;
}

/// What one round was.
pub(super) enum Step {
    /// A reserve and its commit, and what each took.
    Pair {
        /// The reserve.
        reserve: Duration,
        /// The commit.
        commit: Duration,
    },
    /// A reserve that was sent again.
    Replay(Duration),
}

/// What all callers did within the measured time.
pub(super) struct Tally {
    /// The measured time.
    pub length: Duration,
    /// Pairs that were finished.
    pub pairs: u64,
    /// Replays that were answered.
    pub replays: u64,
    /// Rounds that failed.
    pub errors: u64,
    /// One of the failures.
    pub example: Option<String>,
    /// Microseconds of each reserve.
    pub reserve: Histogram<u64>,
    /// Microseconds of each commit.
    pub commit: Histogram<u64>,
    /// Microseconds of each replay.
    pub replay: Histogram<u64>,
}

impl Tally {
    fn new(length: Duration) -> Self {
        Self {
            length,
            pairs: 0,
            replays: 0,
            errors: 0,
            example: None,
            reserve: histogram(),
            commit: histogram(),
            replay: histogram(),
        }
    }

    /// Pairs a second.
    pub fn pairs_per_second(&self) -> f64 {
        f64::from(u32::try_from(self.pairs).unwrap_or(u32::MAX)) / self.length.as_secs_f64()
    }

    fn add(&mut self, step: Result<Step, String>) {
        match step {
            Ok(Step::Pair { reserve, commit }) => {
                self.pairs += 1;
                self.reserve.saturating_record(micros(reserve));
                self.commit.saturating_record(micros(commit));
            }
            Ok(Step::Replay(took)) => {
                self.replays += 1;
                self.replay.saturating_record(micros(took));
            }
            Err(message) => {
                self.errors += 1;
                self.example.get_or_insert(message);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.replays += other.replays;
        self.errors += other.errors;
        self.example = self.example.take().or(other.example);
        self.reserve += other.reserve;
        self.commit += other.commit;
        self.replay += other.replay;
    }
}

/// Up to an hour, three significant digits.
#[allow(clippy::unwrap_used, reason = "these bounds are sound, and nothing else can fail")]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(3_600_000_000, 3).unwrap()
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// Lets all callers work for a warm-up and for `length`, and counts what they
/// finish in the latter. Gives the callers back.
pub(super) async fn measure<C: Caller>(callers: Vec<C>, length: Duration) -> (Tally, Vec<C>) {
    let start = Instant::now() + length / WARM_UP;
    let end = start + length;
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        tasks.spawn(async move {
            let mut tally = Tally::new(length);
            // A round that is under way at the end is not counted, but awaited:
            // cut off, it would leave a hold or an open transaction behind.
            while Instant::now() < end {
                let step = caller.step(end).await;
                let failed = step.is_err();
                if (start..end).contains(&Instant::now()) {
                    tally.add(step);
                }
                if failed {
                    sleep(PAUSE).await;
                }
            }
            (tally, caller)
        });
    }
    let (mut total, mut back) = (Tally::new(length), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((tally, caller)) => {
                total.merge(tally);
                back.push(caller);
            }
            Err(panic) => total.add(Err(panic.to_string())),
        }
    }
    (total, back)
}
