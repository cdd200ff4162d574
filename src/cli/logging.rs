//! Logs: to stderr, pretty for a person, JSON for a machine.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging. `filter` is a level or a list of `target=level`.
pub(super) fn start(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|error| {
        eprintln!("quotad: the log filter {filter:?} is not valid ({error}); using info");
        EnvFilter::new("info")
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, as tests make, keeps the first.
    let _ = if std::io::stderr().is_terminal() {
        builder.with_target(false).compact().try_init()
    } else {
        builder.json().try_init()
    };
}
