//! Fabrics for tests.
//!
//! The software device takes its fabric from the environment, which must not change while threads run. A test
//! therefore runs itself once more, as a process of its own with the right environment.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};
use transport::verbs::Library;

/// Upper bound for every test, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Environment variable that marks the inner process and holds the path of the library.
const INNER: &str = "TBCCL_TEST_VERBS_LIBRARY";

/// Two kinds of adapters, each connected to itself.
pub(crate) const IB: &str = "
    [[node]]
    name = 'a'
    device = [{ name = 'ib0', profile = 'ib' }]
    [[cable]]
    ends = ['a/ib0', 'a/ib0']
";

/// The same with Linux's devices over USB4.
pub(crate) const USB4: &str = "
    [[node]]
    name = 'a'
    device = [{ name = 'usb4_rdma0', profile = 'usb4' }]
    [[cable]]
    ends = ['a/usb4_rdma0', 'a/usb4_rdma0']
";

/// A Mac with a cable from one of its ports to another, and a third port without a cable.
pub(crate) const APPLE: &str = "
    profile = 'apple-tb5'
    [[node]]
    name = 'mac'
    device = [{ name = 'rdma_en2' }, { name = 'rdma_en3' }, { name = 'rdma_en4' }]
    [[cable]]
    ends = ['mac/rdma_en2', 'mac/rdma_en3']
";

/// Returns the path of the software device's library, and builds it if it is missing.
///
/// The build covers all packages, so that the dependencies get the same features as in the whole test suite
/// and are not built again.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let folder = test.parent().and_then(Path::parent).expect("cargo's folder");
        let release: &[&str] = if folder.ends_with("release") { &["--release"] } else { &[] };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--lib", "--bins", "--features=tbccl/test-driver"])
            .args(release)
            .status();
        assert!(built.expect("cargo").success(), "the software device can't be built");
        folder.join("libsoftrdma.so")
    })
}

/// Runs a test on a fabric, in a process of its own. `name` is the name of the test with its module.
pub(crate) fn on(name: &str, fabric: &str, test: impl FnOnce(&Library)) {
    if let Some(library) = std::env::var_os(INNER) {
        let library = Library::load(Some(Path::new(&library))).expect("the library");
        return test(&library);
    }
    let base = Path::new("/dev/shm");
    let folder = if base.is_dir() { tempfile::tempdir_in(base) } else { tempfile::tempdir() };
    let folder = folder.expect("a folder");
    let file = folder.path().join("test.toml");
    fs::write(&file, fabric).expect("writable");
    let mut inner = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture"])
        .env(INNER, library())
        .env("SOFTRDMA_FABRIC", &file)
        .env("SOFTRDMA_DIR", folder.path().join("shared"))
        .env_remove("SOFTRDMA_NODE")
        .env_remove("SOFTRDMA_REMAP")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let began = Instant::now();
    while inner.try_wait().expect("our child").is_none() {
        if began.elapsed() > PATIENCE {
            inner.kill().expect("it runs");
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let end = inner.wait_with_output().expect("our child");
    let text = format!("{}{}", String::from_utf8_lossy(&end.stdout), String::from_utf8_lossy(&end.stderr));
    assert!(end.status.signal().is_none(), "ended by a signal, or too slow: {text}");
    assert!(end.status.success(), "{text}");
    // A wrong name would run no test.
    assert!(text.contains("1 passed"), "no test has the name {name}: {text}");
}
