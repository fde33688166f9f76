//! Capabilities that the probe finds on devices of every kind.

use crate::fabric::{APPLE, IB, USB4, on};
use transport::verbs::{DeviceCapabilities, Library, QpType};

fn probe(library: &Library, device: &str) -> DeviceCapabilities {
    let context = library.open(device).expect("a device");
    let domain = context.domain().expect("a domain");
    DeviceCapabilities::probe(&context, &domain).expect("abilities")
}

#[test]
fn adapters_that_have_everything() {
    on("capabilities::adapters_that_have_everything", IB, |library| {
        let found = probe(library, "ib0");
        assert_eq!(found.service, QpType::RC);
        assert!(
            found.unreliable && found.one_sided && found.write_imm && found.events && found.late_registration
        );
        assert_eq!((found.max_inline, found.max_sge, found.max_message_bytes), (220, 16, 1 << 30));
        assert_eq!((found.frame_bytes, found.region_line), (None, None));
        assert_eq!((found.max_regions, found.max_queue_pairs), (4096, 1024));
        assert_eq!((found.depth, found.max_depth), (1024, 16_384));
    });
}

#[test]
fn adapters_without_inline_work() {
    on("capabilities::adapters_without_inline_work", USB4, |library| {
        let found = probe(library, "usb4_rdma0");
        assert!(found.service == QpType::RC && found.write_imm && found.max_inline == 0, "{found:?}");
    });
}

#[test]
fn frame_devices() {
    on("capabilities::frame_devices", APPLE, |library| {
        let found = probe(library, "rdma_en2");
        assert!(found.service == QpType::UC && found.unreliable);
        assert!(!found.one_sided && !found.write_imm && !found.events && !found.late_registration);
        assert_eq!((found.max_inline, found.max_sge, found.max_message_bytes), (0, 1, 16_773_120));
        assert_eq!((found.frame_bytes, found.region_line), (Some(4096), Some(4 << 30)));
        assert_eq!((found.max_regions, found.max_queue_pairs), (100, 10));
        assert_eq!((found.depth, found.max_depth), (256, 4095));
    });
}

/// Ten queue pairs and a hundred regions are few: probing must give back what it takes.
#[test]
fn probing_leaves_nothing_behind() {
    on("capabilities::probing_leaves_nothing_behind", APPLE, |library| {
        let context = library.open("rdma_en2").expect("a device");
        let domain = context.domain().expect("a domain");
        for _ in 0..150 {
            DeviceCapabilities::probe(&context, &domain).expect("abilities");
        }
    });
}
