//! Messages from a rendezvous to a rank.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::feed_rank;

fuzz_target!(|bytes: &[u8]| feed_rank(bytes));
