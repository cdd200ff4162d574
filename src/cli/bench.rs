//! `quotad bench`: reserve+commit pairs a second, over gRPC, and the same work
//! by one transaction per request beside it.

mod baseline;
mod grpc;
mod in_process;
mod load;
mod report;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs};

use super::connect::{self, Connection};
use super::output::{Failure, Output, talk};
use super::{exit, logging, parse};
use crate::api::policy_file;
use crate::domain::policy::PolicySpec;
use crate::engine;
use crate::proto::v1;
use crate::server::{PolicyFiles, Server, Settings, StoreAddress, StoreClock};
use baseline::Retry;
use load::{Tally, measure};
use report::Report;

const NAMESPACE: &str = "bench";
const METRIC: &str = "work";
/// A limit that is always found and charged, and never full, in the window of
/// the commonest plans.
const POLICY: &str = "\
namespace: bench
metrics: { work: { requires: [key] } }
limits:
  - { name: work-per-key, metric: work, per: [key], window: { calendar: { unit: month } }, max: 1000000000000000 }
";
const PATIENCE: Duration = Duration::from_secs(10);
/// How many connections the callers share, as those of one backend do.
const CONNECTIONS: usize = 8;

/// What was typed.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("target").required(true))]
pub(super) struct Args {
    /// Measure the server at this address.
    #[arg(long, group = "target", value_name = "ADDRESS", value_parser = connect::address)]
    server: Option<String>,
    /// Start a server in this process, on this store: memory, embedded:PATH or
    /// mongodb://…
    #[arg(long, group = "target")]
    store: Option<StoreAddress>,
    /// How many callers there are at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    callers: u16,
    /// How long each measurement takes, after a warm-up of a fifth of it.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// How many counters the callers share; 1 is the hottest.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Measure once more with so many percent of the reserves being replays of
    /// earlier ones.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    replays: Option<u8>,
    /// Measure one transaction per request on the same MongoDB too, in a
    /// database of its own that is dropped afterwards.
    #[arg(long, requires = "store")]
    baseline: bool,
    /// Measure the engine without gRPC too, in this process on the same store.
    #[arg(long, requires = "store")]
    in_process: bool,
    /// How long each call may take.
    #[arg(long, default_value = "10s", value_name = "LENGTH", value_parser = parse::patience)]
    timeout: Duration,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// How the report is printed.
    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Measures, and reports.
pub(super) async fn run(args: Args) -> Result<u8, Failure> {
    let out = args.output();
    logging::start("warn");
    let uri = match (&args.store, args.baseline) {
        (Some(StoreAddress::MongoDb(uri)), true) => Some(uri.clone()),
        (_, true) => {
            return Err(Failure::Usage("--baseline needs --store mongodb://…".to_owned()));
        }
        _ => None,
    };
    let mut own = match &args.store {
        Some(store) => Some(serve(store.clone()).await?),
        None => None,
    };
    let address = match (&own, &args.server) {
        (Some(server), _) => format!("http://{}", server.address),
        (None, Some(address)) => address.clone(),
        (None, None) => return Err(Failure::Usage("give --server or --store".to_owned())),
    };
    let mut report = Report::new(&args);
    let measured = measure_quotad(&args, &address, &mut report).await;
    if let Some(server) = &mut own {
        server.stop();
        server.ended().await.map_err(Failure::Other)?;
    }
    measured?;
    if let (Some(store), true) = (&args.store, args.in_process) {
        talk("measuring the engine in process …");
        let tally = in_process::measure(store, policy()?, &args).await.map_err(Failure::Other)?;
        report.in_process(&tally);
    }
    if let Some(uri) = uri {
        for retry in [Retry::Driver, Retry::AtOnce] {
            talk(&format!("measuring {} …", report::name_of(retry)));
            let tally = baseline::measure(&uri, &args, retry).await.map_err(Failure::Other)?;
            report.baseline(retry, &tally);
        }
    }
    report.print(out)?;
    Ok(if report.is_sound() { exit::OK } else { exit::FAILED })
}

async fn serve(store: StoreAddress) -> Result<Server, Failure> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let settings = Settings {
        listen,
        store,
        clock: StoreClock::Own,
        policies: PolicyFiles::default(),
        engine: engine::Settings::default(),
    };
    Server::start(settings).await.map_err(Failure::Other)
}

async fn measure_quotad(args: &Args, address: &str, report: &mut Report) -> Result<(), Failure> {
    let first = Connection::open(address, args.timeout.min(PATIENCE)).await?;
    apply_policy(&first).await?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS.min(args.callers.into()) {
        connections.push(Connection::open(address, args.timeout).await?);
    }
    let callers = grpc::callers(args, &connections);
    talk(&format!("measuring reserve+commit at {address} …"));
    let (tally, callers): (Tally, _) = measure(callers, args.length()).await;
    report.quotad(&tally);
    if let Some(percent) = args.replays {
        talk(&format!("measuring with {percent} % replays …"));
        let (tally, _) = measure(grpc::replaying(callers, percent), args.length()).await;
        report.with_replays(percent, &tally);
    }
    Ok(())
}

fn policy() -> Result<PolicySpec, Failure> {
    policy_file::parse(POLICY).map_err(|faults| {
        Failure::Faults(faults.iter().map(|fault| format!("bench policy:{fault}")).collect())
    })
}

async fn apply_policy(connection: &Connection) -> Result<(), Failure> {
    let policy = Some(policy_file::to_message(&policy()?));
    let request = v1::ApplyPolicyRequest { policy, ..v1::ApplyPolicyRequest::default() };
    connection.policy().apply_policy(connection.call(request)).await?;
    Ok(())
}
