//! Communicators that are made from others: splitting, shrinking when ranks are lost, growing.
//!
//! Ranks are threads, or this program again in the role that [`roles::play`] gives it. That the same works for ranks that
//! were started by other means, and over RDMA, is tested where such are started.

#[cfg(target_os = "linux")]
mod acts;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod roles;
mod threads;
