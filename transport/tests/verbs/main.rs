//! The device layer on software devices of every kind: what real libraries and adapters are asked for, answered by
//! one that is loaded at run time like any other.
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
