//! `tbccl` as tests on software fabrics start it: with the device built beside it, and nothing in its environment that
//! would lead it to another one.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Once,
};

pub(crate) const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");

/// The program. Builds the software device at first: cargo does so only for the package that it belongs to. It is built with all
/// others, so that crates below it have the features that they have in tests of all packages, and are not built again.
pub(crate) fn tbccl() -> Command {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let release = Path::new(TBCCL).parent().is_some_and(|folder| folder.ends_with("release"));
        let profile: &[&str] = if release { &["--release"] } else { &[] };
        let built = Command::new(env!("CARGO"))
            .args(["build", "-q", "--workspace", "--lib", "--bins"])
            .args(profile)
            .status();
        assert!(built.expect("cargo").success(), "the software device can't be built");
    });
    let mut tbccl = Command::new(TBCCL);
    for name in
        ["SOFTRDMA_DIR", "SOFTRDMA_FABRIC", "SOFTRDMA_NODE", "SOFTRDMA_LIB", "LD_PRELOAD", "TBCCL_VERBS_LIB"]
    {
        tbccl.env_remove(name);
    }
    tbccl.env("TBCCL", TBCCL).stdin(Stdio::null());
    tbccl
}
