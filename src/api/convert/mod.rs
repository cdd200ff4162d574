//! Between the messages of the contract and the words of the domain.

pub(super) mod answer;
pub(super) mod listing;
pub(super) mod operator;
pub(super) mod page;
pub(super) mod policy;
pub(super) mod request;
pub(super) mod subject;
pub mod times;
pub(super) mod trail;
