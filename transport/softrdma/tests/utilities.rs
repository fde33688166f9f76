//! Debian's ibverbs-utils, unmodified, on the software device.

mod common;

use common::Fabric;

#[test]
fn devices_are_listed() {
    list_devices(&Fabric::new(None));
    list_devices(&Fabric::new(None).by_library_path());
}

fn list_devices(fabric: &Fabric) {
    let listed = fabric.run("ibv_devices", &[]);
    assert!(listed.succeeded && listed.text.contains("soft_ib0"), "{}", listed.text);
    let info = fabric.run("ibv_devinfo", &["-v"]);
    assert!(info.succeeded, "{}", info.text);
    for part in ["hca_id:\tsoft_ib0", "PORT_ACTIVE (4)", "GID[  1]", "board_id:\t\t\tSOFT_IB", "ATOMIC_GLOB"]
    {
        assert!(info.text.contains(part), "no {part} in\n{}", info.text);
    }
    fabric.assert_clean();
}

#[test]
fn ping_pong_within_a_node() {
    ping_pong([Fabric::new(None), Fabric::new(None).with_shared_pages()]);
}

#[test]
fn ping_pong_by_library_path() {
    ping_pong([Fabric::new(None).by_library_path(), Fabric::new(None).by_library_path().with_shared_pages()]);
}

/// Runs every ping-pong program in all its modes, between two processes of one node.
fn ping_pong(fabrics: [Fabric; 2]) {
    for fabric in fabrics {
        for (program, ways) in [
            ("ibv_rc_pingpong", ["", "-e", "-c", "-N", "-t"].as_slice()),
            ("ibv_uc_pingpong", &["", "-e", "-c"]),
            ("ibv_ud_pingpong", &["", "-e", "-c"]),
            ("ibv_srq_pingpong", &["", "-e", "-c", "-q 3"]),
        ] {
            for way in ways {
                let arguments: Vec<&str> =
                    ["-g", "1", "-n", "500"].into_iter().chain(way.split_ascii_whitespace()).collect();
                fabric.expect_success(program, &arguments);
            }
        }
        fabric.assert_clean();
    }
}

#[test]
fn ping_pong_over_a_cable() {
    let fabric = Fabric::new(Some("ib-pair.toml"));
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        fabric.expect_success(program, &["-g", "1"]);
        fabric.expect_success(program, &["-g", "0", "-s", "2000", "-r", "20"]);
    }
    fabric.assert_clean();
}

#[test]
fn usb4_has_connections_but_no_datagrams() {
    let fabric = Fabric::new(Some("usb4-pair.toml"));
    fabric.expect_success("ibv_rc_pingpong", &["-g", "1"]);
    fabric.expect_success("ibv_uc_pingpong", &["-g", "1"]);
    let refused = fabric.run("ibv_ud_pingpong", &["-g", "1"]);
    assert!(!refused.succeeded && refused.text.contains("Couldn't create QP"), "{}", refused.text);
}

#[test]
fn thunderbolt_has_unreliable_connections_only() {
    let fabric = Fabric::new(Some("apple-tb5-mesh2.toml"));
    fabric.expect_success("ibv_uc_pingpong", &["-g", "1", "-r", "30"]);
    for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
        let refused = fabric.run(program, &["-g", "1"]);
        assert!(!refused.succeeded && refused.text.contains("Couldn't create QP"), "{}", refused.text);
    }
    fabric.assert_clean();
}
