//! What jobs choose by: where their ranks are. Every element of a result is checked by
//! `tbccl bench`.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// `tbccl bench` as the ranks of a job, each with what the shell makes of `vars`.
fn job(ranks: u32, vars: &str, bench: &[&str]) -> Output {
    let script = format!("{vars} exec \"$0\" bench \"$@\"");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tbccl"));
    command.args(["run", "-n", &ranks.to_string(), "--", "/bin/sh", "-c", &script]);
    command.arg(env!("CARGO_BIN_EXE_tbccl")).args(bench).args(["-n", "2", "-w", "1", "--json", "-"]);
    command.stdin(Stdio::null()).output().expect("it starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The algorithms of all rows of a job that went well.
fn algorithms(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", stderr(output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert!(!rows.is_empty(), "{}", stderr(output));
    assert!(rows.iter().all(|row| row["wrong"] == 0), "{text}");
    let name =
        |row: &Value| row["algorithm"].as_str().unwrap_or_else(|| panic!("no name in {row}")).to_owned();
    rows.iter().map(name).collect()
}

const SMALL_AND_LARGE: [&str; 6] = ["-b", "1K", "-e", "1M", "-f", "1024"];

fn bench(collective: &'static str) -> Vec<&'static str> {
    [&[collective][..], &SMALL_AND_LARGE].concat()
}

#[test]
fn ranks_of_two_hosts_go_within_them_first_where_much_is_sent() {
    for (ranks, host) in
        [(4, "TBCCL_RANK / 2"), (4, "TBCCL_RANK % 2"), (4, "(TBCCL_RANK + 2) / 3"), (5, "TBCCL_RANK / 3")]
    {
        let vars = format!("TBCCL_TRANSPORT=shm+tcp TBCCL_HOST_ID=h$(({host}))");
        let of = |collective| algorithms(&job(ranks, &vars, &bench(collective)));
        assert_eq!(of("all_reduce"), ["mesh", "hierarchical"], "{ranks}, {host}");
        assert_eq!(of("all_gather"), ["direct", "hierarchical"], "{ranks}, {host}");
    }
}

#[test]
fn hosts_of_one_rank_and_one_host_of_all_choose_as_ever() {
    for host in ["TBCCL_RANK", "0"] {
        let vars = format!("TBCCL_TRANSPORT=shm+tcp TBCCL_HOST_ID=h$(({host}))");
        assert_eq!(algorithms(&job(3, &vars, &bench("all_reduce"))), ["mesh", "rsag_mesh"], "{host}");
    }
}

#[test]
fn sums_in_the_same_order_are_not_taken_apart_by_hosts() {
    let vars = "TBCCL_NUMERICS=reproducible TBCCL_TRANSPORT=shm+tcp TBCCL_HOST_ID=h$((TBCCL_RANK / 2))";
    assert_eq!(algorithms(&job(4, vars, &bench("all_reduce"))), ["mesh", "rsag_mesh"]);
    assert_eq!(algorithms(&job(4, vars, &bench("all_gather"))), ["direct", "hierarchical"]);
}
