//! The TCP driver against foreign callers, peers that vanish and races.

#[cfg(target_os = "linux")]
mod cut;
#[cfg(target_os = "linux")]
mod failover;
#[cfg(target_os = "linux")]
mod hosts;
mod intruders;
mod net;
mod paths;
#[cfg(target_os = "linux")]
mod probes;
mod races;
