//! The node of a fabric that this process runs on.
//!
//! The node opens the fabric's folder when its first device is opened, and leaves it when the last one is
//! closed.

use crate::{
    config::{Config, default_folder},
    fabric::Fabric,
    fabric_view::FabricView,
    nic::Nic,
    shm::Directory,
};
use rustix::io;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Maximum attempts to join a folder that other processes remove at the same time.
const MAX_JOIN_ATTEMPTS: u32 = 1000;

const BUILT_IN: &str = include_str!("../../../configs/fabrics/loopback-ib.toml");

/// A node of a fabric, and this process's NIC on it while a device is open.
#[derive(Debug)]
pub(crate) struct LocalNode {
    pub(crate) fabric_view: Arc<FabricView>,
    folder: PathBuf,
    remap: bool,
    nic: Mutex<Weak<Nic>>,
}

impl LocalNode {
    /// Reads the fabric file and finds the node. Opens no device.
    pub(crate) fn new(config: &Config) -> Result<LocalNode, String> {
        let fabric = match &config.fabric {
            Some(path) => Fabric::load(path).map_err(|error| error.to_string())?,
            None => {
                Fabric::parse(BUILT_IN, Path::new("built-in fabric")).map_err(|error| error.to_string())?
            }
        };
        let node = config.node.as_ref().map_or(Ok(0), |node| fabric.find_node(node))?;
        let folder = config.folder.clone().unwrap_or_else(|| default_folder(fabric.digest));
        Ok(LocalNode {
            fabric_view: Arc::new(FabricView { fabric, node }),
            folder,
            remap: config.remap,
            nic: Mutex::default(),
        })
    }

    /// Returns the NIC. Joins the fabric if no device of the node is open.
    pub(crate) fn nic(&self) -> io::Result<Arc<Nic>> {
        let mut known = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nic) = known.upgrade().filter(|nic| !nic.process().is_inherited()) {
            return Ok(nic);
        }
        let nic = self.join().inspect_err(|error| self.report_folder_error(*error))?;
        *known = Arc::downgrade(&nic);
        Ok(nic)
    }

    /// Leaves the fabric at the exit of a process that has not closed its devices.
    pub(crate) fn leave(&self) {
        let nic = self.nic.try_lock().ok().and_then(|known| known.upgrade());
        if let Some(nic) = nic {
            nic.process().leave();
            // Other threads may still use the NIC, so it is never dropped.
            std::mem::forget(nic);
        }
    }

    fn join(&self) -> io::Result<Arc<Nic>> {
        allow_peer_access();
        let digest = self.fabric_view.fabric.digest;
        for _ in 0..MAX_JOIN_ATTEMPTS {
            let directory = Arc::new(Directory::open(&self.folder, digest)?);
            match Nic::join(directory, Arc::clone(&self.fabric_view), self.remap) {
                // The last process left and removed the folder after this one had opened it: try again.
                Err(io::Errno::NOENT) => {}
                joined => return joined,
            }
        }
        Err(io::Errno::NOENT)
    }

    /// Writes the reason why the folder can't be used to standard error, in one line.
    #[allow(
        clippy::print_stderr,
        reason = "the caller sees only an errno; this is the one place that can say more"
    )]
    fn report_folder_error(&self, error: io::Errno) {
        let why = match error {
            io::Errno::PROTO | io::Errno::BADMSG => {
                "it was made by another version; remove it, or set SOFTRDMA_DIR".into()
            }
            io::Errno::STALE => "it belongs to another fabric; remove it, or set SOFTRDMA_DIR".into(),
            io::Errno::NOSPC => "it is full; set SOFTRDMA_DIR to a folder with room".into(),
            io::Errno::USERS => "it has no room for another process".into(),
            io::Errno::FBIG => "the limit on file sizes is too low; raise it (ulimit -f unlimited)".into(),
            other => other.to_string(),
        };
        eprintln!("softrdma: cannot use {}: {why}", self.folder.display());
    }
}

/// Lets any process of the user access this process's memory, where the system permits that only to ancestors
/// (Yama).
fn allow_peer_access() {
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}
