//! `tbccl top` of a running job, with and without an endpoint of metrics.

use crate::{client::free_port, job::Job};
use serde_json::Value;
use support::{eventually, tbccl};

/// Runs `tbccl top` for a job; returns its exit status, and its output.
fn top(job: u32, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tbccl();
    command.args(["top", "--job", &job.to_string(), "--interval", "0.3"]).args(arguments);
    let output = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn rates_of_a_job_without_an_endpoint_are_shown_for_each_rank() {
    let job = Job::start("busy", None, &[]);
    let (status, text, stderr) = top(job.process.id(), &["--once"]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("job ") && lines[0].contains(", 2 ranks, over "), "{text}");
    assert!(lines[1].starts_with("rank  host"), "{text}");
    for (rank, line) in lines[2..4].iter().enumerate() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[0], rank.to_string(), "{text}");
        assert!(cells[3].parse::<f64>().is_ok_and(|rate| rate > 0.0), "{text}");
        assert!(line.contains("B/s"), "{text}");
    }
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn with_an_endpoint_the_share_of_time_in_calls_is_shown_too() {
    let job = Job::start("busy", Some(free_port()), &[]);
    let (status, text, _) = top(job.process.id(), &["--json"]);
    assert_eq!(status, Some(0), "{text}");
    let rates: Value = serde_json::from_str(&text).expect("JSON");
    let ranks = rates["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), 2, "{text}");
    for rank in ranks {
        assert!(rank["call_share"].as_f64().is_some_and(|share| share > 0.0 && share <= 1.0), "{text}");
        assert!(rank["operations_per_second"].as_f64().is_some_and(|rate| rate > 1.0), "{text}");
        assert_eq!((&rank["errors"], &rank["resent"]), (&0.into(), &0.into()), "{text}");
    }
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn rails_over_tcp_have_rates_in_both_directions() {
    let job = Job::start("busy", None, &[("TBCCL_TRANSPORT", "tcp")]);
    // The bytes of rails are read once in a second of calls.
    eventually("both rails have rates", || {
        let (_, text, _) = top(job.process.id(), &["--json"]);
        let rates: Value = serde_json::from_str(&text).expect("JSON");
        let rails = rates["rails"].as_array().expect("a list");
        let has = |rail: &Value, rate: &str| rail[rate].as_f64().is_some_and(|rate| rate > 0.0);
        let has_both =
            |rail: &Value| has(rail, "sent_bytes_per_second") && has(rail, "received_bytes_per_second");
        rails.len() == 2 && rails.iter().all(has_both)
    });
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn a_process_without_a_job_and_a_short_interval_are_errors() {
    let (status, text, stderr) = top(std::process::id(), &["--once"]);
    assert_eq!((status, text.as_str()), (Some(2), ""));
    assert!(stderr.contains("belongs to no job of this user"), "{stderr}");
    let output = tbccl().args(["top", "--interval", "0.01"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0.1 seconds at least"), "{output:?}");
}

#[test]
fn a_job_that_was_ended_by_a_signal_leaves_no_endpoint() {
    let port = free_port();
    let job = Job::start("busy", Some(port), &[]);
    crate::client::scrape_until(port, "it answers", |_| true);
    job.end();
    assert!(crate::client::get(port, "/metrics").is_err(), "nobody answers");
}
