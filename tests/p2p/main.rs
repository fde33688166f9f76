//! P2p: tagged messages between ranks that are threads, and processes on every transport.
//!
//! What ranks do is in `acts`, the same wherever they run; `parcel` keeps a message's memory as long as it must be there.

mod acts;
#[cfg(target_os = "linux")]
mod fabrics;
mod failures;
mod parcel;
#[cfg(target_os = "linux")]
mod processes;
mod random;
#[cfg(target_os = "linux")]
mod roles;
mod threads;
