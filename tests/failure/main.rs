//! Errors on the other ranks of a job when one fails, dies, or makes a different call.
//!
//! Ranks are processes: this program, in the role that [`roles::play`] gives it.
//!
//! | module | subject |
//! |---|---|
//! | `aborts` | aborts from another thread |
//! | `deaths` | ranks that die, stop or leave |
//! | `forks` | forked children of ranks |
//! | `hangs` | the knot of ranks that wait |
//! | `job` | helpers: jobs of this program |
//! | `joining` | ranks that do not join |
//! | `late` | ranks that come to a call after it has failed |
//! | `members` | split, shrunk and grown communicators |
//! | `mismatches` | ranks that make different calls |
//! | `roles` | the roles of ranks |
//! | `scarcity` | too few cores, too little memory, descriptors or rights |
//! | `threads` | failures among threads |
//! | `traces` | traces of jobs in which a rank is killed |

#[cfg(target_os = "linux")]
mod aborts;
#[cfg(target_os = "linux")]
mod deaths;
#[cfg(target_os = "linux")]
mod forks;
#[cfg(target_os = "linux")]
mod hangs;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod joining;
#[cfg(target_os = "linux")]
mod late;
mod members;
#[cfg(target_os = "linux")]
mod mismatches;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
mod scarcity;
#[cfg(target_os = "linux")]
mod threads;
#[cfg(target_os = "linux")]
mod traces;
