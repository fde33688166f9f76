//! Tests of the device layer on software devices of every kind, whose library is loaded at run time like a
//! real one.
//!
//! # Safety
//! See `rig`.

#![cfg(target_os = "linux")]

mod abilities;
mod addresses;
mod exchange;
mod fabric;
mod lifetimes;
mod refusals;
mod rig;
