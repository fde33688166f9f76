//! Shared memory of a hostile peer: cells, lengths and counters of rings, and places in its slab.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| transport::driver::ring_harness::feed(bytes));
