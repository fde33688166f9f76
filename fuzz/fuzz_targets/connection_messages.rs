//! Messages by which ranks describe themselves before they connect over TCP, RDMA and shared memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| transport::driver::harness::feed(bytes));
