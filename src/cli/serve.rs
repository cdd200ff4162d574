//! `quotad serve`.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use super::output::talk;
use super::{exit, logging, parse};
use crate::engine;
use crate::server::{PolicyFiles, Server, Settings, StoreAddress, StoreClock};

/// What was typed.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Where records live: memory, embedded:PATH or mongodb://…
    ///
    /// A MongoDB must be a replica set (one node will do) or a sharded
    /// cluster. The database is the one in the URI, or quotad.
    #[arg(
        long,
        env = "QUOTAD_STORE",
        default_value = "embedded:./quotad-data",
        hide_env_values = true
    )]
    store: StoreAddress,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, env = "QUOTAD_LISTEN", default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
    /// A policy file to put in force before serving, and again whenever it
    /// changes. May be given several times, once for each namespace.
    ///
    /// It never replaces a policy that was applied by a call, unless that is
    /// forced. QUOTAD_POLICY names files too, with colons between, for where
    /// this is not given.
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,
    /// Let policy files replace policies that were applied by a call.
    #[arg(long, env = "QUOTAD_POLICY_FORCE")]
    policy_force: bool,
    /// Go by a clock that stands still until tests move it, through
    /// quota.testing.v1.TestClockService; never for production.
    ///
    /// It begins at INSTANT (RFC 3339), or at the present; where the store has
    /// a test clock already, that goes on from where it stands, if this is not
    /// earlier. A store that was used under the real clock is refused. The
    /// variable may also say now, for the flag without an instant.
    #[arg(
        long,
        env = "QUOTAD_TEST_CLOCK",
        value_name = "INSTANT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "now",
        value_parser = parse::test_clock
    )]
    test_clock: Option<StoreClock>,
    /// What to log: error, warn, info, debug, trace, or target=level pairs.
    #[arg(long, env = "QUOTAD_LOG", default_value = "info")]
    log: String,
}

/// Serves until told to stop.
pub(super) async fn run(args: Args) -> ExitCode {
    logging::start(&args.log);
    let policies = match PolicyFiles::read(policy_paths(args.policy), args.policy_force) {
        Ok(policies) => policies,
        Err(faults) => {
            for fault in faults {
                talk(&fault);
            }
            return exit::USAGE.into();
        }
    };
    let settings = Settings {
        listen: args.listen,
        store: args.store,
        clock: args.test_clock.unwrap_or_default(),
        policies,
        engine: engine::Settings::default(),
    };
    let mut server = match Server::start(settings).await {
        Ok(server) => server,
        Err(error) => {
            error!("{error:#}");
            return exit::UNREACHABLE.into();
        }
    };
    let ended = tokio::select! {
        ended = server.ended() => ended,
        name = stop_signal() => {
            info!(signal = name, "stopping");
            server.stop();
            server.ended().await
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            exit::FAILED.into()
        }
    }
}

/// The files that were typed, else those that the environment lists.
fn policy_paths(typed: Vec<PathBuf>) -> Vec<PathBuf> {
    match env::var_os("QUOTAD_POLICY") {
        Some(listed) if typed.is_empty() => {
            env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect()
        }
        _ => typed,
    }
}

/// Waits for SIGTERM or SIGINT.
pub(super) async fn stop_signal() -> &'static str {
    let (Ok(mut term), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
