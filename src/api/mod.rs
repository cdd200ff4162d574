//! The contract on the wire: checks requests, converts them, and answers.

mod convert;
pub mod policy_file;
