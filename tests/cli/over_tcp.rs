//! Every collective over TCP between processes, with all kinds of connections.

use std::process::Stdio;

const OPERATIONS: [&str; 8] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send_recv",
    "barrier",
    "pingpong",
];

/// Runs all operations between ranks with these variables, and checks every element.
fn check_all(ranks: u32, env: &[(&str, &str)]) {
    check_all_over("tcp", ranks, env);
}

fn check_all_over(transport: &str, ranks: u32, env: &[(&str, &str)]) {
    for operation in OPERATIONS.into_iter().filter(|name| *name != "pingpong" || ranks == 2) {
        let ranks = ranks.to_string();
        let mut command = support::tbccl();
        command.args(["bench", operation, "--ranks", &ranks, "--transport", transport]);
        command.args(["-b", "4", "-e", "3M", "-f", "27", "-n", "3", "--json", "-"]);
        let output = command.envs(env.iter().copied()).stdin(Stdio::null()).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{operation} between {ranks}, {env:?}: {errors}");
        assert_eq!(errors, "", "{operation} between {ranks}, {env:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        let sizes = if operation == "barrier" { 1 } else { 4 };
        assert!(rows.len() >= sizes, "{operation} between {ranks}, {env:?}: {text}");
        for row in rows {
            assert_eq!((&row["wrong"], &row["transport"]), (&0.into(), &transport.into()), "{row}");
        }
    }
}

#[test]
fn every_collective_is_right_on_plain_connections() {
    [2, 3, 5].into_iter().for_each(|ranks| check_all(ranks, &[]));
}

#[test]
fn every_collective_is_right_on_encrypted_connections() {
    [2, 4].into_iter().for_each(|ranks| check_all(ranks, &[("TBCCL_SECURITY", "encrypt")]));
}

#[test]
fn every_collective_is_right_on_several_connections_side_by_side() {
    check_all(3, &[("TBCCL_TCP_SOCKETS", "4"), ("TBCCL_INTERFACE", "::1")]);
    check_all(2, &[("TBCCL_TCP_SOCKETS", "2"), ("TBCCL_SECURITY", "encrypt")]);
}

#[test]
fn every_collective_is_right_by_shared_memory_in_a_job_that_may_have_other_hosts() {
    [2, 4].into_iter().for_each(|ranks| check_all_over("shm+tcp", ranks, &[]));
}

#[test]
fn an_interface_that_is_not_there_is_one_line_that_names_it() {
    let mut command = support::tbccl();
    command.args(["bench", "barrier", "--ranks", "2", "--transport", "tcp"]);
    let output = command.env("TBCCL_INTERFACE", "nowhere7").stdin(Stdio::null()).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("nowhere7") && errors.contains("TBCCL_INTERFACE"), "{errors}");
}
