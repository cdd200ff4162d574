//! Reflection: what this server serves, described to whoever asks.

use anyhow::{Context as _, Result};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_reflection::server::{Builder, v1, v1alpha};

use crate::proto::FILE_DESCRIPTOR_SET;

/// Where the service is that is only served under a test clock.
const TEST_CLOCK: &str = "quota/testing/v1/test_clock_service.proto";

pub(super) fn v1(
    under_test_clock: bool,
) -> Result<v1::ServerReflectionServer<impl v1::ServerReflection>> {
    builder(under_test_clock)?.build_v1().context("the descriptors are damaged")
}

pub(super) fn v1alpha(
    under_test_clock: bool,
) -> Result<v1alpha::ServerReflectionServer<impl v1alpha::ServerReflection>> {
    builder(under_test_clock)?.build_v1alpha().context("the descriptors are damaged")
}

fn builder(under_test_clock: bool) -> Result<Builder<'static>> {
    let mut contract =
        FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).context("the descriptors are damaged")?;
    contract.file.retain(|file| under_test_clock || file.name() != TEST_CLOCK);
    Ok(Builder::configure()
        .register_file_descriptor_set(contract)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // With these grpcurl prints error details instead of base64.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET))
}
