pub mod api;
pub mod domain;
pub mod proto;
pub mod store;
