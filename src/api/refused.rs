//! Refusals on their way into the trail, which tells later why a call was
//! refused.

use std::sync::Arc;

use tokio::time::Instant;
use tonic::Status;

use super::catalogue;
use crate::domain::decide::{Answer, Command, FindBy, Reserve};
use crate::domain::event::{RefusalRecord, failing};
use crate::domain::name::Dimensions;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::Request;
use crate::domain::time::{Span, Time};
use crate::engine::{Engine, Error};

/// What is told of a refusal besides its limits, where it has some.
const BESIDES_LIMITS: [&str; 3] = ["limits_exceeded", "retry_time", "waited"];

/// Decides a command; a refusal goes into the trail.
pub(super) async fn submit(
    engine: &Engine,
    command: Command,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    let asked = Asked::by(&command);
    let answer = engine.submit(command, deadline).await;
    noted(engine, asked, answer)
}

/// The same for a Reserve, which may wait for room.
pub(super) async fn reserve(
    engine: &Arc<Engine>,
    command: Reserve,
    wait: Span,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    let asked = Asked::by(&Command::Reserve(command.clone()));
    let answer = engine.reserve(command, wait, deadline).await;
    noted(engine, asked, answer)
}

fn noted(engine: &Engine, asked: Asked, answer: Result<Answer, Error>) -> Result<Answer, Status> {
    if let Err(Error::Refused(refusal)) = &answer {
        engine.note_refusal(|| asked.refused(refusal, engine.now()));
    }
    answer.map_err(catalogue::failed)
}

/// What was asked, until it is known whether it is refused.
struct Asked {
    namespace: String,
    /// Empty where it was asked for by resource.
    reservation_id: String,
    call: &'static str,
    request: Option<Arc<Request>>,
    principal: String,
}

impl Asked {
    /// What a command asks.
    fn by(command: &Command) -> Self {
        let (call, key, principal) = match command {
            Command::Reserve(reserve) => ("reserve", Some(&reserve.key), &*reserve.principal),
            Command::Commit(commit) => ("commit", Some(&commit.key), &*commit.principal),
            Command::Release(release) => ("release", Some(&release.key), &*release.principal),
            Command::Extend(extend) => ("extend", Some(&extend.key), &*extend.principal),
            Command::Refund(refund) => {
                let key = match &refund.find_by {
                    FindBy::Id(key) => Some(key),
                    FindBy::Resource(_) => None,
                };
                ("refund", key, &*refund.principal)
            }
            Command::Adjust(adjust) => ("adjust", Some(&adjust.key), &*adjust.principal),
            Command::Undo(undo) => ("undo", Some(&undo.key), ""),
        };
        let request = match command {
            Command::Reserve(reserve) => Some(Arc::clone(&reserve.request)),
            _ => None,
        };
        Self {
            namespace: command.namespace().into_owned(),
            reservation_id: key.map(|key| key.id().into_owned()).unwrap_or_default(),
            call,
            request,
            principal: principal.to_owned(),
        }
    }

    /// The record of its refusal at `now`. There is none of a call that was not
    /// a good one, or that went to a namespace that does not exist.
    fn refused(self, refusal: &Refusal, now: Time) -> Option<RefusalRecord> {
        let time = match refusal {
            Refusal::InvalidFields(_) | Refusal::NamespaceNotFound { .. } => return None,
            Refusal::QuotaExceeded { now, .. } | Refusal::WaitTimedOut { now, .. } => *now,
            _ => now,
        };
        let limits = failing(refusal).to_vec();
        let (reason, message, metadata) = catalogue::told(refusal.clone());
        let mut details: Dimensions = metadata.into_iter().collect();
        if !limits.is_empty() {
            details.retain(|name, _| BESIDES_LIMITS.contains(&name.as_str()));
        }
        Some(RefusalRecord {
            namespace: self.namespace,
            time,
            principal: self.principal,
            reservation_id: self.reservation_id,
            call: self.call.to_owned(),
            reason,
            items: self.request.map_or_else(Vec::new, |request| request.items.clone()),
            limits,
            message,
            details,
        })
    }
}
