//! The contract as generated from `proto/`, where its comments are.

/// Package `quota.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("quota.v1");
}

/// Package `quota.testing.v1`.
pub mod testing {
    /// Version 1.
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("quota.testing.v1");
    }
}

/// The encoded descriptors of all packages, with comments, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/quota_descriptor.bin"));
