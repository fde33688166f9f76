//! What a stranger says to the guard of a connection: it is not let in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::stranger_says;

fuzz_target!(|bytes: &[u8]| stranger_says(bytes));
