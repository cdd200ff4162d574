//! Points at which a test can stop this process, in debug builds alone.
//!
//! `QUOTAD_FAIL_POINT=before_commit@7:abort` ends the process the seventh time
//! that it gets there; `:pause` stops it as SIGSTOP does.

/// All statements of a transaction are written, and it is not committed.
pub(super) const BEFORE_COMMIT: &str = "before_commit";

/// This point is reached.
#[cfg(debug_assertions)]
pub(super) fn reach(point: &str) {
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: LazyLock<Option<(String, u64, String)>> = LazyLock::new(|| {
        let armed = std::env::var("QUOTAD_FAIL_POINT").ok()?;
        let (point, rest) = armed.split_once('@')?;
        let (count, action) = rest.split_once(':')?;
        Some((point.to_owned(), count.parse().ok()?, action.to_owned()))
    });
    static REACHED: AtomicU64 = AtomicU64::new(0);

    let Some((armed, count, action)) = ARMED.as_ref() else { return };
    if armed != point || REACHED.fetch_add(1, Ordering::Relaxed) + 1 != *count {
        return;
    }
    if action == "pause" {
        let own = std::process::id().to_string();
        let _ = Command::new("kill").args(["-STOP", &own]).status();
    } else {
        std::process::abort();
    }
}

/// This point is reached; nothing happens in a release build.
#[cfg(not(debug_assertions))]
pub(super) fn reach(_point: &str) {}
