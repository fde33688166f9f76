//! Devices with few memory regions and few queue pairs.

use support::{FabricJob, Shape, Wiring};

#[test]
fn six_gibibytes_are_split_into_segments_that_every_device_has_room_for() {
    for (profile, nodes) in [("ib", 2), ("apple-tb5", 2), ("apple-tb5", 4)] {
        let wiring = Wiring { profile, shape: Shape::Mesh, nodes, cables: 1 };
        let env = [("TBCCL_SLAB_BYTES", "6G")];
        let mut job = FabricJob::start(&wiring, "", "large_slab", &env);
        job.wait_for("full", nodes);
        job.finish().assert_success("done", nodes);
    }
}

/// A Mac has regions for 100 segments, and ranks never request more. One more segment is an error before any
/// rank has sent; the error says how to use fewer.
#[test]
fn the_last_region_is_used_and_one_more_is_an_error_with_the_remedy() {
    let wiring = Wiring::pair("apple-tb5", 1);
    let env = |slab| [("TBCCL_SLAB_BYTES", slab), ("TBCCL_SEGMENT_BYTES", "1M"), ("SOFTRDMA_REMAP", "1")];
    FabricJob::run(&wiring, "", "operations 20", &env("100M")).assert_success("done", 2);
    let done = FabricJob::run(&wiring, "", "operations 20", &env("101M"));
    let refused = done.all("refused");
    assert!(!refused.is_empty(), "{:?}\n{}", done.messages, done.stderr);
    for message in refused {
        assert!(message.rest.contains("TBCCL_SEGMENT_BYTES"), "{message:?}");
    }
}

/// Each buffer takes two regions, and a call uses two buffers.
#[test]
fn memory_of_the_programs_own_is_not_copied_while_devices_have_room_for_it() {
    let env = [("TBCCL_SEGMENT_BYTES", "1M"), ("TBCCL_SLAB_BYTES", "64M"), ("TBCCL_CACHE_REGIONS", "4")];
    for (profile, cables, devices) in
        [("ib", 1, "know it"), ("usb4", 2, "know it"), ("apple-tb5", 1, "refuse")]
    {
        let role = format!("own_memory {devices}");
        FabricJob::run(&Wiring::pair(profile, cables), "", &role, &env).assert_success("done", 2);
    }
    // Without room the buffers are copied, and the results are still right.
    for budget in [("TBCCL_CACHE_REGIONS", "0"), ("TBCCL_CACHE_BYTES", "1M")] {
        FabricJob::run(&Wiring::pair("ib", 1), "", "own_memory have no room", &[budget])
            .assert_success("done", 2);
    }
}

/// Devices keep the pages of a leaked registration. A leaked owner keeps its memory, so that memory allocated
/// later has other addresses, and is not taken for registered.
#[test]
fn memory_mapped_after_a_registration_was_leaked_is_not_taken_for_registered() {
    FabricJob::run(&Wiring::pair("ib", 1), "", "leaked_memory", &[]).assert_success("done", 2);
}

/// A rail takes three queue pairs of a Mac's ten, and fewer where several rails share a device: four rails
/// take two each, and eight take one. Eleven rails are refused before any queue pair is created.
#[test]
fn rails_share_the_queue_pairs_of_a_device_and_the_eleventh_is_never_asked_for() {
    let run = |nodes: u32| {
        let wiring = Wiring { profile: "apple-tb5", shape: Shape::Mesh, nodes, cables: 1 };
        let row = |rank: u32| -> Vec<Option<String>> {
            (0..nodes).map(|peer| (peer != rank).then(|| "d0".to_owned())).collect()
        };
        let matrix = serde_json::to_string(&(0..nodes).map(row).collect::<Vec<_>>()).expect("JSON");
        let env = [("TBCCL_IBV_DEVICES", "$HOME_OF_TEST/matrix.json")];
        let job = FabricJob::start_with(&wiring, "", "operations 1", &env, |home| {
            std::fs::write(home.join("matrix.json"), &matrix).expect("our folder");
        });
        job.finish()
    };
    let done = run(12);
    let refused = done.all("refused");
    assert!(done.code() != 0 && refused.len() == 12, "{:?}\n{}", done.messages, done.stderr);
    for message in refused {
        let expected_text = "d0 would need 11 queue pairs, 1 for each of its 11 rails, and has 10";
        assert!(message.rest.contains(expected_text), "{message:?}");
    }
}

#[test]
fn large_arrays_travel_one_piece_at_a_time() {
    for cables in [1, 2] {
        let env = [("TBCCL_RDMA_WINDOW", "1"), ("TBCCL_RDMA_SERVICE", "uc"), ("TBCCL_TIMEOUT", "5")];
        let job =
            FabricJob::start(&Wiring::pair("apple-tb5", cables), "latency_us = 20.0", "large_sums", &env);
        job.finish().assert_success("done", 2);
    }
}
