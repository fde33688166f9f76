//! Messages of a peer on a TCP connection, plain or in records: the receiver gets the expected data, or an
//! error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use transport::driver::tcp::harness::run_script;

fuzz_target!(|bytes: &[u8]| run_script(bytes));
