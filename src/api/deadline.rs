//! The caller's deadline, as told by the `grpc-timeout` header.

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use crate::engine::Error;

/// How long a call without a deadline may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// When to answer at the latest: a little before the caller stops listening,
/// so that he hears UNAVAILABLE with advice rather than his own deadline.
pub(super) fn answer_by(metadata: &MetadataMap) -> Option<Instant> {
    let timeout = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    let margin = (timeout / 10).min(Duration::from_millis(200));
    Some(Instant::now() + timeout.saturating_sub(margin))
}

/// The same where the caller has no deadline: not later than his patience.
pub(super) fn latest(deadline: Option<Instant>) -> Instant {
    deadline.unwrap_or_else(|| Instant::now() + PATIENCE)
}

/// A read, given up when it is too late for the caller.
pub(super) async fn read_by<T>(
    deadline: Option<Instant>,
    read: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    by(deadline, read, Error::Unavailable("the store did not answer in time".to_owned())).await
}

/// A change, given up when it is too late for the caller; it may still be made.
pub(super) async fn change_by<T>(
    deadline: Option<Instant>,
    change: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    by(deadline, change, Error::OutcomeUnknown).await
}

async fn by<T>(
    deadline: Option<Instant>,
    call: impl Future<Output = Result<T, Error>>,
    late: Error,
) -> Result<T, Error> {
    tokio::time::timeout_at(latest(deadline), call).await.unwrap_or(Err(late))
}

/// At most eight digits and a unit, by the gRPC protocol.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit_and_nothing_else() {
        assert_eq!(parse("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(parse("99999999H"), Some(Duration::from_hours(99_999_999)));
        for bad in ["", "S", "1", "1x", "123456789S", "-1S", "1é"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
