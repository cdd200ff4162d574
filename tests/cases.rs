//! The cases from public bug reports, each through the gRPC API, on every store
//! where it makes sense. A test is named after its case, and after the variant
//! of it where there are several.

#![allow(clippy::unwrap_used, reason = "a case that goes wrong panics, and says where")]

mod support;
#[path = "support/world.rs"]
mod world;

#[path = "cases/adjustments.rs"]
mod adjustments;
#[path = "cases/all_or_nothing.rs"]
mod all_or_nothing;
#[path = "cases/amounts.rs"]
mod amounts;
#[path = "cases/audits.rs"]
mod audits;
#[path = "cases/billing.rs"]
mod billing;
#[path = "cases/billing_changes.rs"]
mod billing_changes;
#[path = "cases/billing_faults.rs"]
mod billing_faults;
#[path = "cases/billing_subjects.rs"]
mod billing_subjects;
#[path = "cases/changes.rs"]
mod changes;
#[path = "cases/contention.rs"]
mod contention;
#[path = "cases/counters.rs"]
mod counters;
#[path = "cases/expiry.rs"]
mod expiry;
#[path = "cases/holds.rs"]
mod holds;
#[path = "cases/idempotency.rs"]
mod idempotency;
#[path = "cases/late.rs"]
mod late;
#[path = "cases/leases.rs"]
mod leases;
#[path = "cases/levels.rs"]
mod levels;
#[path = "cases/listings.rs"]
mod listings;
#[path = "cases/names.rs"]
mod names;
#[path = "cases/over_limit.rs"]
mod over_limit;
#[path = "cases/plans.rs"]
mod plans;
#[path = "cases/reconciling.rs"]
mod reconciling;
#[path = "cases/refunds.rs"]
mod refunds;
#[path = "cases/reservations.rs"]
mod reservations;
#[path = "cases/restart.rs"]
mod restart;
#[path = "cases/retry.rs"]
mod retry;
#[path = "cases/rolling.rs"]
mod rolling;
#[path = "cases/settlement.rs"]
mod settlement;
#[path = "cases/slots.rs"]
mod slots;
#[path = "cases/statuses.rs"]
mod statuses;
#[path = "cases/stories.rs"]
mod stories;
#[path = "cases/trail.rs"]
mod trail;
#[path = "cases/waiting.rs"]
mod waiting;
#[path = "cases/waiting_undone.rs"]
mod waiting_undone;
#[path = "cases/waiting_wakes.rs"]
mod waiting_wakes;
#[path = "cases/watching.rs"]
mod watching;
#[path = "cases/windows.rs"]
mod windows;
