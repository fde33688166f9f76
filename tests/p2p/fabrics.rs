//! P2p over RDMA, on fabrics of software devices.

use support::{FabricJob, Shape, Wiring};

#[test]
fn everything_arrives_whatever_the_devices_can_do() {
    // With and without remote write, reliable and unreliable.
    for (profile, service, nodes) in [("ib", "rc", 3), ("usb4", "uc", 2), ("apple-tb5", "uc", 2)] {
        let wiring = Wiring { profile, shape: Shape::Mesh, nodes, cables: 1 };
        FabricJob::run(&wiring, "", "everything", &[("TBCCL_RDMA_SERVICE", service)])
            .assert_success("done", nodes);
    }
}

#[test]
fn everything_arrives_within_hosts_and_between_them() {
    let wiring = Wiring { profile: "ib", shape: Shape::Mesh, nodes: 2, cables: 1 };
    let env = [("TBCCL_TRANSPORT", "shm+verbs")];
    FabricJob::start_several((&wiring, 2), "", "everything", &env, |_| ()).finish().assert_success("done", 4);
}
