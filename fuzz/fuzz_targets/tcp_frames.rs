//! What a peer says on a connection over TCP, plain or in records: what comes of it is what is due, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use transport::driver::tcp::harness::peer_says;

fuzz_target!(|bytes: &[u8]| peer_says(bytes));
