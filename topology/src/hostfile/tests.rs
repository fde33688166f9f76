//! Hostfiles as people write them, and as they get them wrong.

use super::*;
use crate::Rank;
use proptest::prelude::*;

fn read(text: &str) -> Hostfile {
    Hostfile::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn refused(text: &str) -> String {
    Hostfile::parse(text.as_bytes()).expect_err(text).to_string()
}

fn slots(file: &Hostfile) -> Vec<(&str, Option<u32>, Option<u32>)> {
    file.hosts.iter().map(|host| (host.name.as_str(), host.slots, host.max_slots)).collect()
}

#[test]
fn both_shapes_of_mlx_are_read() {
    let list = read(r#"[{"ssh": "a", "ips": ["10.0.0.1", "fd00::1"]}, {"ssh": "u@b.local"}]"#);
    assert_eq!(list.format, Format::Json);
    assert_eq!(list.hosts[0].addresses, ["10.0.0.1", "fd00::1"]);
    assert_eq!((list.hosts[1].name.as_str(), list.hosts[1].slots), ("u@b.local", None));
    assert_eq!(list.devices, None);
    let object = read(
        r#"{"backend": "jaccl", "envs": ["A=1", "B=x=y"], "hosts": [
            {"ssh": "a", "ips": ["10.0.0.1"], "rdma": [null, ["en1", "en2"]]},
            {"ssh": "b", "ips": [], "rdma": [["en3", "en4"], null], "slots": 2}]}"#,
    );
    assert_eq!(object.backend.as_deref(), Some("jaccl"));
    assert_eq!(object.env, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
    assert_eq!(object.devices.expect("a matrix").rails(Rank(1), Rank(0)), ["en3", "en4"]);
    assert_eq!(object.hosts[1].slots, Some(2));
}

#[test]
fn lines_are_read_as_open_mpi_does() {
    let file = read("# all\n\na slots=4 max-slots=8\t# big\n  b:2\nc\nd cpu=3 slots_max=3\ne user=me\n");
    let expected = [
        ("a", Some(4), Some(8)),
        ("b", Some(2), None),
        ("c", None, None),
        ("d", Some(3), Some(3)),
        ("me@e", None, None),
    ];
    assert_eq!((file.format, slots(&file)), (Format::Text, expected.to_vec()));
}

#[test]
fn repeated_lines_add_up() {
    assert_eq!(slots(&read("a\nb slots=2\na\na\nb\n")), [("a", Some(3), None), ("b", Some(3), None)]);
    assert_eq!(slots(&read("a slots=2\na slots=3 max-slots=9\n")), [("a", Some(5), Some(9))]);
}

#[test]
fn lists_are_read_as_people_type_them() {
    let file = Hostfile::from_list("a,b:2,a,[fd00::1]:3,fd00::2").expect("a list");
    let expected =
        [("a", Some(2), None), ("b", Some(2), None), ("fd00::1", Some(3), None), ("fd00::2", None, None)];
    assert_eq!(slots(&file), expected);
    for (list, told) in [
        ("a,,b", "1:3: a host's name is empty"),
        ("a,b:0", "1:3: 0 slots"),
        ("", "1:1: a host's name is empty"),
    ] {
        let error = Hostfile::from_list(list).expect_err(list).to_string();
        assert!(error.starts_with(told), "{error}");
    }
}

#[test]
fn our_own_format_names_devices_by_host() {
    let file = read(
        r#"backend = "ring"
        [env]
        A = "1"
        N = 4
        [[host]]
        ssh = "a"
        addresses = ["10.0.0.1"]
        slots = 2
        max_slots = 4
        rdma = { c = "en2", b = ["en3", "en4"] }
        env = { ONLY = true }
        [[host]]
        ssh = "b"
        rdma = { a = ["en5", "en6"] }
        [[host]]
        ssh = "c"
        rdma = ["en7", "", ""]
        "#,
    );
    assert_eq!((file.format, file.backend.as_deref()), (Format::Toml, Some("ring")));
    assert_eq!(file.env, [("A".into(), "1".into()), ("N".into(), "4".into())]);
    assert_eq!(file.hosts[0].env, [("ONLY".into(), "true".into())]);
    let devices = file.devices.expect("a matrix");
    assert_eq!(devices.rails(Rank(0), Rank(1)), ["en3", "en4"]);
    assert_eq!(devices.rails(Rank(2), Rank(0)), ["en7"]);
    assert!(devices.rails(Rank(1), Rank(2)).is_empty());
}

#[test]
fn formats_are_recognised_by_content() {
    let cases = [
        ("\n# x\n{\"hosts\"", Some(Format::Json)),
        ("[{", Some(Format::Json)),
        ("[\n{", Some(Format::Json)),
        ("[[\"10.0.0.1:1\"]]", Some(Format::Json)),
        ("# c\n[[host]]", Some(Format::Toml)),
        ("[env]", Some(Format::Toml)),
        ("backend = \"ring\"", Some(Format::Toml)),
        ("host=[]", Some(Format::Toml)),
        ("a slots=4", Some(Format::Text)),
        ("[::1]:4", Some(Format::Text)),
        ("a", Some(Format::Text)),
        ("10.0.0.1", Some(Format::Text)),
        ("#\n\n", None),
    ];
    for (text, format) in cases {
        assert_eq!(detect_format(text), format, "{text}");
    }
}

#[test]
fn errors_say_where_and_what_helps() {
    let cases = [
        ("", "1:1: the file names no host"),
        ("a\nb slots=0\n", "2:3: 0 slots; leave the host out"),
        ("a slots=x\n", "1:3: `x` is not a number of slots"),
        ("a slots=-1\n", "1:3: `-1` is not a number of slots"),
        ("a slot=4\n", "1:3: unknown key `slot`; did you mean `slots`?"),
        ("a b\n", "1:3: `b` is not understood after a host"),
        ("a:2 slots=2\n", "1:5: the slots are given twice"),
        ("\n  ^a\n", "2:3: `^` before a host has no meaning here"),
        ("ä slots=4 max-slots=2\n", "1:1: `ä` has 4 slots, and 2 at most"),
        ("-oProxyCommand=x\n", "1:1: a host's name can't begin with `-`"),
        ("a;reboot\n", "1:1: a host's name can't have ';' in it"),
        (r#"{"hosts": [{"ssh": "a", "slot": 2}]}"#, "1:30: unknown key `slot`; did you mean `slots`?"),
        ("{\"hosts\": [\n{\"ips\": []}]}", "2:11: a host without `ssh`"),
        (r#"{"backend": "jacl"}"#, "1:18: unknown backend `jacl`; did you mean `jaccl`?"),
        (r#"[{"ssh": "a"}, {"ssh": "a"}]"#, "1:28: `a` is there twice"),
        (r#"[{"ssh": "a", "ssh": "b"}]"#, "1:19: `ssh` is there twice"),
        (r#"[{"ssh": "a", "slots": 0}]"#, "1:24: 0 slots"),
        (
            r#"[{"ssh": "a", "slots": 1.5}]"#,
            "1:26: invalid type: floating point `1.5`, expected a whole number of slots",
        ),
        (r#"[{"ssh": 3}]"#, "1:10: invalid type: integer `3`, expected a host's name"),
        (r#"[["10.0.0.1:1"]]"#, "a file of addresses for MLX's ring names no hosts"),
        (r#"[{"ssh": "a", "ips": ["10.0.0.1:80"]}]"#, "`10.0.0.1:80` is not an address"),
        (r#"{"envs": ["A"]}"#, "`A` is not a variable with its value; write KEY=VALUE"),
        ("{\n\"hosts\": [}", "2:11: expected value; this was taken for MLX's JSON"),
        (r#"{"hosts": [{"ssh": "a"}]} x"#, "1:27: trailing characters"),
        ("[]", "the list of hosts is empty"),
        ("{}", "no `hosts`"),
        (
            r#"[{"ssh":"a","rdma":[null,"x"]},{"ssh":"b","rdma":["y",null,null]}]"#,
            "`b` has 3 entries in `rdma` for 2 hosts",
        ),
        (r#"[{"ssh":"a","rdma":[null,"x"]},{"ssh":"b"}]"#, "`b` has 0 entries in `rdma` for 2 hosts"),
        (
            r#"[{"ssh":"a","rdma":["x",null]},{"ssh":"b","rdma":[null,null]}]"#,
            "no cable leads from a rank to itself",
        ),
        ("[[host]]\nsssh = \"a\"", "2:1: unknown key `sssh`; did you mean `ssh`?"),
        ("[[host]]\nssh = \"a\"\nslots = 0", "3:9: 0 slots"),
        ("[[host]]\nssh = \"a\"\n[[host]]\nssh = \"a\"", "4:7: `a` is there twice"),
        ("[[host]]\nslots = 2", "1:1: a host without `ssh`"),
        ("[[host]]\nssh = \"a\"\nrdma = {b = \"x\"}", "3:9: no host `b` in this file; there is a"),
        ("[[host]]\nssh = a", "2:7: "),
        ("[env]\nA = \"1\"", "1:1: no host; add e.g. [[host]]"),
        ("hosts = []", "1:1: unknown key `hosts`; did you mean `host`?"),
        ("[[host]]\nssh = \"a\"\naddresses = \"10.0.0.1\"", "3:13: a text stands where a list of addresses"),
        (
            "[[host]]\nssh = \"a\"\nrdma = {b = \"x\"}\n[[host]]\nssh = \"b\"",
            "3:8: the device matrix has 1 cable(s)",
        ),
    ];
    for (text, told) in cases {
        let error = refused(text);
        assert!(error.contains(told), "{text}\nis told as: {error}\nand not as: {told}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = Hostfile::parse(b"a\nb\xff").expect_err("no text").to_string();
    assert!(error.starts_with("2:2: this byte is not UTF-8"), "{error}");
}

#[test]
fn names_of_hosts_stand_beside_the_rows_of_a_wrong_matrix() {
    let error = refused(r#"[{"ssh":"a","rdma":[null,"x"]},{"ssh":"b","rdma":[null,null]}]"#);
    assert!(error.contains("row 0, column 1") && error.contains("0 is `a`, 1 is `b`"), "{error}");
}

/// Writes a file as its format has it.
fn written(file: &Hostfile) -> String {
    match file.format {
        Format::Json => json(file),
        Format::Toml => toml(file),
        Format::Text => text(file),
    }
}

fn text(file: &Hostfile) -> String {
    let line = |host: &Host| {
        let slots = host.slots.map(|n| format!(" slots={n}")).unwrap_or_default();
        let most = host.max_slots.map(|n| format!(" max_slots={n}")).unwrap_or_default();
        format!("{}{slots}{most}\n", host.name)
    };
    file.hosts.iter().map(line).collect()
}

/// The row of a host.
fn rails(file: &Hostfile, host: usize) -> Option<Vec<Vec<String>>> {
    let to = 0..file.hosts.len();
    let row = |m: &DeviceMatrix| to.map(|to| m.rails(Rank(host as u32), Rank(to as u32)).to_vec()).collect();
    file.devices.as_ref().map(row)
}

fn json(file: &Hostfile) -> String {
    let host = |(at, host): (usize, &Host)| {
        let mut object = serde_json::json!({"ssh": host.name, "ips": host.addresses});
        for (key, number) in [("slots", host.slots), ("max_slots", host.max_slots)] {
            if let Some(number) = number {
                object[key] = number.into();
            }
        }
        if let Some(row) = rails(file, at) {
            object["rdma"] = row.into();
        }
        object
    };
    let hosts: Vec<_> = file.hosts.iter().enumerate().map(host).collect();
    let env: Vec<_> = file.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    serde_json::json!({"hosts": hosts, "backend": file.backend.as_deref().unwrap_or("ring"), "envs": env})
        .to_string()
}

fn toml(file: &Hostfile) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let table = |pairs: &[(String, String)]| {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| format!("{} = {}", quoted(k), quoted(v))).collect();
        format!("{{ {} }}", pairs.join(", "))
    };
    let mut out = format!(
        "backend = {}\nenv = {}\n",
        quoted(file.backend.as_deref().unwrap_or("ring")),
        table(&file.env)
    );
    for (at, host) in file.hosts.iter().enumerate() {
        out += &format!("[[host]]\nssh = {}\n", quoted(&host.name));
        let list: Vec<_> = host.addresses.iter().map(|text| quoted(text)).collect();
        out += &format!("addresses = [{}]\nenv = {}\n", list.join(", "), table(&host.env));
        for (key, number) in [("slots", host.slots), ("max_slots", host.max_slots)] {
            out += &number.map(|number| format!("{key} = {number}\n")).unwrap_or_default();
        }
        for (to, names) in rails(file, at).into_iter().flatten().enumerate() {
            let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
            out += &format!("rdma.{} = [{}]\n", quoted(&file.hosts[to].name), names.join(", "));
        }
    }
    out
}

fn any_host() -> impl Strategy<Value = Host> {
    let address = prop_oneof![
        "[a-z][a-z0-9-]{0,8}(\\.local)?",
        any::<core::net::IpAddr>().prop_map(|ip| ip.to_string())
    ];
    (
        "([a-z]{1,4}@)?[a-z][a-z0-9._-]{0,12}",
        proptest::collection::vec(address, 0..3),
        proptest::option::of((1u32..100, 0u32..5)),
        any::<bool>(),
        proptest::collection::btree_map("[A-Z_]{1,6}", "\\PC{0,8}", 0..3),
    )
        .prop_map(|(name, addresses, slots, limited, env)| Host {
            name,
            addresses,
            slots: slots.map(|(slots, _)| slots),
            max_slots: slots.filter(|_| limited).map(|(slots, more)| slots + more),
            env: env.into_iter().collect(),
        })
}

fn any_file() -> impl Strategy<Value = Hostfile> {
    let hosts = proptest::collection::vec(any_host(), 1..6);
    let format = prop_oneof![Just(Format::Json), Just(Format::Text), Just(Format::Toml)];
    let env = proptest::collection::btree_map("[A-Z_]{1,6}", "\\PC{0,8}", 0..3);
    (hosts, format, env, any::<u64>()).prop_map(|(mut hosts, format, env, wires)| {
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        hosts.dedup_by(|a, b| a.name == b.name);
        let n = hosts.len();
        let cables = |a: usize, b: usize| (wires >> (2 * (a.min(b) * 6 + a.max(b)) % 64) & 3) as usize;
        let cell = |a: usize, b: usize| {
            (0..if a == b { 0 } else { cables(a, b) }).map(|k| format!("en{a}_{b}_{k}")).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<_>> = (0..n).map(|a| (0..n).map(|b| cell(a, b)).collect()).collect();
        let has_cables = rows.iter().flatten().any(|names| !names.is_empty());
        let is_text = format == Format::Text;
        for host in &mut hosts {
            if is_text {
                host.addresses.clear();
            }
            if format != Format::Toml {
                host.env.clear();
            }
        }
        Hostfile {
            format,
            hosts,
            backend: (!is_text).then(|| "jaccl-ring".to_owned()),
            env: if is_text { Vec::new() } else { env.into_iter().collect() },
            devices: (!is_text && has_cables).then(|| DeviceMatrix::from_rows(rows).expect("a matrix")),
        }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(file in any_file()) {
        let text = written(&file);
        let read = Hostfile::parse(text.as_bytes()).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(read, file);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Hostfile::parse(&bytes);
    }

    #[test]
    fn nearly_good_files_make_no_panic_and_errors_lie_within(
        file in any_file(),
        at in any::<prop::sample::Index>(),
        new in "\\PC{0,3}",
    ) {
        let text = written(&file);
        let at = (0..=at.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let end = (at + 1..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
        let broken = format!("{}{new}{}", &text[..at], &text[end..]);
        if let Err(e) = Hostfile::parse(broken.as_bytes()) {
            prop_assert!(e.line <= broken.lines().count() + 1, "{} of\n{}", e, broken);
        }
    }
}
