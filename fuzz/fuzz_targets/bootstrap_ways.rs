//! Addresses and unique ids: a parsed value can be formatted and parsed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::parse_addresses;

fuzz_target!(|bytes: &[u8]| parse_addresses(bytes));
