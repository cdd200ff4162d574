//! What is particular to MongoDB: deployments that are refused, indexes, fail
//! points, round trips.

mod support;

#[path = "mongo/audit.rs"]
mod audit;
#[path = "mongo/deployment.rs"]
mod deployment;
#[path = "mongo/feed.rs"]
mod feed;
#[path = "mongo/listings.rs"]
mod listings;
#[path = "mongo/outage.rs"]
mod outage;
#[path = "mongo/round_trips.rs"]
mod round_trips;
#[path = "mongo/unknown.rs"]
mod unknown;
#[path = "mongo/within.rs"]
mod within;
