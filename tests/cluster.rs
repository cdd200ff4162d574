//! Several server processes over one MongoDB: never one admitted too many,
//! whatever is killed or paused.

mod support;

#[path = "cluster/calls.rs"]
mod calls;
#[path = "cluster/feed.rs"]
mod feed;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/last_slot.rs"]
mod last_slot;
#[path = "cluster/waiting.rs"]
mod waiting;
