//! Reads: derived by the rules from what the store says now, past the queue.

use std::sync::Arc;

use super::plan::Working;
use super::{Engine, Error};
use crate::domain::decide::{self, FindBy, Rules, Stop, Usage};
use crate::domain::name::Dimensions;
use crate::domain::reservation::{ItemRequest, Reservation};
use crate::domain::state::State;
use crate::domain::time::Time;
use crate::store::StoreError;

/// How often a read asks for more records before something must be wrong.
const ROUNDS: u32 = 32;

impl Engine {
    /// What a Reserve of `items` would meet now.
    ///
    /// # Errors
    ///
    /// [`Error`], as for the Reserve, but never for want of quota.
    pub async fn check(&self, namespace: &str, items: &[ItemRequest]) -> Result<Usage, Error> {
        let check = |state: &mut State<'_>, rules: &Rules<'_>| {
            decide::check(state, rules, namespace, items)
        };
        let mut usage = self.read(namespace, check).await?;
        self.lines.count(&mut usage.limits);
        Ok(usage)
    }

    /// Where the limits stand that apply to a metric and dimensions: in the
    /// windows open now, or in those that contain `at`.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn usage(
        &self,
        namespace: &str,
        metric: &str,
        dimensions: &Dimensions,
        at: Option<Time>,
    ) -> Result<Usage, Error> {
        let usage = |state: &mut State<'_>, rules: &Rules<'_>| {
            decide::usage(state, rules, namespace, metric, dimensions, at)
        };
        let mut usage = self.read(namespace, usage).await?;
        self.lines.count(&mut usage.limits);
        Ok(usage)
    }

    /// A reservation, and the instant at which it is looked at.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn reservation(
        &self,
        namespace: &str,
        find_by: &FindBy,
    ) -> Result<(Arc<Reservation>, Time), Error> {
        self.read(namespace, |state, rules| decide::reservation(state, rules, find_by)).await
    }

    async fn read<T>(
        &self,
        namespace: &str,
        derive: impl Fn(&mut State<'_>, &Rules<'_>) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        self.store.tick().await?;
        let policy = self.catalog.policy(namespace).await?;
        let mut working = Working::new(&self.catalog, None, true);
        for _ in 0..ROUNDS {
            let rules = Rules {
                policy: policy.as_deref(),
                clock: self.now(),
                retention: self.settings.retention,
                line: Some(&*self.lines),
            };
            let mut state = State::over(&working, false);
            match derive(&mut state, &rules) {
                Ok(value) => return Ok(value),
                Err(Stop::Refused(refusal)) => return Err(refusal.into()),
                Err(Stop::Missing) => {
                    let missing = state.take_missing();
                    working.read(missing, &self.store).await?;
                }
            }
        }
        let message = "the rules kept asking for more records".to_owned();
        Err(StoreError::Damaged { key: namespace.to_owned(), message }.into())
    }
}
