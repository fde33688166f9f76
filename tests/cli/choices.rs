//! Choice of algorithms by the ranks' hosts and by a model. `tbccl bench` checks every element of the
//! results.

use serde_json::Value;
use std::{
    path::Path,
    process::{Output, Stdio},
};

/// Runs `tbccl bench` as the ranks of a job, with the environment `vars`, which a shell evaluates on each
/// rank. There are more cores than ranks unless `vars` sets TBCCL_CORES.
fn job(ranks: u32, vars: &str, bench: &[&str]) -> Output {
    let script = format!("TBCCL_CORES=64 {vars} exec \"$0\" bench \"$@\"");
    let mut command = support::tbccl();
    command.args(["run", "-n", &ranks.to_string(), "--", "/bin/sh", "-c", &script]);
    command.arg(env!("CARGO_BIN_EXE_tbccl")).args(bench).args(["-n", "2", "-w", "1", "--json", "-"]);
    command.stdin(Stdio::null()).output().expect("it starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the algorithms of all rows of a successful job.
fn algorithms(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", stderr(output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert!(!rows.is_empty(), "{}", stderr(output));
    assert!(rows.iter().all(|row| row["wrong"] == 0), "{text}");
    let name = |row: &Value| row["algo"].as_str().unwrap_or_else(|| panic!("no name in {row}")).to_owned();
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
        // Three ranks send three blocks to the single rank of the other host, with either algorithm.
        let gathers = if host.contains('+') { "direct" } else { "hierarchical" };
        assert_eq!(of("all_gather"), ["direct", gathers], "{ranks}, {host}");
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
fn ranks_of_one_host_that_has_fewer_cores_send_fewer_messages() {
    let of = |vars, collective| algorithms(&job(4, vars, &bench(collective)));
    assert_eq!(of("", "all_reduce"), ["mesh", "rsag_mesh"]);
    assert_eq!(of("TBCCL_CORES=3", "all_reduce"), ["mesh", "reduce_broadcast"]);
    assert_eq!(of("TBCCL_CORES=3", "reduce_scatter"), ["pairwise", "pairwise"]);
    assert_eq!(of("TBCCL_CORES=4", "reduce_scatter"), ["direct", "direct"]);
    // TBCCL_ALGO takes precedence, and an order of summation that a plan can't keep excludes it.
    assert_eq!(of("TBCCL_CORES=3 TBCCL_ALGO=^reduce_broadcast", "all_reduce")[1], "rsag_mesh");
    assert_eq!(of("TBCCL_CORES=3 TBCCL_ALGO=ring", "all_reduce"), ["ring", "ring"]);
    let two_hosts = "TBCCL_CORES=3 TBCCL_TRANSPORT=shm+tcp TBCCL_HOST_ID=h$((TBCCL_RANK / 2))";
    assert_eq!(of(two_hosts, "all_reduce"), ["mesh", "hierarchical"], "their cores are not the same");
}

/// Ranks that share cores chose as ranks on cores of their own.
#[test]
fn ranks_that_share_cores_send_the_fewest_messages_over_tcp() {
    let of = |vars, collective| algorithms(&job(4, vars, &bench(collective)));
    assert_eq!(of("TBCCL_TRANSPORT=tcp TBCCL_CORES=3", "all_reduce"), ["reduce_broadcast"; 2]);
    assert_eq!(of("TBCCL_TRANSPORT=tcp TBCCL_CORES=3", "all_gather"), ["pat", "ring"]);
    assert_eq!(of("TBCCL_TRANSPORT=tcp TBCCL_CORES=4", "all_reduce"), ["mesh", "rsag_mesh"]);
}

#[test]
fn ranks_that_count_other_cores_are_told_so() {
    let output = job(2, "TBCCL_CORES=$((TBCCL_RANK + 1))", &["barrier"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("TBCCL_CORES"), "{}", stderr(&output));
}

#[test]
fn sums_in_the_same_order_are_not_taken_apart_by_hosts() {
    let vars = "TBCCL_NUMERICS=reproducible TBCCL_TRANSPORT=shm+tcp TBCCL_HOST_ID=h$((TBCCL_RANK / 2))";
    assert_eq!(algorithms(&job(4, vars, &bench("all_reduce"))), ["mesh", "rsag_mesh"]);
    assert_eq!(algorithms(&job(4, vars, &bench("all_gather"))), ["direct", "hierarchical"]);
}

/// Writes a model file: a ring of `hosts` hosts with cables.
fn model(folder: &Path, name: &str, hosts: u32) -> String {
    let path = folder.join(name);
    let link = "link = { latency_us = 5.0, bandwidth_gbps = 75.0 }";
    std::fs::write(&path, format!("shape = \"ring\"\nhosts = {hosts}\n{link}\n")).expect("our folder");
    path.to_str().expect("text").to_owned()
}

#[test]
fn what_a_model_says_is_taken_by_all_ranks_of_a_job() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = model(folder.path(), "ring.toml", 5);
    let large = ["all_reduce", "-b", "1M", "-e", "1M"];
    let output = job(5, &format!("TBCCL_MODEL={path}"), &large);
    assert_eq!(algorithms(&output), ["bidirectional_ring"], "the ring's, not that of shared memory");
    assert_eq!(stderr(&output), "");
    assert_eq!(algorithms(&job(5, "", &large)), ["rsag_mesh"]);
}

#[test]
fn models_that_differ_between_ranks_are_an_error_that_names_the_variable() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for hosts in [5, 6] {
        model(folder.path(), &format!("{}.toml", hosts - 5), hosts);
    }
    let vars = format!("TBCCL_MODEL={}/$((TBCCL_RANK / 2)).toml", folder.path().display());
    let output = job(3, &vars, &["barrier"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("TBCCL_MODEL"), "{}", stderr(&output));
    // Another file with the same numbers is the same model.
    let copy = folder.path().join("1.toml");
    std::fs::copy(folder.path().join("0.toml"), copy).expect("our folder");
    assert!(job(3, &vars, &["barrier"]).status.success());
}

#[test]
fn a_model_that_is_not_there_is_an_error_that_names_file_and_variable() {
    let output = job(2, "TBCCL_MODEL=/no/such/model.toml", &["barrier"]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("TBCCL_MODEL") && errors.contains("/no/such/model.toml"), "{errors}");
}

#[test]
fn a_model_of_fewer_ranks_is_warned_of_once_and_thresholds_decide() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = model(folder.path(), "small.toml", 3);
    let output = job(4, &format!("TBCCL_MODEL={path}"), &["all_reduce", "-b", "1M", "-e", "1M"]);
    assert_eq!(algorithms(&output), ["rsag_mesh"]);
    let errors = stderr(&output);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.contains("warning: the model is not used: the model has 3 ranks and the call 4"),
        "{errors}"
    );
}
