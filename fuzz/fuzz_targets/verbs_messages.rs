//! Messages of a hostile peer in receive slots: headers, grants, marks and notices.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| transport::driver::verbs::harness::feed(bytes));
