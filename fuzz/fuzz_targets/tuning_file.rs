//! Measurements, rules and costs: files by which algorithms are chosen.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::files::parse_tuning(bytes));
