//! The fingerprint of a machine, by which its calibration is recognized.

use crate::processors::{Caches, Processors};
use serde::{Deserialize, Serialize};

/// The properties of a machine by which its calibration is recognized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Model and number of the cores.
    pub machine: String,
    /// Bytes of the largest data cache of a core, and of the last level; 0 where unknown.
    pub caches: [usize; 2],
    /// Name and release of the kernel.
    pub system: String,
    /// Version of tbccl.
    pub tbccl: String,
}

impl Fingerprint {
    /// Returns the fingerprint of this machine.
    #[must_use]
    pub fn here() -> Fingerprint {
        let kernel = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Fingerprint {
            machine: Processors::here().to_string(),
            caches: Caches::here().map_or([0, 0], |caches| [caches.own, caches.last]),
            system: format!("{} {}", text(kernel.sysname()), text(kernel.release())),
            tbccl: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
