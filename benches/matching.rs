//! What it costs to find the limits that an item meets, in policies of 10 and
//! of 1,000 limits, with 100 namespaces each: limits that cannot apply must
//! not cost anything.
//!
//! `cargo bench --bench matching` prints nanoseconds per call and the ratio of
//! the two sizes, each the median of rounds that take turns.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use quota_authority::domain::policy::{
    Applied, Bound, LimitSpec, MaxSpec, MetricSpec, Mode, Policy, PolicyRevision, PolicySpec,
    WindowSpec,
};
use quota_authority::domain::reservation::ItemRequest;
use quota_authority::domain::time::Time;

const NAMESPACES: usize = 100;
const CALLS: u32 = 20_000;
const ROUNDS: usize = 15;
const SIZES: [usize; 2] = [10, 1000];

/// In what the limits differ that an item does not meet.
const SHAPES: [(&str, ShapeOf); 4] = [
    ("one of many values of a condition", |n| Shape {
        conditions: vec![("item_type", n)],
        ..Shape::default()
    }),
    ("two conditions, the first one shared by all", |n| Shape {
        conditions: vec![("channel", 0), ("item_type", n)],
        ..Shape::default()
    }),
    ("other metrics", |n| Shape { metric: n, ..Shape::default() }),
    ("optional dimensions that the item lacks", |n| Shape {
        optional: Some(n),
        ..Shape::default()
    }),
];

/// The shape of the n-th limit.
type ShapeOf = fn(usize) -> Shape;

#[derive(Default)]
struct Shape {
    metric: usize,
    conditions: Vec<(&'static str, usize)>,
    optional: Option<usize>,
}

fn limit(n: usize, shape: Shape) -> LimitSpec {
    let condition =
        |(name, value): (&str, usize)| (name.to_owned(), vec![format!("{name}-{value}")]);
    let optional = shape.optional.filter(|n| *n > 0);
    let mut per = vec!["user".to_owned()];
    per.extend(optional.map(|n| format!("dimension-{n}")));
    LimitSpec {
        name: format!("limit-{n}"),
        metric: format!("metric-{}", shape.metric),
        conditions: shape.conditions.into_iter().map(condition).collect(),
        per,
        optional: optional.is_some(),
        plan_of: None,
        window: WindowSpec::Lifetime,
        max: MaxSpec::Same(Bound::AtMost(10)),
        mode: Mode::Enforced,
    }
}

/// A policy in which only the first limit applies to [`item`].
fn policy(namespace: usize, size: usize, shape: ShapeOf) -> Policy {
    let requires = ["user", "item_type", "channel"].map(str::to_owned).to_vec();
    let metric = |n: usize| (format!("metric-{n}"), MetricSpec { requires: requires.clone() });
    let spec = PolicySpec {
        namespace: format!("namespace-{namespace}"),
        metrics: (0..size).map(metric).collect(),
        limits: (0..size).map(|n| limit(n, shape(n))).collect(),
        ..PolicySpec::default()
    };
    match PolicyRevision::after(None, spec, Time::default(), "bench") {
        Applied::Changed { revision, .. } => Policy::new(*revision).expect("a good policy"),
        Applied::Unchanged => unreachable!("there was none"),
    }
}

fn item() -> ItemRequest {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let dimensions = BTreeMap::from([
        pair("user", "42"),
        pair("item_type", "item_type-0"),
        pair("channel", "channel-0"),
    ]);
    ItemRequest { metric: "metric-0".to_owned(), amount: 1, dimensions }
}

/// Matches one item again and again, in one namespace after the other.
fn round(policies: &[Policy]) -> Duration {
    let items = [item()];
    let begun = Instant::now();
    for (_, policy) in (0..CALLS).zip(policies.iter().cycle()) {
        let matches = policy.matches(black_box(&items)).expect("a match");
        assert_eq!(matches.len(), 1);
        black_box(policy.named_subjects(&items, &matches));
    }
    begun.elapsed()
}

fn main() {
    println!("{:45} {:>10} {:>10} {:>7}", "limits that do not apply", "10", "1,000", "ratio");
    for (name, shape) in SHAPES {
        let policies =
            SIZES.map(|size| (0..NAMESPACES).map(|n| policy(n, size, shape)).collect::<Vec<_>>());
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (times, policies) in times.iter_mut().zip(&policies) {
                times.push(round(policies));
            }
        }
        let [few, many] = times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2].as_secs_f64() * 1e9 / f64::from(CALLS)
        });
        println!("{name:45} {few:>7.0} ns {many:>7.0} ns {:>7.2}", many / few);
    }
}
