//! Compares sizes, offsets and constants with the C header that programs are compiled with.

use std::{collections::BTreeMap, fmt::Write, mem::offset_of, process::Command};
use verbs_sys::{ENUMS, LAYOUTS, SYSFS_NAME_MAX, SYSFS_PATH_MAX, SendWr};

/// Constants that older headers lack.
const NEWER: [&str; 3] = ["IBV_WR_FLUSH", "IBV_WR_ATOMIC_WRITE", "IBV_WC_ATOMIC_WRITE"];

/// Returns C expressions and their expected values.
fn expectations() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for layout in LAYOUTS.into_iter().flatten() {
        all.insert(format!("sizeof({})", layout.c_type), layout.size as u64);
        for (field, offset) in layout.fields {
            let field = field.trim_start_matches("r#");
            all.insert(format!("offsetof({}, {field})", layout.c_type), *offset as u64);
        }
    }
    for (prefix, names) in ENUMS.into_iter().flatten() {
        for (name, number) in *names {
            // A Rust name can't begin with a digit.
            let name = format!("{prefix}{name}").replace("IBV_MTU_B", "IBV_MTU_");
            if !NEWER.contains(&name.as_str()) {
                all.insert(name, u64::from(*number));
            }
        }
    }
    let members = [
        ("wr.rdma.remote_addr", offset_of!(SendWr, wr.rdma.remote_addr)),
        ("wr.rdma.rkey", offset_of!(SendWr, wr.rdma.rkey)),
        ("wr.atomic.remote_addr", offset_of!(SendWr, wr.atomic.remote_addr)),
        ("wr.atomic.compare_add", offset_of!(SendWr, wr.atomic.compare_add)),
        ("wr.atomic.swap", offset_of!(SendWr, wr.atomic.swap)),
        ("wr.atomic.rkey", offset_of!(SendWr, wr.atomic.rkey)),
        ("wr.ud.ah", offset_of!(SendWr, wr.ud.ah)),
        ("wr.ud.remote_qpn", offset_of!(SendWr, wr.ud.remote_qpn)),
        ("wr.ud.remote_qkey", offset_of!(SendWr, wr.ud.remote_qkey)),
        ("qp_type.xrc.remote_srqn", offset_of!(SendWr, qp_type.remote_srqn)),
        ("bind_mw.mw", offset_of!(SendWr, bind_mw.bind_mw.mw)),
        ("bind_mw.rkey", offset_of!(SendWr, bind_mw.bind_mw.rkey)),
        ("bind_mw.bind_info", offset_of!(SendWr, bind_mw.bind_mw.bind_info)),
        ("tso.hdr", offset_of!(SendWr, bind_mw.tso.hdr)),
        ("tso.hdr_sz", offset_of!(SendWr, bind_mw.tso.hdr_sz)),
        ("tso.mss", offset_of!(SendWr, bind_mw.tso.mss)),
    ];
    for (member, offset) in members {
        all.insert(format!("offsetof(struct ibv_send_wr, {member})"), offset as u64);
    }
    all.insert("IBV_SYSFS_NAME_MAX".to_owned(), SYSFS_NAME_MAX as u64);
    all.insert("IBV_SYSFS_PATH_MAX".to_owned(), SYSFS_PATH_MAX as u64);
    all
}

/// Returns a C program that prints one line for each expression.
fn probe(expressions: impl Iterator<Item = String>) -> String {
    let mut program =
        "#include <stdio.h>\n#include <stdint.h>\n#include <infiniband/verbs.h>\nint main(void) {\n"
            .to_owned();
    for expression in expressions {
        // Negative enumerators are compared as their 32 stored bits.
        let value = if expression.starts_with("IBV_") { "(uint32_t)" } else { "" };
        writeln!(program, "printf(\"%llu {expression}\\n\", (unsigned long long){value}({expression}));")
            .expect("a string takes it");
    }
    program.push_str("return 0; }\n");
    program
}

/// Runs a command and returns its standard output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn has_header() -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("has.c");
    std::fs::write(&source, "#include <infiniband/verbs.h>\n").expect("writable");
    let compiler = Command::new("cc").arg("-fsyntax-only").arg(&source).output().expect("a C compiler");
    compiler.status.success()
}

#[test]
fn everything_is_as_in_the_c_header() {
    // On macOS only newer SDKs have the header, and none can be installed.
    if !has_header() && cfg!(target_os = "macos") {
        return;
    }
    assert!(has_header(), "no infiniband/verbs.h: install libibverbs-dev, or run tools/install-missing");
    let expected = expectations();
    assert!(expected.len() > 500, "only {} expectations", expected.len());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("probe.c"), folder.path().join("probe"));
    std::fs::write(&source, probe(expected.keys().cloned())).expect("writable");
    output(Command::new("cc").args(["-w", "-O0", "-o"]).arg(&program).arg(&source));
    let found = output(&mut Command::new(&program));
    let mut wrong = Vec::new();
    let mut lines = 0;
    for line in found.lines() {
        let (value, expression) = line.split_once(' ').expect("a value and an expression");
        let ours = expected[expression];
        if value.parse() != Ok(ours) {
            wrong.push(format!("{expression} is {value} in C, {ours} here"));
        }
        lines += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(lines, expected.len());
}
