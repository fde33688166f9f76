//! Fabric files of the software device.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::fabric::parse_fabric(bytes));
