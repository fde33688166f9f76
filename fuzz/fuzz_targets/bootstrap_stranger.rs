//! Messages of an unauthenticated peer: it is not admitted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::stranger_says;

fuzz_target!(|bytes: &[u8]| stranger_says(bytes));
