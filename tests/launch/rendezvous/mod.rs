//! Ranks that are started without `tbccl run`, as processes: with the variables of other launchers, with
//! `tbccl rendezvous`, and by unique id.

#[cfg(target_os = "linux")]
mod cut;
mod job;
mod roles;
#[path = "../../failure/members/scenarios.rs"]
#[allow(dead_code, reason = "not all that ranks can do is needed here")]
mod scenarios;
mod started;
