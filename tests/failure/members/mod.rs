//! Derived communicators: split, shrunk after failures, and grown.
//!
//! Ranks are threads, or this program in the role that [`roles::play`] gives it. The tests of `launch` and
//! `verbs` run the same scenarios on ranks started by other means, and over RDMA.
//!
//! | module | subject |
//! |---|---|
//! | `scenarios` | the scenarios |
//! | `processes` | ranks that are processes |
//! | `roles` | the roles of ranks |
//! | `threads` | ranks that are threads |

#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod roles;
#[cfg(target_os = "linux")]
mod scenarios;
mod threads;
