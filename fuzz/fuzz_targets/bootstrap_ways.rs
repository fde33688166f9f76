//! Addresses and unique ids: what is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::ways_there;

fuzz_target!(|bytes: &[u8]| ways_there(bytes));
