//! Where a limit's counters stand that are in the store, nobody having asked
//! for any of them by name.

use std::sync::Arc;

use super::lowered::bound;
use super::matching::{Limit, Policy};
use super::spec::Bound;
use crate::domain::counter::{Counter, CounterId};
use crate::domain::name::SubjectKey;
use crate::domain::status::LimitStatus;
use crate::domain::subject::Subject;
use crate::domain::time::Time;

/// The subjects that tell what a counter of `limit` may hold, and when its
/// window is open.
pub fn ruling<'c>(
    policy: &'c Policy,
    limit: &'c Limit,
    counter: &'c CounterId,
) -> impl Iterator<Item = SubjectKey> + 'c {
    let billing = policy.billing_subject(limit, &counter.key);
    policy.subject(limit, &counter.key).into_iter().chain(billing)
}

/// Where `counter` stands at `now` under the rules of now, if its window
/// contains `at`.
///
/// Where the limit goes by a subject that its counters do not tell, the largest
/// max of any plan stands for it. A subject on a plan that the limit has no max
/// for may take nothing, and shows a max of 0.
pub fn listed<'s>(
    policy: &Policy,
    limit: &Limit,
    counter: &Counter,
    subject: impl Fn(&SubjectKey) -> Option<&'s Subject>,
    at: Time,
    now: Time,
) -> Option<LimitStatus> {
    let key = &counter.id.key;
    let now = now.max(counter.as_of);
    let owner = policy.billing_subject(limit, key).and_then(|key| subject(&key));
    let window = limit.window.containing(at, owner.and_then(|owner| owner.billing.as_ref()))?;
    if window.id() != counter.id.window.id() {
        return None;
    }
    let bound = bound(policy, limit, key, &subject, now).unwrap_or(Bound::AtMost(0));
    let id = Arc::new(CounterId { window, ..CounterId::clone(&counter.id) });
    Some(LimitStatus::at_rest(counter, bound, limit.enforced(), now).named(&id, now))
}
