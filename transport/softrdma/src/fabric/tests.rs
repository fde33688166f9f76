//! Tests of fabric files: the shipped ones, and errors in invalid ones.

use super::*;
use crate::link_model::Probability;
use std::path::PathBuf;

fn read(text: &str) -> Result<Fabric, FabricError> {
    Fabric::parse(text, Path::new("f.toml"))
}

/// Returns the error message of an invalid file.
fn error(text: &str) -> String {
    read(text).expect_err("a wrong file").to_string()
}

const PAIR: &str = r#"
profile = "apple-tb5"
[[node]]
name = "a"
device = [{ name = "rdma_en2" }, { name = "rdma_en3" }]
[[node]]
name = "b"
device = [{ name = "rdma_en2" }]
"#;

fn shipped() -> Vec<(String, Fabric)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the shipped files")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort_by_key(|path| path.with_extension(""));
    let named = files.iter().map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, Fabric::load(path).unwrap_or_else(|error| panic!("{error}")))
    });
    named.collect()
}

#[test]
fn shipped_files_are_wired_as_their_names_say() {
    let shipped = shipped();
    let names: Vec<&str> = shipped.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "apple-slow2",
        "apple-slow3",
        "apple-slow4",
        "apple-tb5-mesh2",
        "apple-tb5-mesh2-two-cables",
        "apple-tb5-mesh3",
        "apple-tb5-mesh3-two-cables",
        "apple-tb5-mesh4",
        "apple-tb5-mesh4-two-cables",
        "apple-tb5-ring5",
        "ib-mesh4",
        "ib-pair",
        "ib-ring5",
        "ib-slow2",
        "ib-slow3",
        "ib-slow4",
        "loopback-ib",
        "template",
        "usb4-mesh2-two-cables",
        "usb4-mesh4",
        "usb4-pair",
        "usb4-ring5",
    ];
    assert_eq!(names, expected);
    for (name, fabric) in &shipped {
        let nodes = fabric.nodes.len();
        let per_pair = if name.contains("two-cables") { 2 } else { 1 };
        let between = |a: usize, b: usize| {
            let joins = |cable: &&Cable| {
                let ends = cable.ports.map(|port| fabric.devices[port].node);
                ends == [a, b] || ends == [b, a]
            };
            fabric.cables.iter().filter(joins).count()
        };
        for (a, b) in (0..nodes).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let neighbours = b == a + 1 || (a == 0 && b == nodes - 1);
            let expected = if name.contains("-ring") && !neighbours { 0 } else { per_pair };
            assert_eq!(between(a, b), expected, "{name}: cables between {a} and {b}");
        }
        let is_apple = name.starts_with("apple-tb5");
        for device in fabric.devices.iter().filter(|_| is_apple) {
            assert_eq!(device.profile.name, "apple-tb5", "{name}");
            assert!(
                device.name.starts_with("rdma_en") && device.cable_end.is_some(),
                "{name}: {}",
                device.name
            );
        }
    }
}

#[test]
fn loopback_is_one_port_with_a_plug() {
    let (_, fabric) = shipped().into_iter().find(|(name, _)| name == "loopback-ib").expect("shipped");
    assert_eq!((fabric.nodes.len(), fabric.devices.len(), fabric.cables.len()), (1, 1, 1));
    assert_eq!(fabric.peer(&fabric.devices[0]), Some(&fabric.devices[0]));
}

#[test]
fn a_cable_joins_two_ports_and_has_settings() {
    let text = format!(
        "{PAIR}[link]\nlatency_us = 5\nseed = 9\n[[cable]]\nends = [\"a/rdma_en3\", \"b/rdma_en2\"]\n\
         bandwidth_gbps = 80\nloss = 0.5\n"
    );
    let fabric = read(&text).expect("valid");
    let model = &fabric.cables[0].model;
    assert_eq!((model.latency_ns, model.ps_per_byte, model.seed), (5000, 100, 9));
    assert_eq!(model.loss, Probability::new(0.5).expect("a probability"));
    let device = fabric.find_device("a/rdma_en3").expect("there");
    assert_eq!((device.port, device.cable_end), (1, Some(CableEnd { cable: 0, side: 0 })));
    assert_eq!(fabric.peer(device).map(|peer| fabric.port_name(peer)), Some("b/rdma_en2".to_owned()));
    assert_eq!(fabric.peer(&fabric.devices[0]), None);
    assert_eq!(fabric.find_cable("b/rdma_en2"), Ok(0));
    assert_eq!(fabric.find_cable("a/rdma_en3--b/rdma_en2"), Ok(0));
    assert_eq!(
        (fabric.find_node("b"), fabric.find_node("1"), fabric.find_node("7").is_err()),
        (Ok(1), Ok(1), true)
    );
    assert_eq!(fabric.devices_of(0).len(), 2);
}

#[test]
fn frames_travel_whole_on_cables_that_say_so_between_devices_that_count_in_frames() {
    let frames = |profile: &str, link: &str, cable: &str| {
        let nodes = PAIR.replace("apple-tb5", profile);
        let ends = "ends = [\"a/rdma_en2\", \"b/rdma_en2\"]";
        let text = format!("{nodes}[link]\n{link}\n[[cable]]\n{ends}\n{cable}\n");
        read(&text).map(|fabric| fabric.cables[0].model.frame_bytes)
    };
    let (yes, no) = ("whole_frames = true", "whole_frames = false");
    assert_eq!(frames("apple-tb5", "", "").expect("valid"), 0);
    assert_eq!(frames("apple-tb5", "", yes).expect("valid"), 4096);
    assert_eq!(frames("apple-tb5", yes, "").expect("valid"), 4096);
    assert_eq!(frames("apple-tb5", yes, no).expect("valid"), 0);
    assert_eq!(frames("ib", yes, "").expect("a default that does not concern it"), 0);
    let error = frames("ib", "", yes).expect_err("it has no frames").to_string();
    assert!(error.contains("whole_frames needs a device that counts in frames"), "{error}");
}

#[test]
fn digests_tell_files_apart() {
    assert_eq!(read(PAIR).map(|f| f.digest), read(PAIR).map(|f| f.digest));
    assert_ne!(read(PAIR).map(|f| f.digest), read(&format!("{PAIR}\n# x")).map(|f| f.digest));
}

#[test]
fn errors_name_the_place_and_what_is_valid() {
    let cases = [
        ("latency_us = 1\n", "f.toml:1:1: unknown key `latency_us`; known: profile, link, node, cable"),
        (
            "[link]\nlatncy_us = 1\n",
            "f.toml:2:1: unknown key `latncy_us`, did you mean `latency_us`?; known: latency_us, \
             bandwidth_gbps, whole_frames, jitter_us, loss, corruption, seed",
        ),
        ("", "f.toml:1:1: a fabric needs a [[node]]"),
        ("[[node]]\n", "f.toml:1:1: missing field `name`"),
        (
            "[[node]]\nname = \"a/b\"\n",
            "f.toml:2:8: `a/b` is not a valid name of a node: 1 to 63 bytes, without slashes and spaces",
        ),
        (
            "[[node]]\nname = \"a\"\ndevice = [{ name = \"x\" }]\n",
            "f.toml:3:20: `x` needs a `profile`, here or for all at the top of the file; known: ib, usb4, \
             apple-tb5",
        ),
        (
            "profile = \"aple\"\n",
            "f.toml:1:11: unknown profile `aple`, did you mean `apple-tb5`?; known: ib, usb4, apple-tb5",
        ),
        ("[[node]]\nname = 3\n", "f.toml:2:8: invalid type: integer `3`, expected a string"),
        ("[[node]\n", "f.toml:1:8: unclosed array table, expected `]`"),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn wrong_wiring_is_refused() {
    let cases = [
        ("[[node]]\nname = \"a\"\n", "f.toml:10:8: there is a node `a` already: the 1st"),
        ("device = [{ name = \"rdma_en2\" }]\n", "f.toml:9:1: duplicate key"),
        (
            "[[node]]\nname = \"c\"\ndevice = [{ name = \"x\" }, { name = \"x\" }]\n",
            "f.toml:11:36: this node has a device `x` already",
        ),
        (
            "[[node]]\nname = \"c\"\ndevice = [{ name = \"x\", ipv4 = \"169.254.1.1\" }]\n",
            "f.toml:11:32: 169.254.1.1 is the address of a/rdma_en2 already",
        ),
        (
            "[[cable]]\nends = [\"a/rdma_en2\"]\n",
            "f.toml:10:8: a cable has two ends, e.g. ends = [\"a/rdma0\", \"b/rdma0\"]",
        ),
        (
            "[[cable]]\nends = [\"a/rdma_en2\", \"b/rdma_en4\"]\n",
            "f.toml:10:23: unknown port `b/rdma_en4`, did you mean `b/rdma_en2`?; known: a/rdma_en2, \
             a/rdma_en3, b/rdma_en2",
        ),
        (
            "[[cable]]\nends = [\"a/rdma_en2\", \"b/rdma_en2\"]\n[[cable]]\nends = [\"a/rdma_en3\", \
             \"b/rdma_en2\"]\n",
            "f.toml:12:23: `b/rdma_en2` has a cable already, the 1st; free ports: none",
        ),
        (
            "[[cable]]\nends = [\"a/rdma_en2\", \"b/rdma_en2\"]\nlost = 1\n",
            "f.toml:11:1: unknown key `lost`, did you mean `loss`?; known: name, ends, latency_us, \
             bandwidth_gbps, whole_frames, jitter_us, loss, corruption, seed",
        ),
        (
            "[[cable]]\nends = [\"a/rdma_en2\", \"b/rdma_en2\"]\nloss = 1.5\n",
            "f.toml:11:8: loss is a probability, from 0 to 1",
        ),
        (
            "[[node]]\nname = \"c\"\ndevice = [{ name = \"x\", usable_queue_pairs = 11 }]\n",
            "f.toml:11:46: usable_queue_pairs is from 1 to 10, as profile = \"apple-tb5\" has",
        ),
        (
            "[link]\nlatency_us = -1\n",
            "f.toml:10:14: latency_us is from 0 to 10000000 microseconds, ten seconds",
        ),
        (
            "[link]\nbandwidth_gbps = 0\n",
            "f.toml:10:18: bandwidth_gbps is from 0.001 to 8000; leave it out for no limit",
        ),
    ];
    for (more, expected) in cases {
        let found = error(&format!("{PAIR}{more}"));
        assert!(found.starts_with(expected), "{found}\nand not\n{expected}");
    }
}

#[test]
fn odd_devices_are_refused() {
    let device = |keys: &str| {
        error(&format!("[[node]]\nname = \"a\"\n[[node.device]]\nname = \"x\"\nprofile = \"ib\"\n{keys}\n"))
    };
    assert_eq!(device("gid = \"lost\""), "f.toml:6:7: unknown gid `lost`; known: present, late, missing");
    assert_eq!(
        device("gid = \"late\""),
        "f.toml:6:7: gid = \"late\" needs gid_after_ms, e.g. gid_after_ms = 500"
    );
    assert_eq!(device("gid_after_ms = 3"), "f.toml:6:16: gid_after_ms is only valid with gid = \"late\"");
    assert_eq!(
        device("gid_index = 0"),
        "f.toml:6:13: gid_index is from 1 to 3; at 0 is a link-local address"
    );
    assert_eq!(
        device("port = \"dwn\""),
        "f.toml:6:8: unknown port `dwn`, did you mean `down`?; known: up, down"
    );
    assert!(device("ipv4 = \"1.2.3\"").starts_with("f.toml:6:8: invalid IPv4 address"));
}

#[test]
fn addresses_come_late_or_elsewhere() {
    let text = "profile = \"apple-tb5\"\n[[node]]\nname = \"a\"\ndevice = [\n { name = \"x\" },\n \
                { name = \"y\", gid = \"late\", gid_after_ms = 2 },\n { name = \"z\", gid = \"missing\", \
                 gid_index = 2 },\n]\n";
    let fabric = read(text).expect("valid");
    let [x, y, z] = fabric.devices.as_slice() else { panic!("three devices") };
    let mapped = |gids: [Gid; GID_TABLE_LEN]| gids.map(|gid| gid.to_ipv4());
    let none = GidChange::default();
    let at = |device: &Device, age| mapped(device.gids(age, Override::AsInFile, none));
    assert_eq!(at(x, 0), [None, Some(Ipv4Addr::new(169, 254, 1, 1)), None, None]);
    assert_eq!(x.gids(0, Override::AsInFile, none).map(Gid::is_empty), [false, false, false, true]);
    assert_eq!(at(y, 1_999_999), [None; 4]);
    assert_eq!(at(y, 2_000_000), [None, Some(y.ipv4), None, None]);
    assert_eq!(at(z, u64::MAX), [None; 4]);
    assert_eq!(mapped(z.gids(0, Override::On, none)), [None, None, Some(z.ipv4), None]);
    let change = GidChange { index: Some(3), ipv4: Some(Ipv4Addr::LOCALHOST) };
    assert_eq!(mapped(x.gids(0, Override::AsInFile, change))[3], Some(Ipv4Addr::LOCALHOST));
    assert_eq!(mapped(x.gids(0, Override::Off, change)), [None; 4]);
    assert_ne!(x.gids(0, Override::AsInFile, none)[0], y.gids(0, Override::AsInFile, none)[0]);
}

#[test]
fn damaged_files_are_errors_with_a_place_or_right_by_chance() {
    let text = fs::read_to_string(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics/template.toml"),
    )
    .expect("the template");
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut wrong = 0;
    for _ in 0..2000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=next(3) {
            let (at, length) = (next(bytes.len()), next(8));
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, b"[\"]}=0-\n,#9"[next(11)..].iter().copied().take(length));
        }
        if let Err(error) = read(&String::from_utf8(bytes).expect("the template is ASCII")) {
            assert!(error.position.is_some() && !error.message.contains('\n'), "{error}");
            wrong += 1;
        }
    }
    assert!(wrong > 500, "{wrong}");
}
