//! Addresses and unique ids: a parsed value can be formatted and parsed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::ways_there;

fuzz_target!(|bytes: &[u8]| ways_there(bytes));
