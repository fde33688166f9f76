//! Messages of an unauthenticated peer: it is not admitted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::feed_handshake;

fuzz_target!(|bytes: &[u8]| feed_handshake(bytes));
