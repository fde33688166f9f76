//! `tbccl bench`: output, errors and exit status.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

const COLLECTIVES: [&str; 6] =
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"];
const VECTORS: [&str; 5] = ["all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v", "all_to_all_v"];

/// Few runs: these tests check the report, not the speed.
const QUICK: [&str; 4] = ["-w", "1", "-n", "2"];

fn bench(args: &[&str]) -> Output {
    let mut command = support::tbccl();
    let output = command.arg("bench").args(args).stdin(Stdio::null()).output();
    output.expect("the program was built for this test")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows_of(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Returns the rows of a successful run without wrong elements.
fn rows(args: &[&str]) -> Vec<Value> {
    let output = bench(&[args, &QUICK, &["--json", "-"]].concat());
    assert!(output.status.success(), "{args:?}: {} {}", output.status, stderr(&output));
    let rows = rows_of(&output.stdout);
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
    }
    rows
}

fn numbers(rows: &[Value], key: &str) -> Vec<u64> {
    rows.iter().map(|row| row[key].as_u64().expect("a number")).collect()
}

/// Asserts that the command fails with a single error line that contains `says`.
fn refuses(args: &[&str], parts: &[&str]) {
    let output = bench(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for part in parts {
        assert!(message.contains(part), "{args:?}: no `{part}` in: {message}");
    }
}

#[test]
fn every_operation_is_right_on_any_number_of_ranks() {
    for op in COLLECTIVES {
        for ranks in ["1", "2", "3", "5", "8"] {
            let rows = rows(&[op, "--ranks", ranks, "-b", "4", "-e", "64K", "-f", "8"]);
            let unit = match op {
                "all_gather" | "reduce_scatter" | "all_to_all" => 4 * ranks.parse::<u64>().expect("digits"),
                _ => 4,
            };
            let sizes = [4u64, 32, 256, 2048, 16384].map(|size| size / unit * unit);
            let sizes: Vec<u64> = sizes.into_iter().filter(|size| *size > 0).collect();
            assert_eq!(numbers(&rows, "bytes"), sizes, "{op} on {ranks} ranks");
            for row in &rows {
                assert_eq!((&row["op"], &row["transport"]), (&op.into(), &"shm".into()));
                assert_eq!(row["ranks"].to_string(), ranks);
                let time = |key: &str| row[key].as_f64().expect("a time");
                assert!(0.0 < time("us_min") && time("us_min") <= time("us_median"), "{row}");
                assert!(time("us_median") <= time("us_p99"), "{row}");
                assert!(row["algo"].is_string() && row["copied_bytes"].is_u64(), "{row}");
            }
        }
    }
}

#[test]
fn blocks_of_unequal_lengths_are_right() {
    for op in VECTORS {
        for ranks in ["1", "2", "3", "5"] {
            let rows = rows(&[op, "--ranks", ranks, "-b", "40", "-e", "64K", "-f", "8", "-c", "6"]);
            assert!(rows.len() >= 3 && rows.iter().all(|row| row["op"] == op), "{rows:?}");
        }
    }
    let registered = rows(&["alltoallv", "--ranks", "3", "-b", "24", "-e", "64K", "--registered"]);
    assert!(registered.iter().all(|row| row["registered"] == 1), "{registered:?}");
}

#[test]
fn an_input_that_is_stored_to_before_each_run_is_right_and_the_rows_say_so() {
    for op in ["all_reduce", "all_gather", "reduce", "broadcast", "pingpong"] {
        let written = rows(&[op, "--ranks", "2", "-b", "8", "-e", "64K", "-f", "16", "--written"]);
        assert!(written.iter().all(|row| row["written"] == 1 && row["wrong"] == 0), "{written:?}");
    }
    let output = bench(&[&["broadcast", "--ranks", "2", "-e", "64", "--written"], &QUICK[..]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("# the input is stored to before each run, within the times\n"), "{text}");
}

#[test]
fn all_measures_every_operation_with_a_table_for_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    let file = path.to_str().expect("text");
    let sizes = ["all", "--ranks", "2", "-b", "64", "-e", "4K", "-f", "64", "-c", "4", "--json", file];
    let output = bench(&[&sizes, &QUICK[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.matches("# Out of bounds values : 0 OK\n").count(), 18, "{text}");
    let rows = rows_of(&std::fs::read(&path).expect("written"));
    let mut names: Vec<&str> = rows.iter().map(|row| row["op"].as_str().expect("a name")).collect();
    names.dedup();
    assert_eq!(names.len(), 18, "{names:?}");
    assert!(COLLECTIVES.iter().chain(&VECTORS).all(|op| names.contains(op)), "{names:?}");
    assert!(rows.iter().all(|row| row["wrong"] == 0), "{rows:?}");
}

#[test]
fn all_leaves_out_operations_that_the_arguments_do_not_suit() {
    let output = bench(&[&["all", "--ranks", "1", "-e", "64", "--in-place"], &QUICK[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["# pingpong: left out, it needs two ranks", "# gather_v: left out, it has no in-place form"]
    {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    refuses(&["all", "--ranks", "2", "--algo", "ring"], &["name one operation"]);
}

#[test]
fn options_of_nccl_tests_have_its_letters() {
    let by_bytes = rows(&["all_reduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-i", "1K"]);
    assert_eq!(numbers(&by_bytes, "bytes"), [1024, 2048, 3072, 4096]);
    for op in ["all_reduce", "broadcast", "scatter_v", "all_gather"] {
        let grouped = rows(&[op, "--ranks", "3", "-b", "60", "-e", "6K", "-f", "10", "-m", "5", "-T", "20"]);
        assert!(grouped.iter().all(|row| row["calls"] == 5), "{grouped:?}");
    }
    let in_place = rows(&["all_gather", "--ranks", "3", "-b", "48", "-e", "4K", "-m", "3", "--in-place"]);
    assert!(in_place.iter().all(|row| row["inplace"] == 1), "{in_place:?}");
    for (number, name) in [("0", "rank0"), ("1", "avg"), ("2", "min"), ("3", "max")] {
        let rows = rows(&["barrier", "--ranks", "2", "-a", number, "-C"]);
        assert_eq!(rows[0]["average"], name);
        assert_eq!(rows[0]["cpu_us"].as_array().map(Vec::len), Some(2), "{}", rows[0]);
        assert!(rows[0]["us_stddev"].is_number() && rows[0]["us_q1"].is_number(), "{}", rows[0]);
    }
    refuses(&["barrier", "--ranks", "2", "-m", "2"], &["-m 2", "can't be grouped"]);
    refuses(&["all_reduce", "--ranks", "2", "-m", "2", "--codec", "int8"], &["-m 2", "leave out --codec"]);
    refuses(&["all_reduce", "--ranks", "2", "-i", "0"], &["--step-bytes", "more than 0"]);
    refuses(&["all_reduce", "--ranks", "2", "-i", "4", "-f", "2"], &["cannot be used with"]);
    refuses(&["all_reduce", "--ranks", "2", "-a", "4"], &["3 (max)"]);
    refuses(&["all_reduce", "--ranks", "2", "-T", "0"], &["--timeout"]);
}

#[test]
fn without_checks_nothing_is_said_to_be_right() {
    let json = ["all_reduce", "--ranks", "2", "-e", "64", "-c", "0", "--json", "-"];
    let output = bench(&[&json, &QUICK[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    for row in rows_of(&output.stdout) {
        assert!(row["wrong"].is_null() && row["moved_bytes"].is_u64(), "{row}");
    }
    let output = bench(&[&["all_reduce", "--ranks", "2", "-e", "64", "-c", "0"], &QUICK[..]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("# Out of bounds values : not checked\n") && text.contains("N/A"), "{text}");
    assert_eq!(numbers(&rows(&["bcast", "--ranks", "2", "-e", "64", "-c", "1"]), "bytes"), [4, 16, 64]);
}

#[test]
fn columns_of_spread_and_processor_time_fit_a_line() {
    let args = ["all_reduce", "--ranks", "2", "-e", "1M", "-f", "64", "--spread"];
    let output = bench(&[&args, &QUICK[..]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("stddev") && text.contains("p99"), "{text}");
    let is_head_or_row =
        |line: &&str| line.starts_with("# ") && line.contains("time") || line.starts_with("  ");
    let widths: Vec<usize> =
        text.lines().filter(is_head_or_row).map(|line| line.trim_end_matches(" *").len()).collect();
    assert!(widths.len() >= 5 && widths.iter().all(|width| *width == widths[0]), "{text}");
    assert!(widths[0] <= 115, "{text}");
    let output = bench(&[&args[..7], &["-C"], &QUICK[..]].concat());
    assert!(String::from_utf8_lossy(&output.stdout).contains("cpu"), "{}", stderr(&output));
}

/// Runs `tbccl bench` as the ranks of a job of three.
fn run_in_job(args: &[&str], env: &[&str]) -> Output {
    let mut command = support::tbccl();
    command.args(["run", "-n", "3"]).args(env.iter().flat_map(|variable| ["-x", variable]));
    command.args(["--", env!("CARGO_BIN_EXE_tbccl"), "bench"]).args(args).stdin(Stdio::null());
    command.output().expect("it starts")
}

#[test]
fn in_a_job_it_is_one_of_the_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.json");
    let file = path.to_str().expect("text");
    for transport in ["shm", "rehearsal", "tcp"] {
        let sizes = ["all_reduce", "-e", "64K", "-f", "16", "--json", file, "--transport", transport];
        let output = run_in_job(&[&sizes[..], &QUICK].concat(), &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.matches("all_reduce on 3 ranks").count(), 1, "one table: {text}");
        let rows = rows_of(&std::fs::read(&path).expect("written"));
        assert_eq!(numbers(&rows, "bytes"), [4, 64, 1024, 16384]);
        assert!(rows.iter().all(|row| row["ranks"] == 3 && row["wrong"] == 0), "{rows:?}");
        assert!(rows.iter().all(|row| row["transport"] == transport), "{rows:?}");
    }
    let output = run_in_job(&["barrier", "--json", "-", "-n", "2"], &["TBCCL_TRANSPORT=rehearsal"]);
    assert_eq!(rows_of(&output.stdout)[0]["transport"], "rehearsal", "{}", stderr(&output));
}

#[test]
fn a_job_that_does_not_fit_is_refused_by_its_ranks() {
    for (args, parts) in [
        (&["barrier", "--ranks", "2"][..], "--ranks 2: this is a rank of a job of 3 ranks"),
        (&["barrier", "--transport", "verbs"], "/no/such/library.so"),
    ] {
        let output = run_in_job(args, &["TBCCL_VERBS_LIB=/no/such/library.so"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(parts), "{}", stderr(&output));
    }
}

#[test]
fn totals_are_lines_of_json_too() {
    let output = bench(&[&["barrier", "--ranks", "2", "--stats", "--json", "-"], &QUICK[..]].concat());
    let rows = rows_of(&output.stdout);
    assert_eq!(rows.len(), 3, "{rows:?}");
    for (rank, row) in rows[1..].iter().enumerate() {
        let stats = &row["stats"];
        assert_eq!((&stats["rank"], &stats["polls"]), (&rank.into(), &0.into()), "{row}");
        assert!(stats["sent_messages"].as_u64() > Some(0) && stats["cpu_us"].as_u64() > Some(0), "{row}");
        assert_eq!(stats["batches"].as_array().map(Vec::len), Some(16), "{row}");
    }
}

#[test]
fn barrier_and_pingpong_have_rows_of_their_own() {
    let barrier = rows(&["barrier", "--ranks", "3"]);
    assert_eq!(numbers(&barrier, "bytes"), [0]);
    let pingpong = rows(&["ping-pong", "--ranks", "3", "-b", "8", "-e", "8K", "-f", "32"]);
    assert_eq!(numbers(&pingpong, "bytes"), [8, 256, 8192]);
    assert!(pingpong.iter().all(|row| row["op"] == "ping-pong" && row["algo"] == "message"));
}

#[test]
fn every_type_with_every_operation_is_right() {
    for op in COLLECTIVES {
        let pairs = if op.contains("reduce") { 96 } else { 14 };
        for (ranks, transport) in [("2", "shm"), ("3", "shm"), ("5", "local")] {
            let all = ["-d", "all", "-o", "all", "-b", "4K", "-e", "4K", "--transport", transport];
            let rows = rows(&[&[op, "--ranks", ranks], &all[..]].concat());
            assert_eq!(rows.len(), pairs, "{op} on {ranks} ranks");
            assert!(rows.iter().all(|row| row["transport"] == transport));
        }
    }
}

#[test]
fn in_place_forms_are_right() {
    for op in &COLLECTIVES[..4] {
        let rows = rows(&[op, "--ranks", "3", "-b", "64", "-e", "256K", "-f", "64", "--in-place"]);
        assert!(rows.len() == 3 && rows.iter().all(|row| row["inplace"] == 1), "{op}");
    }
}

#[test]
fn registered_memory_is_never_copied_from_4_kib_on() {
    for op in COLLECTIVES {
        for ranks in ["2", "3", "4", "5"] {
            let rows = rows(&[op, "--ranks", ranks, "-b", "5000", "-e", "512K", "-f", "10", "--registered"]);
            let sizes = numbers(&rows, "bytes");
            assert!(sizes.len() == 3 && sizes.iter().all(|size| *size >= 4096), "{sizes:?}");
            assert_eq!(numbers(&rows, "copied_bytes"), [0, 0, 0], "{op} on {ranks} ranks");
        }
    }
}

#[test]
fn the_algorithm_asked_for_is_taken() {
    for algorithm in ["ring", "mesh", "double_binary_tree"] {
        let rows = rows(&["allreduce", "--ranks", "3", "-e", "4K", "--algo", algorithm, "--segments", "2"]);
        assert!(rows.iter().all(|row| row["algo"] == algorithm && row["segments"] == 2));
    }
    let rows = rows(&["bcast", "--ranks", "3", "-e", "4K", "--algo", "chain", "-r", "2"]);
    assert!(rows.iter().all(|row| row["algo"] == "chain" && row["op"] == "bcast"));
}

#[test]
fn the_table_has_both_forms_and_a_verdict() {
    let args = [&["all_reduce", "--ranks", "2", "-e", "64", "--stats"], &QUICK[..]].concat();
    let output = bench(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["on 2 ranks", "transport shm", "out-of-place", "in-place", "#wrong", "busbw"] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let columns: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(columns[..5], ["64", "16", "float32", "sum", "-1"]);
    assert_eq!((columns.len(), columns[8], columns[12]), (13, "0", "0"), "{}", lines[2]);
    assert!(text.contains("# Out of bounds values : 0 OK\n"), "{text}");
    assert!(text.contains("cpu (s)"), "{text}");
}

#[test]
fn between_processes_of_a_host_the_distance_of_the_cores_is_told() {
    let near = rows(&["all_reduce", "--ranks", "2", "-b", "4", "-e", "4", "--transport", "shm"]);
    let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    assert_eq!(near[0]["hop_us"].as_f64().is_some_and(|hop_us| hop_us > 0.0), has_cores, "{}", near[0]);
    let over_tcp = rows(&["all_reduce", "--ranks", "2", "-b", "4", "-e", "4", "--transport", "tcp"]);
    assert!(over_tcp[0]["hop_us"].is_null(), "{}", over_tcp[0]);
    let table = bench(&[&["barrier", "--ranks", "2", "--transport", "shm"], &QUICK[..]].concat());
    assert_eq!(String::from_utf8_lossy(&table.stdout).contains("# 8 bytes take 0."), has_cores);
    refuses(&["barrier", "--ranks", "2", "--tries", "0"], &["--tries"]);
}

#[test]
fn json_goes_to_a_file_besides_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.json");
    std::fs::write(&path, "old\n").expect("a file");
    let file = path.to_str().expect("text");
    let args = [&["all_gather", "--ranks", "2", "-e", "1K", "--json", file], &QUICK[..]].concat();
    let output = bench(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Avg bus bandwidth"));
    let rows = rows_of(&std::fs::read(&path).expect("written"));
    assert_eq!(numbers(&rows, "bytes"), [16, 64, 256, 1024]);
}

#[test]
fn names_that_nothing_has_are_refused_with_a_suggestion() {
    refuses(&["al_reduce", "--ranks", "2"], &["did you mean `all_reduce`?"]);
    refuses(&["all_reduce", "--ranks", "2", "-d", "float23"], &["did you mean `float32`?"]);
    refuses(&["all_reduce", "--ranks", "2", "-o", "summ"], &["did you mean `sum`?"]);
    refuses(&["all_reduce", "--ranks", "2", "--algo", "rign"], &["did you mean `ring`?"]);
    refuses(&["broadcast", "--ranks", "2", "--algo", "ring"], &["binomial, chain"]);
    refuses(&["all_reduce", "--ranks", "2", "--transport", "shn"], &["did you mean `shm`?"]);
    refuses(&["all_reduce", "--ranks", "2", "-b", "4Q"], &["unknown size suffix", "K, M, G, T"]);
    refuses(&["all_reduce", "--ranks", "2", "--segment", "2"], &["'--segments'"]);
}

#[test]
fn arguments_that_do_not_fit_together_are_refused() {
    refuses(&["all_reduce", "--ranks", "0"], &["at least one rank"]);
    refuses(&["all_reduce"], &["--ranks"]);
    refuses(&["all_reduce", "--ranks", "9999"], &["up to 4096 ranks"]);
    refuses(&["all_reduce", "--ranks", "2", "-n", "0"], &["'0'", "--iterations"]);
    refuses(&["all_reduce", "--ranks", "2", "-n", "5", "--time", "1"], &["cannot be used with"]);
    refuses(&["all_reduce", "--ranks", "2", "-b", "1M", "-e", "1K"], &["larger than -e"]);
    refuses(&["all_reduce", "--ranks", "2", "-f", "1"], &["--factor"]);
    refuses(&["broadcast", "--ranks", "2", "-r", "2"], &["-r 2", "0..=1"]);
    refuses(&["all_reduce", "--ranks", "2", "-o", "band"], &["band is not defined for f32", "i8, i16"]);
    refuses(&["all_to_all", "--ranks", "2", "--in-place"], &["no in-place form"]);
    refuses(&["pingpong", "--ranks", "1"], &["--ranks 2"]);
    refuses(&["all_gather", "--ranks", "4", "-e", "8"], &["16 bytes"]);
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_machine_does_not_allow_is_refused_in_one_line() {
    refuses(&["all_reduce", "--ranks", "2", "-e", "1T"], &["4 TiB", "lower -e or --ranks"]);
    refuses(&["all_reduce", "--ranks", "2", "--json", "/nowhere/x"], &["--json /nowhere/x", "No such file"]);
    refuses(&["all_reduce", "--ranks", "2", "--json", "/"], &["can't be written"]);
    let output = bench(&["all_reduce", "--ranks", "2", "-e", "1K", "--json", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn limits_that_are_too_low_are_said_once_and_not_by_every_rank() {
    for (limit, remedy) in [("-f 100", "ulimit -f"), ("-v 8000000", "ulimit -v"), ("-n 8", "ulimit -n")] {
        let line = format!("ulimit {limit} && exec \"$0\" bench all_reduce --ranks 4 -e 64");
        let output = Command::new("/bin/sh").args(["-c", &line, env!("CARGO_BIN_EXE_tbccl")]).output();
        let output = output.expect("a shell");
        assert_eq!(output.status.code(), Some(2), "{limit}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{limit}: {}", stderr(&output));
        assert!(stderr(&output).contains(remedy), "{limit}: {}", stderr(&output));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_death_of_a_rank_is_told_and_passed_on() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::time::{Duration, Instant};
    let mut command = support::tbccl();
    command.args(["bench", "all_reduce", "--ranks", "3", "-b", "16M", "-e", "16M", "--time", "60"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    let ranks = loop {
        // The launcher's child is the keeper of its agent, which has started the ranks.
        let agents = support::children_of(child.id()).into_iter().flat_map(support::children_of);
        let ranks: Vec<u32> = agents.flat_map(support::children_of).collect();
        if ranks.len() == 3 {
            break ranks;
        }
        assert!(Instant::now() < deadline, "only {} ranks", ranks.len());
        std::thread::sleep(Duration::from_millis(10));
    };
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_raw(ranks[1] as i32).expect("a process"), Signal::KILL).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(137));
    let message = stderr(&output);
    let death = format!("rank 1 (pid {}) was killed by SIGKILL; ending the other 2 ranks", ranks[1]);
    for part in [&death, "killed by SIGKILL [rank 0 in ", "killed by SIGKILL [rank 2 in "] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}
