//! Frames between the launcher and its agents, as both ends read them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cli::launch::harness::feed(bytes));
