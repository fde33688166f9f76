//! Tests of the device layer on software devices of every kind, whose library is loaded at run time like a
//! real one.
//!
//! # Safety
//! See `ends`.

#![cfg(target_os = "linux")]

mod addresses;
mod capabilities;
mod ends;
mod exchange;
mod fabric;
mod lifetimes;
mod refusals;
