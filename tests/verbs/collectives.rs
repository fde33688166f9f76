//! All collectives on every profile and wiring.

use support::{FabricJob, KINDS, Shape, Wiring};

/// Runs all collectives on a wiring, with every profile.
fn everywhere(shape: Shape, nodes: u32, cables: u32) {
    for (profile, service) in KINDS {
        let wiring = Wiring { profile, shape, nodes, cables };
        let env = [("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
        let done = FabricJob::run(&wiring, "", "collectives", &env);
        assert!(done.code() == 0, "{wiring:?}, {service}: {:?}\n{}", done.messages, done.stderr);
        done.assert_success("done", nodes);
    }
}

#[test]
fn two_ranks_with_one_cable_and_with_two() {
    everywhere(Shape::Mesh, 2, 1);
    everywhere(Shape::Mesh, 2, 2);
}

#[test]
fn three_ranks_with_one_cable_and_with_two() {
    everywhere(Shape::Mesh, 3, 1);
    everywhere(Shape::Mesh, 3, 2);
}

#[test]
fn four_ranks_in_a_mesh_with_one_cable_and_with_two() {
    everywhere(Shape::Mesh, 4, 1);
    everywhere(Shape::Mesh, 4, 2);
}

#[test]
fn four_ranks_in_a_ring_with_one_cable_and_with_two() {
    everywhere(Shape::Ring, 4, 1);
    everywhere(Shape::Ring, 4, 2);
}

#[test]
fn five_ranks_in_a_mesh_with_one_cable_and_with_two() {
    everywhere(Shape::Mesh, 5, 1);
    everywhere(Shape::Mesh, 5, 2);
}

#[test]
fn five_ranks_in_a_ring_with_one_cable_and_with_two() {
    everywhere(Shape::Ring, 5, 1);
    everywhere(Shape::Ring, 5, 2);
}

#[test]
fn ranks_in_a_ring_in_another_order_than_their_numbers() {
    everywhere(Shape::TurnedRing, 4, 1);
    everywhere(Shape::TurnedRing, 5, 1);
}

#[test]
fn four_ranks_in_a_line() {
    everywhere(Shape::Line, 4, 1);
}

#[test]
fn where_nobody_chooses_rings_and_lines_of_rdma_cables_are_taken_with_tcp_between_other_hosts() {
    for (profile, service, shape) in
        [("apple-tb5", "uc", Shape::Ring), ("ib", "rc", Shape::Ring), ("usb4", "uc", Shape::Line)]
    {
        let wiring = Wiring { profile, shape, nodes: 5, cables: 1 };
        let env = [("TBCCL_TRANSPORT", "shm+auto"), ("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
        let done = FabricJob::run(&wiring, "", "relayed", &env);
        assert!(done.code() == 0, "{wiring:?}, {service}: {:?}\n{}", done.messages, done.stderr);
        done.assert_success("done", 5);
        let says = "hosts are connected by RDMA (shm+verbs), collectives along other ranks where no cable";
        let lines: Vec<&str> =
            done.stderr.lines().filter(|line| line.contains("hosts are connected by")).collect();
        assert!(lines.len() == 1 && lines[0].contains(says), "{wiring:?}: {}", done.stderr);
    }
}

#[test]
fn what_needs_more_cables_is_refused_on_every_rank_and_the_rest_goes_on() {
    let ring = Wiring { profile: "apple-tb5", shape: Shape::Ring, nodes: 5, cables: 1 };
    FabricJob::run(&ring, "", "gaps", &[]).assert_success("done", 5);
    let done = FabricJob::run(&ring, "", "gaps", &[("TBCCL_ALGO", "mesh")]);
    let errors = done.all("error");
    assert_eq!(errors.len(), 5, "{:?}\n{}", done.messages, done.stderr);
    for error in errors {
        let expected_text =
            "mesh sends messages of all_reduce from rank 0 to rank 2, and no cable connects them";
        assert!(error.rest.contains(expected_text) && error.rest.contains("choose ring"), "{error:?}");
    }
}
