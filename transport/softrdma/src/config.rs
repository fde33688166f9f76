//! Which fabric this process is in, and its adapters once one of them is opened.
//!
//! | variable | meaning | when unset |
//! |---|---|---|
//! | `SOFTRDMA_FABRIC` | the fabric's file | one node with an adapter that is connected to itself |
//! | `SOFTRDMA_NODE` | our node of it, by name or number | the first one |
//! | `SOFTRDMA_DIR` | the folder that its processes share | one for each user and fabric, in memory |
//! | `SOFTRDMA_REMAP` | 1: registered pages are shared with peers | they are not |

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Where a process is.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The fabric's file; the built-in fabric when there is none.
    pub fabric: Option<PathBuf>,
    /// The node, by name or number.
    pub node: Option<String>,
    /// The folder that the fabric's processes share.
    pub folder: Option<PathBuf>,
    /// Are registered pages shared with peers?
    pub remap: bool,
}

impl Config {
    /// As the environment says.
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

/// The folder of a fabric with that digest when none is named: in memory where there is such a place, because
/// every message goes through it.
#[must_use]
pub fn default_folder(digest: u64) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let memory = Path::new("/dev/shm");
    let base =
        if fs::metadata(memory).is_ok_and(|about| about.is_dir()) { memory.into() } else { env::temp_dir() };
    base.join(format!("softrdma-{user}-{digest:016x}"))
}
