//! Messages from the ranks of a job to its rendezvous: the server neither fails nor leaves a rank waiting.
#![no_main]

use bootstrap::harness::feed_server;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_server(bytes));
