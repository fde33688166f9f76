//! What happens to the ranks of a job when one of them fails, dies, or does something else than the others.
//!
//! Ranks are real processes: this program again, in the role that [`roles::play`] gives it.

#[cfg(target_os = "linux")]
mod aborts;
#[cfg(target_os = "linux")]
mod deaths;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod joining;
mod members;
#[cfg(target_os = "linux")]
mod mismatches;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
mod scarcity;
#[cfg(target_os = "linux")]
mod threads;
