//! The library that breaks one rule, compiled once.

use super::software_device;
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Compiles the library; returns its path.
///
/// # Panics
/// If there is no C compiler, or no header of verbs.
pub(super) fn library() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        // Builds the device, if no other test has.
        let _ = support::tbccl_with_software_device();
        let device = software_device();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libbroken.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/selftest/broken.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
            .arg(&path)
            .arg(source);
        cc.arg(format!("-DSOFTRDMA=\"{}\"", device.display())).arg(&device);
        cc.arg(format!("-Wl,-rpath,{}", device.parent().expect("a folder").display())).arg("-ldl");
        let output = cc.output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, path)
    });
    path
}
