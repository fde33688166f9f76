//! Ranks that are started without `tbccl run`, as processes: with the variables of other launchers, with
//! `tbccl rendezvous`, and by unique id.

#[path = "../../failure/members/acts.rs"]
#[allow(dead_code, reason = "not all that ranks can do is needed here")]
mod acts;
#[cfg(target_os = "linux")]
mod cut;
mod job;
mod roles;
mod started;
