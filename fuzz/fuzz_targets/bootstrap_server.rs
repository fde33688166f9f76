//! Messages from a rendezvous to a rank.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::server_says;

fuzz_target!(|bytes: &[u8]| server_says(bytes));
