//! The endpoint of a host: what it counts, who serves it, and clients that do not behave.

use crate::{
    client::{answer, free_port, get, get_with, owner, scrape_until},
    job::{FOLDER, Job},
    openmetrics::Scrape,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};
use support::{FabricJob, Wiring, eventually};
use tbccl::metrics::FAMILIES;

/// Returns a scrape that has both ranks.
fn scrape_of_both(port: u16) -> Scrape {
    scrape_until(port, "both ranks answer", |scrape| {
        scrape.sum("tbccl_rank_up", &[]) == 2.0 && scrape.values("tbccl_info", "rank").len() == 2
    })
}

#[test]
fn one_endpoint_has_the_known_counts_of_both_ranks() {
    for transport in ["shm", "tcp"] {
        let port = free_port();
        let job = Job::start("work", Some(port), &[("TBCCL_TRANSPORT", transport)]);
        let scrape = scrape_of_both(port);
        for (rank, message) in [("0", "send"), ("1", "recv")] {
            let of = |name: &str, collective: &str| {
                let labels = [("rank", rank), ("collective", collective), ("transport", transport)];
                scrape.sum(name, &labels)
            };
            for (collective, calls, bytes, bus_bytes) in [
                ("all_reduce", 5.0, 20_000.0, 20_000.0),
                ("all_gather", 1.0, 16.0, 8.0),
                ("barrier", 2.0, 0.0, 0.0),
                (message, 1.0, 40.0, 40.0),
            ] {
                assert_eq!(of("tbccl_operations_total", collective), calls, "{collective}");
                assert_eq!(of("tbccl_operation_bytes_total", collective), bytes, "{collective}");
                assert_eq!(of("tbccl_operation_bus_bytes_total", collective), bus_bytes, "{collective}");
                assert_eq!(of("tbccl_failed_operations_total", collective), 0.0, "{collective}");
            }
            let own = [("rank", rank)];
            assert!(scrape.sum("tbccl_received_messages_total", &own) > 0.0, "{scrape:?}");
            assert_eq!(scrape.sum("tbccl_communicators", &own), 1.0);
            assert_eq!(scrape.sum("tbccl_call_seconds", &own), 0.0);
            let facts = [("rank", rank), ("size", "2"), ("transport", transport)];
            assert_eq!(scrape.sum("tbccl_info", &[&facts[..], &[("version", "0.1.0")]].concat()), 1.0);
        }
        let waited = scrape.sum("tbccl_wait_seconds_total", &[("rank", "1")]);
        let received = [("rank", "1"), ("collective", "recv")];
        let in_call = scrape.sum("tbccl_operation_seconds_total", &received);
        assert!(waited > 0.1 && in_call > 0.15, "{transport}: {waited} s waited, {in_call} s in the receive");
        assert!(scrape.sum("tbccl_waits_total", &[("rank", "1")]) >= 1.0);
        let done = job.finish();
        assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    }
}

#[test]
fn counters_of_a_running_job_grow_and_every_series_is_in_the_table() {
    let port = free_port();
    let job = Job::start("busy", Some(port), &[]);
    let first = scrape_of_both(port);
    let calls = |scrape: &Scrape| scrape.sum("tbccl_operations_total", &[("collective", "all_reduce")]);
    let bytes = |scrape: &Scrape| scrape.sum("tbccl_received_bytes_total", &[]);
    let later = scrape_until(port, "calls and bytes are counted", |scrape| {
        calls(scrape) > calls(&first) + 10.0 && bytes(scrape) > bytes(&first) + 1e5
    });
    later.assert_follows(&first);
    let known: Vec<String> = FAMILIES.iter().map(|family| family.series()).collect();
    for (name, labels) in later.samples.keys() {
        assert!(known.contains(name), "{name} is not in the table");
        assert!(
            ["job_id", "host", "rank"].iter().all(|label| labels.contains_key(*label)),
            "{name} {labels:?}"
        );
    }
    assert_eq!(later.values("tbccl_info", "job_id").len(), 1);
    assert_eq!(job.finish().code(), 0);
}

/// `promtool check metrics` refused OpenMetrics text, which `curl` got as well.
#[test]
fn a_client_that_does_not_ask_for_openmetrics_gets_text_that_older_scrapers_read() {
    let port = free_port();
    let job = Job::start("busy", Some(port), &[]);
    let modern = scrape_of_both(port);
    let (head, body) = get_with(port, "/metrics", "Accept: */*\r\n").expect("an answer");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    let mut described = std::collections::BTreeMap::new();
    for line in body.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", ..] => {}
            ["#", "TYPE", name, kind] => {
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert_eq!(described.insert(name, kind), None, "{line} is there twice");
            }
            _ => {
                let name = line.split('{').next().expect("a name");
                assert!(described.contains_key(name), "{line} has no type under its name");
            }
        }
    }
    for (name, _) in modern.samples.keys() {
        assert!(described.contains_key(name.as_str()), "{name} is missing");
    }
    check_with_promtool(&body);
    assert_eq!(job.finish().code(), 0);
}

/// Checks a scrape with Prometheus' own tool, where it is installed. The rules above are those that it
/// applies.
fn check_with_promtool(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut checking) = promtool.spawn() else { return };
    checking.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let checked = checking.wait_with_output().expect("it ends");
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[cfg(target_os = "linux")]
#[test]
fn rails_of_devices_have_their_state_and_the_bytes_that_they_have_sent() {
    let port = free_port();
    let number = port.to_string();
    let env = [("TBCCL_METRICS", number.as_str()), (FOLDER, "$HOME_OF_TEST")];
    let mut job = FabricJob::start(&Wiring::pair("usb4", 2), "", "busy", &env);
    job.wait_for("worked", 2);
    let scrape = scrape_until(port, "both ranks have sent by their rails", |scrape| {
        let sent = |rank| scrape.sum("tbccl_rail_sent_bytes_total", &[("rank", rank)]);
        scrape.sum("tbccl_rail_up", &[]) == 4.0 && sent("0") > 1e5 && sent("1") > 1e5
    });
    let rails: Vec<_> = scrape.with("tbccl_rail_sent_bytes_total", &[]).map(|(rail, _)| rail).collect();
    assert_eq!(rails.len(), 4, "{rails:?}");
    assert!(
        rails.iter().all(|rail| rail["peer"] != rail["rank"] && rail["device"].starts_with('d')),
        "{rails:?}"
    );
    assert!(scrape.sum("tbccl_registered_bytes", &[("owner", "library")]) > 0.0, "slots of messages");
    for rank in ["0", "1"] {
        fs::write(job.home.path().join(format!("leave-{rank}")), "").expect("our folder");
    }
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn rails_over_tcp_have_the_bytes_of_their_sockets_in_both_directions() {
    let port = free_port();
    let job = Job::start("busy", Some(port), &[("TBCCL_TRANSPORT", "tcp")]);
    let scrape = scrape_until(port, "both ranks have sent and received by their rails", |scrape| {
        let bytes = |name: &str, rank| scrape.sum(name, &[("rank", rank)]);
        ["0", "1"].iter().all(|rank| {
            bytes("tbccl_rail_sent_bytes_total", rank) > 1e5
                && bytes("tbccl_rail_received_bytes_total", rank) > 1e5
        })
    });
    let rails: Vec<_> = scrape.with("tbccl_rail_received_bytes_total", &[]).map(|(rail, _)| rail).collect();
    assert_eq!(rails.len(), 2, "no rank has a rail to itself: {rails:?}");
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn a_rank_that_stays_takes_over_from_the_one_that_served() {
    let port = free_port();
    let job = Job::start("work", Some(port), &[]);
    let scrape = scrape_of_both(port);
    let server = owner(port).expect("it has answered").to_string();
    let labels = [("pid", server.as_str())];
    let (facts, _) = scrape.with("tbccl_info", &labels).next().expect("a rank serves");
    let (leaving, staying) = if facts["rank"] == "0" { ("0", "1") } else { ("1", "0") };
    job.release(leaving);
    eventually("another process answers", || owner(port).is_some_and(|pid| pid.to_string() != server));
    let labels = [("rank", staying), ("collective", "all_reduce")];
    let after = scrape_until(port, "its counters are there", |scrape| {
        scrape.sum("tbccl_operations_total", &labels) == 5.0
    });
    assert_eq!(after.sum("tbccl_operations_total", &[("rank", leaving)]), 0.0, "it has ended");
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn a_rank_that_is_stopped_is_down_until_it_goes_on() {
    let port = free_port();
    let job = Job::start("work", Some(port), &[]);
    let scrape = scrape_of_both(port);
    let server = owner(port).expect("it has answered").to_string();
    let (facts, _) = scrape.with("tbccl_info", &[]).find(|(facts, _)| facts["pid"] != server).expect("two");
    let (rank, pid) = (facts["rank"].as_str(), facts["pid"].parse().expect("a number"));
    let pid = Pid::from_raw(pid).expect("not 0");
    kill_process(pid, Signal::STOP).expect("it runs");
    let up = |scrape: &Scrape| scrape.with("tbccl_rank_up", &[("rank", rank)]).next().map(|(_, up)| up);
    let stopped = scrape_until(port, "it is down", |scrape| up(scrape) == Some(0.0));
    assert_eq!(stopped.sum("tbccl_rank_up", &[]), 1.0, "the other one is up");
    assert_eq!(stopped.values("tbccl_rank_up", "job_id").len(), 1, "both are of one job");
    kill_process(pid, Signal::CONT).expect("it runs");
    scrape_of_both(port).assert_follows(&scrape);
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn a_port_that_another_program_has_is_one_warning_and_is_taken_once_it_is_free() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("it has one").port();
    let job = Job::start("work", Some(port), &[]);
    let (mut stream, _) = listener.accept().expect("a rank asks for the owner");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.push(byte[0]);
    }
    assert!(request.starts_with(b"GET /job "), "{}", String::from_utf8_lossy(&request));
    stream.write_all(b"this is no endpoint\n").expect("it listens");
    drop((stream, listener));
    scrape_of_both(port);
    let done = job.finish();
    let warning = format!(
        "tbccl: warning: rank 0: no metrics at 127.0.0.1:{port}: the port is taken by another program; "
    );
    assert_eq!((done.code(), done.stderr.lines().count()), (0, 1), "{}", done.stderr);
    assert!(done.stderr.starts_with(&warning) && done.stderr.contains("TBCCL_METRICS"), "{}", done.stderr);
}

#[test]
fn a_second_job_with_the_same_port_names_the_first_one() {
    let port = free_port();
    let first = Job::start("work", Some(port), &[]);
    let scrape = scrape_of_both(port);
    let server = owner(port).expect("it has answered");
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("%r.log");
    let env = [("TBCCL_LOG", "warn"), ("TBCCL_LOG_FILE", log.to_str().expect("a path"))];
    let second = Job::start("work", Some(port), &env);
    let said = || fs::read_to_string(folder.path().join("0.log")).unwrap_or_default();
    let (job,) = (scrape.values("tbccl_info", "job_id").pop_first().expect("it has one"),);
    let warning = format!("the port is taken by another job of tbccl ({job}, process {server})");
    eventually("the second job warns", || said().contains(&warning));
    assert_eq!(first.finish().code(), 0);
    let after = scrape_of_both(port);
    assert!(!after.values("tbccl_info", "job_id").contains(&job), "the second job took the port");
    assert_eq!(second.finish().code(), 0);
    assert_eq!(fs::read_to_string(folder.path().join("1.log")).unwrap_or_default(), "", "one rank warns");
}

#[test]
fn an_address_of_another_host_is_a_warning_and_no_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("%r.log");
    // An address for documents, which no host has.
    let env = [
        ("TBCCL_METRICS", "192.0.2.1:9400"),
        ("TBCCL_LOG", "warn"),
        ("TBCCL_LOG_FILE", log.to_str().expect("a path")),
    ];
    let job = Job::start("work", None, &env);
    let said = || fs::read_to_string(folder.path().join("0.log")).unwrap_or_default();
    eventually("a rank warns", || said().contains("no metrics at 192.0.2.1:9400: "));
    assert_eq!(job.finish().code(), 0);
}

#[test]
fn clients_that_send_garbage_or_nothing_do_no_harm() {
    let port = free_port();
    let job = Job::start("busy", Some(port), &[]);
    scrape_of_both(port);
    let status =
        |request: &[u8]| answer(port, request).map(|text| text[..12.min(text.len())].to_owned()).ok();
    assert_eq!(status(b"\x16\x03\x01\x00\xff garbage\r\n\r\n").as_deref(), Some("HTTP/1.1 400"));
    assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 405"));
    assert_eq!(status(b"GET /other HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 404"));
    let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 9 << 10]].concat();
    assert!(status(&long).is_none_or(|status| status == "HTTP/1.1 431"), "it may be cut off");
    let head = answer(port, b"HEAD /metrics HTTP/1.1\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    // Clients that say nothing, and that stop within their request; more than are served at a time.
    let mut silent = Vec::new();
    for number in 0..30 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the kernel accepts");
        if number % 2 == 0 {
            // Beyond the limit the connection may be closed already.
            let _ = stream.write_all(b"GET /met");
        }
        silent.push(stream);
    }
    let refused = get(port, "/metrics").map(|(head, _)| head);
    assert!(refused.is_err() || refused.is_ok_and(|head| head.contains("503")), "the limit holds");
    scrape_of_both(port);
    drop(silent);
    let done = job.finish();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
}
