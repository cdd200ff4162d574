//! The command line: `quotad serve`, and everything people and scripts ask of
//! a server. Data goes to stdout, talk to stderr.

mod logging;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit codes, as documented in `--help`.
mod exit {
    /// Something else went wrong.
    pub const FAILED: u8 = 1;
    /// Wrong use: arguments, or a request with invalid fields.
    pub const USAGE: u8 = 2;
    /// Refused: no quota, or the reservation is not in the right state.
    pub const REFUSED: u8 = 3;
    /// The server or its store cannot be reached.
    pub const UNREACHABLE: u8 = 4;
}

/// A quota authority: reserve, commit, release.
#[derive(Debug, Parser)]
#[command(name = "quotad", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the contract over gRPC.
    Serve(serve::Args),
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("quotad: cannot start: {error}");
            return exit::FAILED.into();
        }
    };
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
        }
    })
}
