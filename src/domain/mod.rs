//! The rules, pure: no async, clock, log, serde or driver.
//!
//! Everything here is a function of its arguments. [`decide`] takes the loaded
//! [`state`], the rules and an instant, and answers what happens; the engine
//! around it loads and writes.

pub mod counter;
pub mod decide;
pub mod event;
pub mod invariants;
pub mod name;
pub mod policy;
pub mod recount;
pub mod refusal;
pub mod reservation;
pub mod state;
pub mod status;
pub mod subject;
pub mod time;
pub mod trail;
pub mod window;
