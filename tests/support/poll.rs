//! Waiting for a condition: the tests' only way to wait.

use std::time::{Duration, Instant};

/// The pause between two looks. It decides how soon a condition is noticed,
/// never whether.
const INTERVAL: Duration = Duration::from_millis(10);

/// Asks `probe` again and again until it answers with something, and gives
/// that.
///
/// # Panics
///
/// When `deadline` has passed, naming `what` was awaited. A probe that hangs
/// is given up at the deadline too.
pub async fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    let polling = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    match tokio::time::timeout(deadline, polling).await {
        Ok(found) => found,
        Err(late) => panic!("waited {deadline:?} in vain for {what}: {late}"),
    }
}

/// [`eventually`] for code without a runtime.
///
/// # Panics
///
/// When `deadline` has passed, naming `what` was awaited.
pub fn eventually_blocking<T>(
    deadline: Duration,
    what: &str,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(INTERVAL);
    }
}
