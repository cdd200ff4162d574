//! Refusals on their way into the trail, which tells later why a call was
//! refused.

use std::sync::Arc;

use super::catalogue;
use crate::domain::decide::Command;
use crate::domain::event::{RefusalRecord, failing};
use crate::domain::name::{Dimensions, ReservationKey};
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Request;
use crate::domain::time::Time;

/// What is told of a refusal besides its limits, where it has some.
const BESIDES_LIMITS: [&str; 2] = ["limits_exceeded", "retry_time"];

/// What was asked, until it is known whether it is refused.
pub(super) struct Asked {
    key: ReservationKey,
    call: &'static str,
    request: Option<Arc<Request>>,
    principal: String,
}

impl Asked {
    /// What a command asks.
    pub fn by(command: &Command) -> Self {
        let key = command.key().clone();
        let (call, request, principal) = match command {
            Command::Reserve(reserve) => {
                ("reserve", Some(Arc::clone(&reserve.request)), &reserve.principal)
            }
            Command::Commit(commit) => ("commit", None, &commit.principal),
            Command::Release(release) => ("release", None, &release.principal),
        };
        Self { key, call, request, principal: principal.clone() }
    }

    /// The record of its refusal at `now`. There is none of a call that was not
    /// a good one, or that went to a namespace that does not exist.
    pub fn refused(self, refusal: &Refusal, now: Time) -> Option<RefusalRecord> {
        let time = match refusal {
            Refusal::InvalidFields(_) | Refusal::NamespaceNotFound { .. } => return None,
            Refusal::QuotaExceeded { now, .. } => *now,
            _ => now,
        };
        let limits = failing(refusal).to_vec();
        let (reason, message, metadata) = catalogue::told(refusal.clone());
        let mut details: Dimensions = metadata.into_iter().collect();
        if !limits.is_empty() {
            details.retain(|name, _| BESIDES_LIMITS.contains(&name.as_str()));
        }
        Some(RefusalRecord {
            namespace: self.key.namespace().into_owned(),
            time,
            principal: self.principal,
            reservation_id: self.key.id().into_owned(),
            call: self.call.to_owned(),
            reason,
            items: self.request.map_or_else(Vec::new, |request| request.items.clone()),
            limits,
            message,
            details,
        })
    }
}
