//! The command line: `quotad serve`, and everything people and scripts ask of
//! a server. Data goes to stdout, talk to stderr.

mod bench;
mod calls;
mod connect;
mod demo;
mod events;
mod leases;
mod logging;
mod operate;
mod output;
mod parse;
mod policy;
mod reservations;
mod serve;
mod subject;
mod usage;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit codes, as documented in `--help`.
mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// Something else went wrong.
    pub const FAILED: u8 = 1;
    /// Wrong use: arguments, or a request with invalid fields.
    pub const USAGE: u8 = 2;
    /// Refused: no quota, or the reservation is not in the right state.
    pub const REFUSED: u8 = 3;
    /// The server or its store cannot be reached.
    pub const UNREACHABLE: u8 = 4;
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something else went wrong
  2  wrong use: arguments, a faulty policy file, a request with invalid fields
  3  refused: no quota left, not in the right state, or not there
  4  the server or its store cannot be reached, or did not answer in time";

/// A quota authority: reserve, commit, release.
#[derive(Debug, Parser)]
#[command(
    name = "quotad",
    version,
    about,
    max_term_width = 100,
    after_help = EXIT_CODES,
    subcommand_required = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the contract over gRPC.
    Serve(serve::Args),
    /// See quotas at work: a blog, a shop and documents, with many callers at once.
    Demo(demo::Args),
    /// Hold units under every limit that applies, or under none.
    #[command(after_help = EXIT_CODES)]
    Reserve(calls::Reserve),
    /// Turn a hold into use.
    #[command(after_help = EXIT_CODES)]
    Commit(calls::Commit),
    /// Give a hold back.
    #[command(after_help = EXIT_CODES)]
    Release(calls::Release),
    /// Put off a hold's end.
    #[command(after_help = EXIT_CODES)]
    Extend(leases::Extend),
    /// Give back what was committed, in part or whole.
    #[command(after_help = EXIT_CODES)]
    Refund(leases::Refund),
    /// Ask whether a reserve would be admitted now; holds nothing.
    #[command(after_help = EXIT_CODES)]
    Check(calls::Check),
    /// See where the limits stand.
    #[command(after_help = EXIT_CODES)]
    Usage(usage::Usage),
    /// See where the limits stand, now and at every change.
    #[command(after_help = EXIT_CODES)]
    Watch(watch::Watch),
    /// List reservations, newest first.
    #[command(after_help = EXIT_CODES)]
    Reservations(reservations::Reservations),
    /// Check, compare, apply and show policies.
    #[command(subcommand, after_help = EXIT_CODES)]
    Policy(policy::Command),
    /// Set, show, list and delete subjects: the owners of plans.
    #[command(subcommand, after_help = EXIT_CODES)]
    Subject(subject::Command),
    /// See what happened and what was refused, newest first.
    #[command(after_help = EXIT_CODES)]
    Events(events::Events),
    /// Add to a counter by hand, or take from it; also imports opening usage.
    #[command(after_help = EXIT_CODES)]
    Adjust(operate::Adjust),
    /// Recount every counter from its reservations; exits with 1 where one
    /// differs.
    #[command(after_help = EXIT_CODES)]
    Audit(operate::Audit),
    /// Recount, and mend what differs.
    #[command(after_help = EXIT_CODES)]
    Repair(operate::Repair),
    /// Compare the resources that exist with those that are committed; exits
    /// with 1 where they differ.
    #[command(after_help = EXIT_CODES)]
    Reconcile(operate::Reconcile),
    /// Measure reserve+commit pairs a second.
    ///
    /// Works in the namespace "bench" under a policy of its own, and leaves its
    /// reservations there.
    #[command(after_help = EXIT_CODES)]
    Bench(bench::Args),
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::talk(&format!("quotad: cannot start: {error}"));
            return exit::FAILED.into();
        }
    };
    runtime.block_on(dispatch(cli.command))
}

async fn dispatch(command: Command) -> ExitCode {
    let (out, done) = match command {
        Command::Serve(args) => return serve::run(args).await,
        Command::Demo(args) => return demo::run(args).await,
        Command::Reserve(args) => (args.connect.output(), calls::reserve(args).await),
        Command::Commit(args) => (args.connect.output(), calls::commit(args).await),
        Command::Release(args) => (args.connect.output(), calls::release(args).await),
        Command::Extend(args) => (args.connect.output(), leases::extend(args).await),
        Command::Refund(args) => (args.connect.output(), leases::refund(args).await),
        Command::Adjust(args) => (args.connect.output(), operate::adjust(args).await),
        Command::Audit(args) => (args.connect.output(), operate::audit(args).await),
        Command::Repair(args) => (args.connect.output(), operate::repair(args).await),
        Command::Reconcile(args) => (args.connect.output(), operate::reconcile(args).await),
        Command::Check(args) => (args.connect.output(), calls::check(args).await),
        Command::Usage(args) => (args.connect.output(), usage::run(args).await),
        Command::Watch(args) => (args.connect.output(), watch::watch(args).await),
        Command::Reservations(args) => (args.connect.output(), reservations::run(args).await),
        Command::Policy(command) => (command.output(), policy::run(command).await),
        Command::Subject(command) => (command.output(), subject::run(command).await),
        Command::Events(args) => (args.connect.output(), events::events(args).await),
        Command::Bench(args) => (args.output(), bench::run(args).await),
    };
    match done {
        Ok(code) => code.into(),
        Err(failure) => out.failed(&failure).into(),
    }
}
