//! Configuration of a process: its fabric and its node.
//!
//! | variable | meaning | when unset |
//! |---|---|---|
//! | `SOFTRDMA_FABRIC` | the fabric file | one node with a device that is connected to itself |
//! | `SOFTRDMA_NODE` | name or number of this process's node | the first node |
//! | `SOFTRDMA_DIR` | the folder that its processes share | one for each user and fabric, in memory |
//! | `SOFTRDMA_BASE` | the folder in which such folders are made | /dev/shm, or the one for temporary files |
//! | `SOFTRDMA_REMAP` | 1: registered pages are shared with peers | they are not |

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The fabric and the node of a process.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The fabric file; `None` selects the built-in fabric.
    pub fabric: Option<PathBuf>,
    /// Name or number of the node; `None` selects the first.
    pub node: Option<String>,
    /// The folder that the fabric's processes share; `None` selects [`default_folder`].
    pub folder: Option<PathBuf>,
    /// Whether registered pages are shared with peers.
    pub remap: bool,
}

impl Config {
    /// Reads the configuration from the environment.
    #[must_use]
    pub fn from_env() -> Config {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        Config {
            fabric: set("SOFTRDMA_FABRIC").map(PathBuf::from),
            node: set("SOFTRDMA_NODE").map(|node| node.to_string_lossy().into_owned()),
            folder: set("SOFTRDMA_DIR").map(PathBuf::from),
            remap: set("SOFTRDMA_REMAP").is_some_and(|value| value != "0"),
        }
    }
}

/// Returns the folder of a fabric for processes that name none.
///
/// It lies in memory where the system has such a file system, because every message passes through it.
#[must_use]
pub fn default_folder(digest: u64) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    base().join(format!("softrdma-{user}-{digest:016x}"))
}

/// Returns the folder in which the folders of fabrics are made.
fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match env::var_os("SOFTRDMA_BASE").filter(|value| !value.is_empty()) {
        Some(base) => base.into(),
        None if fs::metadata(memory).is_ok_and(|about| about.is_dir()) => memory.into(),
        None => env::temp_dir(),
    }
}
