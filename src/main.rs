//! `quotad`.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use quota_authority::cli;

/// Requests, records and statements are many small allocations; measured, this
/// allocator makes a fifth more calls a second than the system's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
