//! Frames of tagged messages from a hostile peer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tbccl::p2p::harness::feed(bytes));
