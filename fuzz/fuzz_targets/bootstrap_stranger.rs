//! Messages of an unauthenticated peer: it is not admitted.
#![no_main]

use bootstrap::harness::feed_handshake;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_handshake(bytes));
