//! Descriptions of clusters and of fabrics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::files::parse_cluster(bytes));
