//! The TCP driver against foreign callers, peers that vanish and races.

#[cfg(target_os = "linux")]
mod cut;
mod intruders;
mod net;
mod paths;
mod races;
