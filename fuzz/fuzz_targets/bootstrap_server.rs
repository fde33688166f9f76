//! Messages from a rendezvous to a rank.
#![no_main]

use bootstrap::harness::feed_rank;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_rank(bytes));
