//! `tbccl bench --compare-transports`: namespaces, sockets, ranks over TCP, and ranks on software devices.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Returns the missing requirement, if there is one.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can surely make network namespaces");
    }
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let is_there = |program: &str| folders.iter().any(|folder| Path::new(folder).join(program).exists());
    let missing = ["ip", "tc", "unshare", "nsenter"].into_iter().find(|program| !is_there(program));
    missing.map(|_| "ip, tc, unshare or nsenter is missing; run tools/install-missing test")
}

/// Returns the processes that have this text in their environment.
fn processes_with(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let environment = |process: &std::fs::DirEntry| std::fs::read(process.path().join("environ"));
    let has_mark = |process: &std::fs::DirEntry| {
        environment(process).is_ok_and(|text| String::from_utf8_lossy(&text).contains(mark))
    };
    processes.filter(has_mark).map(|process| process.path().display().to_string()).collect()
}

fn compare(options: &[&str]) -> (Option<i32>, String, String) {
    let mut command = support::tbccl_with_software_device();
    command.args(["bench", "--compare-transports"]).args(options).env("TBCCL_CALIBRATE", "0");
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

#[test]
fn all_sizes_are_measured_over_a_cable_whose_time_every_value_has() {
    if let Some(why) = obstacle() {
        support::missing(why);
        return;
    }
    // A cable so slow that its time exceeds all others, and so is seen in each value.
    let options = ["--cable-latency", "20000", "--rounds", "1", "--round-time", "0.01"];
    let (status, text, errors) = compare(&options);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{text}");
    let numbers = |line: &str| line.split_whitespace().map(str::parse::<f64>).collect::<Result<Vec<_>, _>>();
    let rows: Vec<Vec<f64>> = text.lines().filter_map(|line| numbers(line).ok()).collect();
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0], "{text}");
    for row in &rows {
        let [_, sockets, tcp, rdma, to_sockets, to_tcp] = row[..] else { panic!("six columns: {text}") };
        assert!(sockets >= 20000.0 && tcp >= 20000.0 && rdma >= 20000.0, "{text}");
        assert!((sockets / rdma - to_sockets).abs() < 0.01 && (tcp / rdma - to_tcp).abs() < 0.01, "{text}");
    }
    assert!(text.contains("poll every 10 us"), "{text}");
}

/// Namespaces without a name end with their processes.
#[test]
fn no_process_is_left_in_a_namespace_after_an_error() {
    if let Some(why) = obstacle() {
        support::missing(why);
        return;
    }
    let mark = format!("TBCCL_TEST_MARK=transports-{}", std::process::id());
    let (name, value) = mark.split_once('=').expect("a variable");
    let mut command = Command::new(crate::TBCCL);
    command.args(["bench", "--compare-transports", "--rounds", "1", "--round-time", "0.01"]);
    // Ranks over RDMA, which come last, find no software device.
    command.env(name, value).env("SOFTRDMA_LIB", "/no/such/library");
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("ranks over RDMA: "), "{errors}");
    assert_eq!(processes_with(&mark), Vec::<String>::new());
}

#[test]
fn options_of_a_measurement_contradict_a_comparison_of_transports() {
    let output = Command::new(crate::TBCCL).args(["bench", "all_reduce", "--compare-transports"]).output();
    assert_eq!(output.expect("it starts").status.code(), Some(2));
}
