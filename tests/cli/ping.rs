//! `tbccl ping` over shared memory, and over the rails of software RDMA devices.

use crate::TBCCL;
use serde_json::Value;

use std::process::{Output, Stdio};

const QUICK: [&str; 4] = ["--time", "0.02", "--size", "256K"];

fn ping(arguments: &[&str]) -> Output {
    let mut tbccl = support::tbccl();
    tbccl.env_remove("TBCCL_VERBS_LIB").arg("ping").args(arguments).stdin(Stdio::null());
    tbccl.output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

#[test]
fn every_pair_is_measured_in_both_directions() {
    let output = ping(&[&["--ranks", "3", "--json"], &QUICK[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows(&output);
    let pairs: Vec<(u64, u64)> = rows
        .iter()
        .map(|row| (row["from"].as_u64().expect("a rank"), row["to"].as_u64().expect("a rank")))
        .collect();
    assert_eq!(pairs, [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]);
    for row in &rows {
        assert!(0.0 < number(row, "us_min") && number(row, "us_min") <= number(row, "us_median"), "{row}");
        assert!(number(row, "us_median") <= number(row, "us_p99") && number(row, "gigabits") > 0.0, "{row}");
        assert_eq!(
            (&row["transport"], &row["bytes"], &row["slow"]),
            (&"shm".into(), &262_144.into(), &false.into())
        );
        assert!(row["rate"].is_null() && row["device"].is_null() && row["us_expected"].is_null(), "{row}");
    }
}

#[test]
fn the_table_has_a_line_for_each() {
    let output = ping(&[&["--ranks", "2"], &QUICK[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let lines: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert_eq!(lines[1].split_whitespace().take(3).collect::<Vec<_>>(), ["1", "0", "-"]);
    assert!(table.starts_with("# ping between 2 ranks over shm"), "{table}");
}

#[test]
fn what_can_not_be_is_refused_in_one_line() {
    for (arguments, expected) in [
        (&[][..], "use --ranks N, or start this in a job, as in: tbccl run -n 4 -- tbccl ping"),
        (&["--ranks", "1"], "between two ranks; use --ranks 2 or more"),
        (&["--ranks", "2", "--size", "0"], "from 1 to 256M"),
        (&["--ranks", "2", "--transport", "verb"], "did you mean `verbs`?"),
    ] {
        let output = ping(arguments);
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.starts_with("tbccl: error: ") && message.contains(expected), "{message}");
    }
}

#[cfg(target_os = "linux")]
mod on_a_fabric {
    use super::*;
    use support::tbccl_with_software_device as tbccl;

    /// Runs a command as the ranks of a fabric with two nodes and two cables.
    fn run_on(fabric: &str, command: &[&str]) -> Output {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("fabric.toml");
        std::fs::write(&file, fabric).expect("writable");
        let mut tbccl = tbccl();
        tbccl.args(["fabric", "run", "--timeout", "60", "--transport", "verbs"]).arg("--dir");
        tbccl.arg(folder.path().join("shared")).arg("--fabric").arg(&file).arg("--").args(command);
        tbccl.output().expect("it starts")
    }

    fn two_cables(profile: &str, second: &str) -> String {
        format!(
            "profile = '{profile}'
            [[node]]
            name = 'a'
            device = [{{ name = 'en2' }}, {{ name = 'en3' }}]
            [[node]]
            name = 'b'
            device = [{{ name = 'en4' }}, {{ name = 'en5' }}]
            [[cable]]
            ends = ['a/en2', 'b/en5']
            [[cable]]
            name = 'second'
            ends = ['a/en3', 'b/en4']
            {second}"
        )
    }

    #[test]
    fn each_rail_is_measured_by_itself_and_all_together() {
        // A measurement on the wrong rail would show figures of the slow cable on the fast one.
        for profile in ["apple-tb5", "usb4"] {
            let fabric = two_cables(profile, "latency_us = 10000.0\nbandwidth_gbps = 0.05");
            let output = run_on(&fabric, &[&[TBCCL, "ping", "--json"], &QUICK[..]].concat());
            assert!(output.status.success(), "{}", text(&output.stderr));
            let rows = rows(&output);
            let name = |row: &Value| format!("{} {} {}", row["rails"], row["device"], row["peer_device"]);
            let names: Vec<String> = rows.iter().map(name).collect();
            let expected = [
                r#"1 "en2" "en5""#,
                r#"1 "en3" "en4""#,
                "2 null null",
                r#"1 "en5" "en2""#,
                r#"1 "en4" "en3""#,
                "2 null null",
            ];
            assert_eq!(names, expected);
            for direction in rows.chunks(3) {
                let [quick, slow, all] = direction else { panic!("three lines") };
                assert_eq!((number(quick, "rate"), number(all, "rate")), (80.0, 160.0));
                assert!(number(slow, "us_min") >= 10_000.0 && number(slow, "gigabits") <= 0.05, "{slow}");
                assert!(slow["slow"] == true && slow["up"] == true, "{slow}");
                assert!(number(quick, "us_min") < 10_000.0 && number(quick, "gigabits") > 0.05, "{quick}");
                let expected = if profile == "apple-tb5" { serde_json::json!([5, 10]) } else { Value::Null };
                assert_eq!(quick["us_expected"], expected);
            }
        }
    }

    #[test]
    fn a_rail_that_goes_down_is_named_and_the_status_is_1() {
        // Rank 0 unplugs the cable once its report has its first line, after both ranks have met. Rank 1
        // exits with 0, so that the launcher does not end rank 0 before its report is printed.
        let script = "\
            [ $TBCCL_RANK = 0 ] || { $TBCCL ping --time 0.2 --size 256K; exit 0; }\n\
            $TBCCL ping --time 0.2 --size 256K > $SOFTRDMA_DIR/report & ping=$!\n\
            until [ -s $SOFTRDMA_DIR/report ]; do sleep 0.02; done\n\
            $TBCCL fabric fault unplug second; wait $ping; status=$?; cat $SOFTRDMA_DIR/report; exit $status";
        let output = run_on(&two_cables("apple-tb5", ""), &["sh", "-c", script]);
        let (table, message) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{}: {table}{message}", output.status);
        let down = table.lines().filter(|line| line.ends_with("down")).collect::<Vec<_>>();
        assert!(down.len() == 2 && down[0].contains("en3 > en4") && down[1].contains("en4 > en3"), "{table}");
        assert!(
            table.contains("# rank 0 to rank 1, en3 > en4: down; check the cable and both ports"),
            "{table}"
        );
        assert!(table.lines().any(|line| line.contains("en5 > en2") && !line.ends_with("down")), "{table}");
    }

    #[test]
    fn a_pair_that_fails_is_an_error_that_names_it() {
        let one =
            two_cables("apple-tb5", "").replace("ends = ['a/en3', 'b/en4']", "ends = ['a/en3', 'a/en3']");
        let script = "\
            [ $TBCCL_RANK = 0 ] || exec $TBCCL ping --time 0.2 --size 256K\n\
            $TBCCL ping --time 0.2 --size 256K > $SOFTRDMA_DIR/report & ping=$!\n\
            until [ -s $SOFTRDMA_DIR/report ]; do sleep 0.02; done\n\
            $TBCCL fabric fault unplug a/en2; wait $ping";
        let output = run_on(&one, &["sh", "-c", script]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains(", pinging 0 to 1: ")
                && message.contains("en2 of rank 0")
                && message.contains("en5 of rank 1"),
            "{message}"
        );
    }

    #[test]
    fn totals_tell_how_completions_were_found() {
        let bench = [TBCCL, "bench", "all_reduce", "-e", "64K", "-n", "20", "--stats", "--json", "-"];
        let output = run_on(&two_cables("apple-tb5", ""), &bench);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let rows = rows(&output);
        let stats: Vec<&Value> = rows.iter().filter_map(|row| row.get("stats")).collect();
        assert_eq!(stats.len(), 2);
        for stats in stats {
            let found = |key: &str| stats[key].as_u64().unwrap_or_else(|| panic!("no {key}: {stats}"));
            let batches = stats["batches"].as_array().expect("a histogram");
            let full: u64 = batches.iter().filter_map(Value::as_u64).sum();
            // Counted once for all four links: every poll finds completions or nothing.
            assert_eq!(found("polls"), found("empty_polls") + full, "{stats}");
            assert!(full > 0 && found("depth_high_water") > 0, "{stats}");
            let largest = batches.iter().rposition(|count| *count != 0).expect("one") as u64 + 1;
            assert!(found("depth_high_water") >= largest, "{stats}");
        }
    }
}
