//! Compiles the contract. No `protoc` is needed: protox is one in Rust.

use std::{env, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 4] = [
    "quota/v1/quota_service.proto",
    "quota/v1/policy_service.proto",
    "quota/v1/operator_service.proto",
    "quota/testing/v1/test_clock_service.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files =
        protox::compile(FILES.into_iter().chain(["quota/v1/error_reason.proto"]), ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Reflection keeps the comments, so that `grpcurl describe` shows them;
    // the generated code does not need them twice.
    fs::write(out.join("quota_descriptor.bin"), files.encode_to_vec())?;
    for file in &mut files.file {
        file.source_code_info = None;
    }
    // RPCs that no handler overrides answer UNIMPLEMENTED by themselves.
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(files)?;
    Ok(())
}
