//! Which fabric this process is in, and its adapters once one of them is opened.
//!
//! | variable | meaning | when unset |
//! |---|---|---|
//! | `SOFTRDMA_FABRIC` | the fabric's file | one node with an adapter that is connected to itself |
//! | `SOFTRDMA_NODE` | our node of it, by name or number | the first one |
//! | `SOFTRDMA_DIR` | the folder that its processes share | one for each user and fabric, in memory |
//! | `SOFTRDMA_REMAP` | 1: registered pages are shared with peers | they are not |

use crate::{fabric::Fabric, nic::Nic, shm::Directory, world::World};
use rustix::io;
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Where a process is.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The fabric's file; the built-in fabric when there is none.
    pub fabric: Option<PathBuf>,
    /// The node, by name or number.
    pub node: Option<String>,
    /// The folder that the fabric's processes share.
    pub folder: Option<PathBuf>,
    /// Are registered pages shared with peers?
    pub remap: bool,
}

/// How often a folder is opened anew that others remove at the same time.
const ATTEMPTS: u32 = 1000;

const BUILT_IN: &str = include_str!("../../../configs/fabrics/loopback-ib.toml");

impl Setup {
    /// As the environment says.
    #[must_use]
    pub fn from_env() -> Setup {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        Setup {
            fabric: set("SOFTRDMA_FABRIC").map(PathBuf::from),
            node: set("SOFTRDMA_NODE").map(|node| node.to_string_lossy().into_owned()),
            folder: set("SOFTRDMA_DIR").map(PathBuf::from),
            remap: set("SOFTRDMA_REMAP").is_some_and(|value| value != "0"),
        }
    }

    /// The devices that it describes, as `ibv_get_device_list` would list them if it were the environment's:
    /// for tests that are in several places at once.
    ///
    /// # Errors
    /// `EINVAL` when there is no such fabric or node; a line on standard error says why.
    pub fn device_list(&self) -> std::io::Result<*mut *mut verbs_sys::Device> {
        Ok(crate::abi::list(self, std::ptr::null_mut())?)
    }

    /// The station that it describes.
    pub(crate) fn station(&self) -> Result<Station, String> {
        let fabric = match &self.fabric {
            Some(path) => Fabric::load(path).map_err(|error| error.to_string())?,
            None => {
                Fabric::parse(BUILT_IN, Path::new("built-in fabric")).map_err(|error| error.to_string())?
            }
        };
        let node = self.node.as_ref().map_or(Ok(0), |node| fabric.node(node))?;
        let folder = self.folder.clone().unwrap_or_else(|| default_folder(fabric.digest));
        Ok(Station {
            world: Arc::new(World { fabric, node }),
            folder,
            remap: self.remap,
            nic: Mutex::default(),
        })
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

/// A node of a fabric, and this process's adapters on it while one is open.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) world: Arc<World>,
    folder: PathBuf,
    remap: bool,
    nic: Mutex<Weak<Nic>>,
}

impl Station {
    /// The adapters: those that are open, or new ones.
    pub(crate) fn nic(&self) -> io::Result<Arc<Nic>> {
        let mut known = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nic) = known.upgrade().filter(|nic| !nic.process.is_inherited()) {
            return Ok(nic);
        }
        let nic = Arc::new(self.join().inspect_err(|error| self.complain(*error))?);
        *known = Arc::downgrade(&nic);
        Ok(nic)
    }

    /// Gives our place back at the end of a process that has not closed its adapters.
    pub(crate) fn leave(&self) {
        let nic = self.nic.try_lock().ok().and_then(|known| known.upgrade());
        if let Some(nic) = nic {
            nic.process.leave();
            // Other threads may still use it.
            std::mem::forget(nic);
        }
    }

    fn join(&self) -> io::Result<Nic> {
        allow_neighbours();
        crate::abi::leave_at_exit();
        let digest = self.world.fabric.digest;
        for _ in 0..ATTEMPTS {
            let directory = Arc::new(Directory::open(&self.folder, digest)?);
            match Nic::join(directory, Arc::clone(&self.world), self.remap) {
                // Whoever was in it has left, and removed it, after we had opened it.
                Err(io::Errno::NOENT) => {}
                joined => return joined,
            }
        }
        Err(io::Errno::NOENT)
    }

    /// Says in one line what is wrong with the folder.
    #[allow(
        clippy::print_stderr,
        reason = "the caller sees only an errno; this is the one place that can say more"
    )]
    fn complain(&self, error: io::Errno) {
        let why = match error {
            io::Errno::PROTO | io::Errno::BADMSG => {
                "it was made by another version; remove it, or set SOFTRDMA_DIR".into()
            }
            io::Errno::STALE => "it belongs to another fabric; remove it, or set SOFTRDMA_DIR".into(),
            io::Errno::NOSPC => "it is full; set SOFTRDMA_DIR to a folder with room".into(),
            io::Errno::USERS => "it has no place for one more process".into(),
            io::Errno::FBIG => "the limit on file sizes is too low; raise it (ulimit -f unlimited)".into(),
            other => other.to_string(),
        };
        eprintln!("softrdma: cannot use {}: {why}", self.folder.display());
    }
}

/// Where the system lets only ancestors touch a process's memory, lets everybody who may otherwise.
fn allow_neighbours() {
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}
