//! Where limits stand, and who holds them: both as of one moment.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::plan::Working;
use super::{Engine, Error};
use crate::domain::counter::CounterId;
use crate::domain::decide::{self, Rules, Stop, Usage};
use crate::domain::name::Dimensions;
use crate::domain::reservation::Reservation;
use crate::domain::state::State;
use crate::domain::time::Time;
use crate::store::{Charged, StoreError};

/// The most holds that are told of.
const HOLDS: usize = 1000;
/// How often the counters that are asked for may turn out to be others than
/// those that were read, since a window has ended or a subject has changed.
const ROUNDS: u32 = 32;

/// Live holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Those that expire soonest, in that order, each once.
    pub reservations: Vec<Arc<Reservation>>,
    /// Whether there are more.
    pub incomplete: bool,
}

impl Engine {
    /// Where the limits stand that apply to a metric and dimensions, and the
    /// live holds on them, read from one moment of the store and seen at one
    /// instant: what is held of a limit is what the holds sum up to.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn usage_and_holds(
        &self,
        namespace: &str,
        metric: &str,
        dimensions: &Dimensions,
        at: Option<Time>,
    ) -> Result<(Usage, Holds), Error> {
        self.store.tick().await?;
        let policy = self.catalog.policy(namespace).await?;
        let policy = policy.as_deref();
        let mut working = Working::new(&self.catalog, None, true);
        let mut clock = self.now();
        let mut read: Option<(HashSet<Arc<CounterId>>, Holds)> = None;
        for _ in 0..ROUNDS {
            let (retention, line) =
                (self.settings.retention, Some(&*self.lines as &dyn decide::Line));
            let rules = Rules { policy, clock, retention, line };
            let mut state = State::over(&working, false);
            match decide::usage(&mut state, &rules, namespace, metric, dimensions, at) {
                Err(Stop::Refused(refusal)) => return Err(refusal.into()),
                Err(Stop::Missing) => {
                    let missing = state.take_missing();
                    working.read(missing, &self.store).await?;
                }
                Ok(mut usage) => {
                    let counters = usage.limits.iter().map(|limit| Arc::clone(&limit.counter));
                    let counters: HashSet<_> = counters.collect();
                    if let Some((_, holds)) = read.take_if(|(of, _)| *of == counters) {
                        self.lines.count(&mut usage.limits);
                        return Ok((usage, holds));
                    }
                    // What is read from here on is seen at this instant, or at
                    // a later one that the counters have seen already.
                    clock = self.now();
                    let holds = self.holds(&counters, clock, &mut working).await?;
                    read = Some((counters, holds));
                }
            }
        }
        let message = "the counters that it asks for kept changing".to_owned();
        Err(StoreError::Damaged { key: namespace.to_owned(), message }.into())
    }

    /// Reads counters and the live holds on them.
    async fn holds(
        &self,
        counters: &HashSet<Arc<CounterId>>,
        clock: Time,
        working: &mut Working<'_>,
    ) -> Result<Holds, StoreError> {
        let wanted: Vec<_> = counters.iter().cloned().collect();
        let (mut found, mut holds, mut now) = (None, Holds::default(), clock);
        let mut visit = |shown| {
            match shown {
                Charged::Counters(counters) => {
                    let as_of = counters.values().flatten().map(|row| row.value.as_of);
                    now = as_of.fold(clock, Time::max);
                    found = Some(counters);
                    holds = Holds::default();
                }
                Charged::Reservation(hold) if hold.expire_time <= now => {}
                Charged::Reservation(_) if holds.reservations.len() == HOLDS => {
                    holds.incomplete = true;
                    return ControlFlow::Break(());
                }
                Charged::Reservation(hold) => holds.reservations.push(hold),
            }
            ControlFlow::Continue(())
        };
        self.store.charged(&wanted, Some(clock), &mut visit).await?;
        working.take_counters(found.unwrap_or_default());
        Ok(holds)
    }
}
