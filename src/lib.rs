pub mod api;
pub mod domain;
pub mod engine;
pub mod proto;
pub mod store;
