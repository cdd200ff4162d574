//! What the integration tests stand on: a real MongoDB, the real binary, a
//! faulty network and a real gRPC client.
//!
//! A test file takes it with `mod support;`. Each test binary uses a part of
//! it, hence the two `allow`s.
//!
//! - [`mongo`]: one single-node replica set per test binary, shared by its
//!   tests; each takes a [`fresh_database`](SharedMongo::fresh_database).
//! - [`ReplicaSet`], [`Mongod`]: servers of a test's own, to kill, pause, step
//!   down and trip with fail points.
//! - [`Server`]: `quotad` as a child process.
//! - [`Proxy`]: a TCP proxy that loses, holds, delays and cuts.
//! - [`grpcurl`]: somebody else's client.
//! - [`eventually`]: waiting for a condition, never for a time.
//!
//! Processes and folders outlive no test run, however it ends: see `reaper.rs`.

#![allow(dead_code, unused_imports, clippy::unused_self)]

mod grpcurl;
mod mongod;
mod poll;
mod proxy;
mod reaper;
mod replica_set;
mod server;
mod shared;
mod tool;

pub use grpcurl::{GrpcurlOutput, grpcurl, grpcurl_binary};
pub use mongod::{Mongod, mongod_binary};
pub use poll::{eventually, eventually_blocking};
pub use proxy::{Fault, Proxy};
pub use reaper::{Process, temporary_folder};
pub use replica_set::ReplicaSet;
pub use server::{Quotad, Server, quotad};
pub use shared::{SharedMongo, mongo, with_database};
pub use tool::{RequireTool, install_once, run, target_dir};
