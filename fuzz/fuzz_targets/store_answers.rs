//! Answers of PyTorch's store to a rank that looks for the rendezvous.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bootstrap::feed_store_client(bytes));
