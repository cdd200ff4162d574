//! What was measured, for people and for programs.

use comfy_table::Cell;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::Args;
use super::baseline::Retry;
use super::load::Tally;
use crate::cli::output::{Failure, Output, Stream, table};

/// A whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    callers: u16,
    keys: u32,
    seconds: u16,
    quotad: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_process: Option<Measured>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replays: Option<WithReplays>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    baselines: Vec<Baseline>,
}

/// One way to do without quotad.
#[derive(Debug, Serialize)]
struct Baseline {
    name: &'static str,
    /// Pairs a second of quotad over those of this one; absent where this one
    /// finished none.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// The same of the engine in process.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_in_process: Option<f64>,
    #[serde(flatten)]
    measured: Measured,
}

/// What a baseline is called.
pub(super) fn name_of(retry: Retry) -> &'static str {
    match retry {
        Retry::Driver => "one transaction per request, driver's retry",
        Retry::AtOnce => "one transaction per request, retried at once",
    }
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Measured {
    pairs: u64,
    pairs_per_second: f64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    reserve_ms: Latency,
    commit_ms: Latency,
}

/// The measurement with replays.
#[derive(Debug, Serialize)]
struct WithReplays {
    percent: u8,
    replays: u64,
    replay_ms: Latency,
    /// Pairs a second of this measurement over those of the one without.
    kept: f64,
    #[serde(flatten)]
    measured: Measured,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

impl Report {
    pub fn new(args: &Args) -> Self {
        let &Args { callers, keys, seconds, .. } = args;
        Self {
            callers,
            keys,
            seconds,
            quotad: None,
            in_process: None,
            replays: None,
            baselines: Vec::new(),
        }
    }

    pub fn quotad(&mut self, tally: &Tally) {
        self.quotad = Some(Measured::of(tally));
    }

    pub fn in_process(&mut self, tally: &Tally) {
        self.in_process = Some(Measured::of(tally));
    }

    pub fn with_replays(&mut self, percent: u8, tally: &Tally) {
        let measured = Measured::of(tally);
        let kept = over(measured.pairs_per_second, self.quotad.as_ref()).unwrap_or_default();
        let replay_ms = Latency::of(&tally.replay);
        self.replays =
            Some(WithReplays { percent, replays: tally.replays, replay_ms, kept, measured });
    }

    pub fn baseline(&mut self, retry: Retry, tally: &Tally) {
        let measured = Measured::of(tally);
        let ratio = |of: &Option<Measured>| over(of.as_ref()?.pairs_per_second, Some(&measured));
        let (ratio, ratio_in_process) = (ratio(&self.quotad), ratio(&self.in_process));
        self.baselines.push(Baseline { name: name_of(retry), ratio, ratio_in_process, measured });
    }

    /// Whether something was measured, and nothing failed. What fails on the
    /// baseline's side is a part of what it is measured for.
    pub fn is_sound(&self) -> bool {
        let served = self.quotad.iter().chain(&self.in_process);
        let mut measured = served.chain(self.replays.iter().map(|r| &r.measured));
        measured.all(|measured| measured.pairs > 0 && measured.errors == 0)
    }

    /// # Errors
    ///
    /// stdout does not take it.
    pub fn print(&self, out: Output) -> Result<(), Failure> {
        out.value(&serde_json::to_value(self).map_err(|e| Failure::Other(e.into()))?)?;
        out.line(&format!(
            "{} callers, {} keys, {} s each; latencies in ms (p50 / p95 / p99)",
            self.callers, self.keys, self.seconds
        ))?;
        let header = ["LOAD", "PAIRS/S", "RESERVE", "COMMIT", "ERRORS"];
        let mut table = table(Stream::Stdout, header, 1);
        let mut row = |name: &str, measured: &Measured| {
            table.add_row([
                Cell::new(name),
                Cell::new(format!("{:.0}", measured.pairs_per_second)),
                Cell::new(measured.reserve_ms.brief()),
                Cell::new(measured.commit_ms.brief()),
                Cell::new(measured.errors),
            ]);
        };
        if let Some(quotad) = &self.quotad {
            row("quotad", quotad);
        }
        if let Some(in_process) = &self.in_process {
            row("quotad, engine in process", in_process);
        }
        if let Some(replays) = &self.replays {
            row(&format!("quotad with {} % replays", replays.percent), &replays.measured);
        }
        for baseline in &self.baselines {
            row(baseline.name, &baseline.measured);
        }
        out.table(&table)?;
        self.print_rest(out)
    }

    fn print_rest(&self, out: Output) -> Result<(), Failure> {
        if let Some(WithReplays { kept, replays, replay_ms, .. }) = &self.replays {
            let (kept, brief) = (kept * 100.0, replay_ms.brief());
            out.line(&format!(
                "with {replays} replays ({brief}), {kept:.0} % of the pairs were kept"
            ))?;
        }
        for Baseline { name, ratio, ratio_in_process, .. } in &self.baselines {
            let in_process = ratio_in_process
                .map(|ratio| format!("; its engine in process {ratio:.1} times"))
                .unwrap_or_default();
            out.line(&match ratio {
                Some(ratio) => {
                    format!("quotad makes {ratio:.1} times the pairs of {name}{in_process}")
                }
                None => format!("{name}: not a single pair was finished"),
            })?;
        }
        let all = self
            .quotad
            .iter()
            .chain(&self.in_process)
            .chain(self.baselines.iter().map(|b| &b.measured));
        for measured in all.chain(self.replays.iter().map(|replays| &replays.measured)) {
            if let Some(error) = &measured.first_error {
                out.line(&format!("{} rounds failed, such as: {error}", measured.errors))?;
            }
        }
        Ok(())
    }
}

fn over(pairs_per_second: f64, other: Option<&Measured>) -> Option<f64> {
    let other = other.filter(|other| other.pairs > 0)?;
    Some(pairs_per_second / other.pairs_per_second)
}

impl Measured {
    fn of(tally: &Tally) -> Self {
        Self {
            pairs: tally.pairs,
            pairs_per_second: tally.pairs_per_second(),
            errors: tally.errors,
            first_error: tally.example.clone(),
            reserve_ms: Latency::of(&tally.reserve),
            commit_ms: Latency::of(&tally.commit),
        }
    }
}

impl Latency {
    fn of(micros: &Histogram<u64>) -> Self {
        let at = |quantile| {
            let micros = u32::try_from(micros.value_at_quantile(quantile)).unwrap_or(u32::MAX);
            f64::from(micros) / 1000.0
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }

    fn brief(&self) -> String {
        format!("{:.1} / {:.1} / {:.1}", self.p50, self.p95, self.p99)
    }
}
