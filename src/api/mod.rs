//! The contract on the wire: checks requests, converts them, and answers.
//!
//! A handler has three moves: make a command of the request, give it to the
//! engine, make a response of the answer. All that can be wrong with a request
//! is found in [`convert`], all at once; what every failure is called and says is in
//! the [`catalogue`], and all statuses are built in [`status`].

mod catalogue;
mod convert;
mod deadline;
mod operator;
mod policy;
pub mod policy_file;
mod quota;
mod refused;
mod status;
mod test_clock;

pub use convert::times;
pub use operator::OperatorApi;
pub use policy::PolicyApi;
pub use quota::QuotaApi;
pub use status::{DOMAIN, Reason};
pub use test_clock::TestClockApi;

/// Who calls, where nobody is asked to say.
const ANONYMOUS: &str = "anonymous";
