//! The command `tbccl` for tests on software fabrics: with the device built beside it, and without
//! environment variables that name another one.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Once,
};

pub(crate) const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");

/// Returns the command, and builds the software device first: cargo builds it only for its own package. It is
/// built with the whole workspace, so that crates below it keep the features that they have in tests of all
/// packages, and are not built again.
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
