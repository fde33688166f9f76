//! Messages from the ranks of a job to its rendezvous: the server neither fails nor leaves a rank waiting.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::ranks_say;

fuzz_target!(|bytes: &[u8]| ranks_say(bytes));
