//! Which limits may apply to an item, found without looking at those that
//! cannot: a policy may have a thousand limits, of which an item meets three.

use std::collections::{BTreeSet, HashMap};

use super::spec::{LimitSpec, MetricSpec};
use crate::domain::name::Dimensions;

/// The limits of one metric, by what must be there for them to apply.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Limits that every item meets.
    always: Vec<usize>,
    /// Limits with conditions, each by one of them: dimension, then value.
    by_value: HashMap<String, HashMap<String, Vec<usize>>>,
    /// Limits without conditions that are optional, by a dimension that the
    /// metric does not require.
    by_presence: HashMap<String, Vec<usize>>,
}

impl Index {
    /// An index of `limits`, all of one metric, each with its position in the
    /// policy.
    pub fn new(metric: &MetricSpec, limits: &[(usize, &LimitSpec)]) -> Self {
        let mut shared: HashMap<(&str, &str), usize> = HashMap::new();
        for (_, limit) in limits {
            for (dimension, values) in &limit.conditions {
                for value in values {
                    *shared.entry((dimension, value)).or_default() += 1;
                }
            }
        }
        // Of several conditions the one that the fewest limits share leaves
        // the fewest to be looked at in vain.
        let crowd = |dimension: &String, values: &[String]| -> usize {
            values.iter().map(|value| shared[&(dimension.as_str(), value.as_str())]).sum()
        };
        let mut index = Self::default();
        for &(at, limit) in limits {
            let rarest = limit.conditions.iter().min_by_key(|(d, values)| crowd(d, values));
            let required = |dimension: &&str| metric.requires.iter().any(|r| r == dimension);
            if let Some((dimension, values)) = rarest {
                let by_value = index.by_value.entry(dimension.clone()).or_default();
                for value in values.iter().collect::<BTreeSet<_>>() {
                    by_value.entry(value.clone()).or_default().push(at);
                }
            } else if let Some(dimension) = limit.dimensions().find(|d| !required(d)) {
                index.by_presence.entry(dimension.to_owned()).or_default().push(at);
            } else {
                index.always.push(at);
            }
        }
        index
    }

    /// The limits that may apply to an item with these dimensions.
    pub fn candidates(&self, dimensions: &Dimensions) -> impl Iterator<Item = usize> {
        let valued = dimensions.iter().filter_map(|(name, value)| {
            self.by_value.get(name).and_then(|by_value| by_value.get(value))
        });
        let present = dimensions.keys().filter_map(|name| self.by_presence.get(name));
        self.always.iter().chain(valued.flatten()).chain(present.flatten()).copied()
    }
}
