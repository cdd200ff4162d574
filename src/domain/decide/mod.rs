//! Decisions: (loaded state, rules, command) → outcome, with the changes left
//! in the state.
//!
//! Every decision checks everything first, then crosses one line, then
//! changes; a refusal has changed nothing. Whoever reads one of the files
//! beside this one finds the line marked.
//!
//! Whoever changes a reservation that has charges writes all the counters it
//! is charged to in the same step. The engine builds on that: guarded counters
//! stand for the reservations charged to them.

mod adjust;
mod assess;
mod claim;
mod extend;
mod outlook;
mod read;
mod refund;
mod reserve;
mod settle;
mod undo;

pub use read::{FindBy, Usage, check, reservation, usage};

use std::borrow::Cow;
use std::sync::Arc;

use super::counter::CounterId;
use super::name::{Dimensions, ReservationKey};
use super::policy::Policy;
use super::refusal::Refusal;
use super::reservation::{Request, Reservation};
use super::state::{Missing, State};
use super::status::LimitStatus;
use super::time::{Span, Time};

/// Something that a caller wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Hold units, or use them at once.
    Reserve(Reserve),
    /// Turn a hold into use.
    Commit(Commit),
    /// Give a hold back.
    Release(Release),
    /// Put off a hold's end.
    Extend(Extend),
    /// Give back what was used.
    Refund(Refund),
    /// Correct a counter by hand.
    Adjust(Adjust),
    /// Take a grant back that nobody has heard of.
    Undo(Undo),
}

impl Command {
    /// The namespace that it is about.
    pub fn namespace(&self) -> Cow<'_, str> {
        match self {
            Self::Reserve(reserve) => reserve.key.namespace(),
            Self::Commit(commit) => commit.key.namespace(),
            Self::Release(release) => release.key.namespace(),
            Self::Extend(extend) => extend.key.namespace(),
            Self::Refund(Refund { find_by: FindBy::Id(key), .. }) => key.namespace(),
            Self::Refund(Refund { find_by: FindBy::Resource(key), .. }) => key.namespace(),
            Self::Adjust(adjust) => adjust.key.namespace(),
            Self::Undo(undo) => undo.key.namespace(),
        }
    }
}

/// Hold units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Namespace and id of the reservation to make.
    pub key: ReservationKey,
    /// What is asked for.
    pub request: Arc<Request>,
    /// Who asks.
    pub principal: String,
}

/// Turn a hold into use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Which reservation.
    pub key: ReservationKey,
    /// Units, item by item, none negative and not all 0; empty means all.
    pub amounts: Vec<i64>,
    /// Resources to bind besides those named when reserving.
    pub resources: Vec<String>,
    /// What to do where the hold has run out.
    pub if_expired: IfExpired,
    /// Who asks.
    pub principal: String,
}

/// What a Commit does with a hold that has run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfExpired {
    /// Refuse.
    #[default]
    Reject,
    /// Take the units again, if they are there.
    Reclaim,
    /// Record them, there or not.
    Overdraw,
}

/// Give a hold back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which reservation.
    pub key: ReservationKey,
    /// Why, for the history.
    pub reason: String,
    /// Leave a released record where there is none, so that a Reserve which
    /// arrives later is refused.
    pub allow_missing: bool,
    /// Who asks.
    pub principal: String,
}

/// Put off a hold's end: its `expire_time` becomes the later of itself and now
/// plus the ttl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Which reservation.
    pub key: ReservationKey,
    /// How long from now.
    pub ttl: Span,
    /// Who asks.
    pub principal: String,
}

/// Give back what was used, to the windows it was booked in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refund {
    /// Which reservation.
    pub find_by: FindBy,
    /// The caller's id for this refund, unique within the reservation.
    pub refund_id: String,
    /// Units, item by item, none negative and not all 0; empty means all that
    /// is left.
    pub amounts: Vec<i64>,
    /// Why, for the history.
    pub reason: String,
    /// Who asks.
    pub principal: String,
}

/// Correct a counter by hand. It makes a reservation of its own, so that a
/// counter remains the sum of what is charged to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjust {
    /// Namespace and id of the reservation to make.
    pub key: ReservationKey,
    /// The limit.
    pub limit: String,
    /// Which of its counters: the values of its `per` dimensions.
    pub counter: Dimensions,
    /// Units to add, or to take away where it is below 0; never 0.
    pub delta: i64,
    /// Resources to bind, for what is booked after the fact.
    pub resources: Vec<String>,
    /// Why, for the history.
    pub reason: String,
    /// Who asks.
    pub principal: String,
}

/// Take back a grant that its caller did not live to hear of: its id is free
/// again, as if it had never been. Where it was settled since, nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// Which reservation.
    pub key: ReservationKey,
    /// The fencing tokens that it was granted, charge by charge: another that
    /// was made under the same id since is left alone.
    pub tokens: Vec<i64>,
}

/// The circumstances of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The namespace's policy, if it has one.
    pub policy: Option<&'a Policy>,
    /// The store's clock. A decision's own now is never before the `as_of` of
    /// a counter that it touches.
    pub clock: Time,
    /// How long settled reservations are kept.
    pub retention: Span,
    /// Who waits for room already; `None` where nobody does.
    pub line: Option<&'a dyn Line>,
}

impl Rules<'_> {
    /// Whether somebody came earlier who waits for this counter: then its room
    /// is his, and a Reserve that needs it is refused or waits behind him.
    fn others_wait(&self, counter: &CounterId) -> bool {
        self.line.is_some_and(|line| line.stands(counter))
    }
}

/// Those who wait for room and came before the request that is decided.
pub trait Line: std::fmt::Debug + Sync {
    /// Whether one of them waits for this counter.
    fn stands(&self, counter: &CounterId) -> bool;
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The reservation, as it stands.
    pub reservation: Arc<Reservation>,
    /// The limits it was charged to, as they stand.
    pub limits: Vec<LimitStatus>,
    /// Nothing was changed: the call had taken effect before.
    pub replayed: bool,
    /// The instant of the decision.
    pub now: Time,
}

/// Why a decision has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Records are missing; load them and decide again.
    Missing,
    /// Refused.
    Refused(Refusal),
}

impl From<Missing> for Stop {
    fn from(_: Missing) -> Self {
        Self::Missing
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Decides one command over `state`, which then holds what it changes.
///
/// # Errors
///
/// [`Stop`]: nothing was changed.
pub fn decide(state: &mut State<'_>, rules: &Rules<'_>, command: &Command) -> Result<Answer, Stop> {
    match command {
        Command::Reserve(reserve) => reserve::reserve(state, rules, reserve),
        Command::Commit(commit) => settle::commit(state, rules, commit),
        Command::Release(release) => settle::release(state, rules, release),
        Command::Extend(extend) => extend::extend(state, rules, extend),
        Command::Refund(refund) => refund::refund(state, rules, refund),
        Command::Adjust(adjust) => adjust::adjust(state, rules, adjust),
        Command::Undo(undo) => undo::undo(state, rules, undo),
    }
}

/// The dimensions of an item: its own and those of the whole call.
///
/// # Errors
///
/// The name of a dimension that both give, with different values.
pub fn merge(call: &Dimensions, item: &Dimensions) -> Result<Dimensions, String> {
    let mut merged = call.clone();
    for (name, value) in item {
        if merged.insert(name.clone(), value.clone()).is_some_and(|other| other != *value) {
            return Err(name.clone());
        }
    }
    Ok(merged)
}
