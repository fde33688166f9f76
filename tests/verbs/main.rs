//! Ranks over RDMA on fabrics of software devices: real processes and a verbs library. The library under test
//! does not know that the devices are software.
//!
//! Ranks are this program again, in the role that [`roles::play`] gives them.

#[cfg(target_os = "linux")]
mod collectives;
#[cfg(target_os = "linux")]
mod fault_gaps;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod groups;
#[cfg(target_os = "linux")]
mod input;
#[cfg(target_os = "linux")]
mod late_addresses;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod members;
#[cfg(target_os = "linux")]
mod registered;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
#[path = "../failure/members/scenarios.rs"]
#[allow(dead_code, reason = "not all that ranks can do is needed here")]
mod scenarios;
#[cfg(target_os = "linux")]
mod shared_hosts;
