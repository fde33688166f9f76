//! What ranks say to the rendezvous of a job: nothing upsets it, and nobody is left waiting.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bootstrap::harness::ranks_say;

fuzz_target!(|bytes: &[u8]| ranks_say(bytes));
