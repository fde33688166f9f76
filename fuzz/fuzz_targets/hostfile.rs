//! Hostfiles in all formats: no input makes the parser panic, and the result keeps its invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::Hostfile;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = Hostfile::parse(bytes) {
        assert!(!file.hosts.is_empty());
        for (at, host) in file.hosts.iter().enumerate() {
            assert!(!host.name.is_empty() && !host.name.starts_with('-'));
            assert_eq!(file.position_of(&host.name), Some(at));
            assert_ne!(host.slots, Some(0));
            assert!(host.max_slots.is_none_or(|most| most >= host.slots.unwrap_or(1)));
        }
        assert!(file.devices.is_none_or(|devices| devices.ranks() as usize == file.hosts.len()));
    }
});
