//! P2p: tagged messages between ranks that are threads, and processes on every transport.
//!
//! What ranks do is in `acts`, the same wherever they run; `parcel` keeps a message's memory as long as it must be there.

mod acts;
#[cfg(target_os = "linux")]
mod fabrics;
mod failures;
#[cfg(target_os = "linux")]
#[path = "../verbs/job.rs"]
#[allow(dead_code, reason = "not all that jobs can do is needed here")]
mod job;
mod parcel;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
#[path = "../failure/job.rs"]
#[allow(dead_code, reason = "not all that jobs can do is needed here")]
mod processes_job;
mod random;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
#[path = "../software_device/mod.rs"]
mod software_device;
mod threads;
#[cfg(target_os = "linux")]
#[path = "../verbs/wiring.rs"]
#[allow(dead_code, reason = "not all wirings are needed here")]
mod wiring;
