//! `quotad`.

use std::process::ExitCode;

use quota_authority::cli;

fn main() -> ExitCode {
    cli::run()
}
