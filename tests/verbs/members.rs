//! Communicators derived from others, over RDMA.

use support::{FabricJob, Shape, Wiring};

fn mesh(profile: &'static str, nodes: u32) -> Wiring {
    Wiring { profile, shape: Shape::Mesh, nodes, cables: 1 }
}

#[test]
fn every_colour_has_a_communicator_of_its_own() {
    for transport in ["verbs", "shm+verbs"] {
        let done = FabricJob::run(&mesh("ib", 3), "", "split", &[("TBCCL_TRANSPORT", transport)]);
        done.assert_success("split", 3);
    }
}

#[test]
fn the_device_matrix_of_a_job_holds_for_parts_of_it_in_another_order() {
    let wiring = mesh("usb4", 3);
    let matrix = wiring.ring_matrix(1);
    let env = [("TBCCL_IBV_DEVICES", "$HOME_OF_TEST/matrix.json")];
    let keep =
        |home: &std::path::Path| std::fs::write(home.join("matrix.json"), &matrix).expect("our folder");
    FabricJob::start_with(&wiring, "", "split", &env, keep).finish().assert_success("split", 3);
}

#[test]
fn survivors_of_killed_ranks_go_on() {
    for (profile, seed) in [("ib", 3), ("usb4", 4)] {
        let done = FabricJob::run(&mesh(profile, 4), "", &format!("ladder {seed}"), &[]);
        done.assert_success("through", 2);
        assert_eq!(done.all("dying").len(), 2, "{:?}", done.messages);
    }
}
