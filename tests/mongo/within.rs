//! An engine of the test's own over a MongoDB, and what it is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use quota_authority::domain::decide::{Command, Commit, IfExpired, Reserve};
use quota_authority::domain::invariants;
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::policy::{
    Bound, LimitSpec, MaxSpec, MetricSpec, Mode, PolicySpec, WindowSpec,
};
use quota_authority::domain::reservation::{DEFAULT_TTL, ItemRequest, Request};
use quota_authority::engine::{Engine, Settings};
use quota_authority::store::SharedStore;
use quota_authority::store::mongo::MongoStore;

pub const NAMESPACE: &str = "n";

/// An engine whose only limit is `max` for each user, for ever.
pub async fn engine(uri: &str, max: i64) -> (SharedStore, Arc<Engine>) {
    let store: SharedStore = Arc::new(MongoStore::connect(uri).await.expect("a MongoDB"));
    let (engine, _batches) = Engine::start(Arc::clone(&store), Settings::default());
    let spec = PolicySpec {
        namespace: NAMESPACE.to_owned(),
        metrics: BTreeMap::from([(
            "m".to_owned(),
            MetricSpec { requires: vec!["user".to_owned()] },
        )]),
        limits: vec![LimitSpec {
            name: "l".to_owned(),
            metric: "m".to_owned(),
            conditions: BTreeMap::new(),
            per: vec!["user".to_owned()],
            optional: false,
            plan_of: None,
            window: WindowSpec::Lifetime,
            max: MaxSpec::Same(Bound::AtMost(max)),
            mode: Mode::Enforced,
        }],
        ..PolicySpec::default()
    };
    engine.apply_policy(spec, 0, false, "test").await.expect("a sound policy");
    (store, engine)
}

pub fn reserve(id: &str) -> Command {
    Command::Reserve(Reserve {
        key: ReservationKey::new(NAMESPACE, id),
        request: Arc::new(Request {
            items: vec![ItemRequest {
                metric: "m".to_owned(),
                amount: 1,
                dimensions: BTreeMap::from([("user".to_owned(), "u".to_owned())]),
            }],
            ttl: DEFAULT_TTL,
            commit: false,
            resources: vec![],
            labels: BTreeMap::new(),
            adjustment: false,
        }),
        principal: "test".to_owned(),
    })
}

pub fn commit(id: &str) -> Command {
    Command::Commit(Commit {
        key: ReservationKey::new(NAMESPACE, id),
        amounts: vec![],
        resources: vec![],
        if_expired: IfExpired::Reject,
        principal: "test".to_owned(),
    })
}

/// Asserts I1 to I3 and gives used and held of the one counter.
pub async fn totals(store: &SharedStore) -> (i64, i64) {
    let counters = store.counters_after(None, 10_000).await.unwrap();
    let reservations = store.reservations_after(None, 10_000).await.unwrap();
    let breaches = invariants::breaches(&counters, &reservations, store.now());
    assert!(breaches.is_empty(), "{breaches:#?}");
    assert_eq!(counters.len(), 1);
    (counters[0].used(store.now()), counters[0].held(store.now()))
}
