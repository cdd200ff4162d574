//! Reads: the same derivations as decisions make, with nothing changed.

use std::sync::Arc;

use super::assess::{Purpose, assess, now_of};
use super::{Rules, Stop};
use crate::domain::name::{Dimensions, ReservationKey, ResourceKey};
use crate::domain::policy::Policy;
use crate::domain::refusal::Refusal;
use crate::domain::reservation::{ItemRequest, Reservation};
use crate::domain::state::State;
use crate::domain::status::LimitStatus;
use crate::domain::time::Time;

/// Where limits stand at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limits, in the order of the policy.
    pub limits: Vec<LimitStatus>,
    /// Whether one of them refuses what was asked.
    refused: bool,
    /// The instant.
    pub now: Time,
    /// The next instant at which something changes by itself: a hold runs out,
    /// units leave a window, a window or an override ends. `None` where nothing
    /// will.
    pub changes_at: Option<Time>,
}

impl Usage {
    /// Whether a request that asked this of the limits would be admitted.
    pub fn admits(&self) -> bool {
        !self.refused
    }
}

/// What a Reserve of `items` would meet now; admitted when no enforced limit
/// is exceeded.
///
/// # Errors
///
/// [`Stop`], as for the Reserve, but never for want of quota.
pub fn check(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    namespace: &str,
    items: &[ItemRequest],
) -> Result<Usage, Stop> {
    let policy = policy(rules, namespace)?;
    let assessed = assess(state, policy, items, rules.clock, Purpose::Take)?;
    let now = assessed.now;
    let mut refused = false;
    let mut limits = Vec::with_capacity(assessed.claims.len());
    for claim in &assessed.claims {
        let (status, refuses) = claim.verdict(state, rules, now)?;
        refused |= refuses;
        limits.push(status);
    }
    Ok(Usage { limits, refused, now, changes_at: None })
}

/// Where the limits stand that apply to a metric and dimensions: in the
/// windows open now, or in those that contain `at`. A closed window is read as
/// it stands today: its holds lapse by today's clock.
///
/// # Errors
///
/// [`Stop`]: no such namespace or metric, a required dimension is lacking, no
/// limit applies, the subject's plan is unknown.
pub fn usage(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    namespace: &str,
    metric: &str,
    dimensions: &Dimensions,
    at: Option<Time>,
) -> Result<Usage, Stop> {
    let policy = policy(rules, namespace)?;
    let item = ItemRequest { metric: metric.to_owned(), amount: 1, dimensions: dimensions.clone() };
    let purpose = at.map_or(Purpose::See, Purpose::SeeAt);
    let assessed = assess(state, policy, std::slice::from_ref(&item), rules.clock, purpose)
        .map_err(without_item_path)?;
    let now = assessed.now;
    let limits = assessed.claims.iter().map(|claim| claim.at_rest(state, now)).collect();
    let changes = assessed.claims.iter().flat_map(|claim| claim.changes_at(state, now));
    let changes_at = changes.min();
    Ok(Usage { limits, refused: false, now, changes_at })
}

/// A reservation, found by its id or by a resource bound to it, and the
/// instant at which it is looked at.
///
/// # Errors
///
/// [`Stop`]: there is none.
pub fn reservation(
    state: &mut State<'_>,
    rules: &Rules<'_>,
    find_by: &FindBy,
) -> Result<(Arc<Reservation>, Time), Stop> {
    let key = match find_by {
        FindBy::Id(key) => key.clone(),
        FindBy::Resource(resource) => {
            let id = resource.resource().into_owned();
            state.resource(resource)?.cloned().ok_or(Refusal::ReservationNotFound { id })?
        }
    };
    let Some(reservation) = state.reservation(&key)?.cloned() else {
        return Err(Refusal::ReservationNotFound { id: key.id().into_owned() }.into());
    };
    let now = now_of(state, &reservation, rules.clock)?;
    Ok((reservation, now))
}

/// How a reservation is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindBy {
    /// By its own key.
    Id(ReservationKey),
    /// By a resource that it is bound to.
    Resource(ResourceKey),
}

fn policy<'a>(rules: &Rules<'a>, namespace: &str) -> Result<&'a Policy, Refusal> {
    rules.policy.ok_or_else(|| Refusal::NamespaceNotFound { namespace: namespace.to_owned() })
}

/// `GetUsage` has no items: its fields carry the item's names directly.
fn without_item_path(stop: Stop) -> Stop {
    match stop {
        Stop::Refused(Refusal::InvalidFields(mut violations)) => {
            for violation in &mut violations {
                if let Some(rest) = violation.field.strip_prefix("items[0].") {
                    violation.field = rest.to_owned();
                }
            }
            Refusal::InvalidFields(violations).into()
        }
        other => other,
    }
}
