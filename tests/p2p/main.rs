//! P2p: tagged messages between ranks that are threads, and processes on every transport.
//!
//! | module | subject |
//! |---|---|
//! | `scenarios` | scenarios, independent of where ranks run |
//! | `fabrics` | p2p over RDMA |
//! | `failures` | failures |
//! | `processes` | p2p between processes |
//! | `random` | random traffic |
//! | `roles` | the roles of ranks |
//! | `threads` | p2p between threads |

#[cfg(target_os = "linux")]
mod fabrics;
mod failures;
#[cfg(target_os = "linux")]
mod processes;
mod random;
#[cfg(target_os = "linux")]
mod roles;
mod scenarios;
mod threads;
