//! Addresses and unique ids: a parsed value can be formatted and parsed again.
#![no_main]

use bootstrap::harness::parse_addresses;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| parse_addresses(bytes));
