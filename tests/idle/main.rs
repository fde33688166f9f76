//! Processor time of an idle communicator over RDMA, and whether it still works afterwards.
//!
//! Ranks are processes of this test on a software fabric, which it starts with `tbccl fabric run`.

#![cfg(target_os = "linux")]

use std::{env, fs, io::Write, path::Path, process::Output, thread, time::Duration};
use support::tbccl_with_software_device as tbccl;
use tbccl::Communicator;

/// Duration of the idle time.
const IDLE_TIME: Duration = Duration::from_secs(4);
/// Maximum fraction of a core that an idle rank may use. It uses 1 or 2 %; on a busy machine each of its
/// short polls takes longer. A rank that keeps polling uses 100 %.
const MAX_CPU_SHARE: f64 = 0.1;
/// Environment variable that marks a process as a rank, and names its role.
const ROLE: &str = "TEST_IDLE_ROLE";

/// Runs ranks of this program in a role on a fabric, and asserts their success.
fn run_ranks(role: &str, fabric: &str, variables: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(role, fabric, variables, folder.path());
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    output
}

/// Runs ranks of this program in a role on a fabric, with any exit status. The fabric is in `folder`.
fn run(role: &str, fabric: &str, variables: &[&str], folder: &Path) -> Output {
    let file = folder.join("fabric.toml");
    fs::write(&file, fabric).expect("writable");
    let mut command = tbccl();
    command.args(["fabric", "run", "--fabric"]).arg(&file).arg("--dir").arg(folder.join("shared"));
    command.args(["--timeout", "60", "-x", "TBCCL_TRANSPORT=verbs"]);
    command.args(["-x", &format!("{ROLE}={role}")]).args(variables.iter().flat_map(|v| ["-x", v]));
    command.arg("--").arg(env::current_exe().expect("this program"));
    command.args(["--exact", "plays_a_role", "--nocapture"]);
    command.output().expect("it starts")
}

/// Role of a rank; does nothing unless another test has started this process.
#[test]
fn plays_a_role() {
    let Ok(role) = env::var(ROLE) else { return };
    let mut comm = Communicator::from_env().expect("a job");
    let sum = |comm: &mut Communicator| {
        let mut values = [comm.rank().0 + 1, 7];
        comm.all_reduce_in_place(&mut values, tbccl::ReduceOp::Sum).expect("an answer");
        assert_eq!(values, [3, 14]);
    };
    sum(&mut comm);
    let before = cpu_time();
    match role.as_str() {
        // One rank waits in a call for the other.
        "late" if comm.rank().0 == 0 => thread::sleep(IDLE_TIME),
        "late" => comm.barrier().expect("the other one comes"),
        "idle" => thread::sleep(IDLE_TIME),
        "signalled" => end_by(rustix::process::Signal::TERM),
        "killed" => end_by(rustix::process::Signal::KILL),
        other => panic!("no role {other}"),
    }
    let used = cpu_time() - before;
    if role == "late" && comm.rank().0 == 0 {
        comm.barrier().expect("the other one waits");
    }
    sum(&mut comm);
    writeln!(std::io::stdout(), "used {} us", used.as_micros()).expect("it is read");
}

/// Ends this process by a signal, after the other ranks had time to get this far.
fn end_by(signal: rustix::process::Signal) {
    thread::sleep(Duration::from_millis(500));
    rustix::process::kill_process(rustix::process::getpid(), signal).expect("it is ours");
    thread::sleep(Duration::from_secs(30));
    unreachable!("the signal ends it");
}

/// Returns the processor time of this process.
fn cpu_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

fn pair(profile: &str, options: &str) -> String {
    format!(
        "profile = '{profile}'\n[[node]]\nname = 'a'\ndevice = [{{ name = 'd0'{options} }}]\n\
         [[node]]\nname = 'b'\ndevice = [{{ name = 'd0'{options} }}]\n[[cable]]\nends = ['a/d0', 'b/d0']\n"
    )
}

/// Returns the largest processor time of a rank as a fraction of the idle time.
fn cpu_share(output: &Output) -> f64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let used =
        text.lines().filter_map(|line| line.split_once("used ")?.1.strip_suffix(" us")?.parse::<f64>().ok());
    let used: Vec<f64> = used.collect();
    assert_eq!(used.len(), 2, "{text}");
    used.into_iter().fold(0.0, f64::max) / IDLE_TIME.as_micros() as f64
}

#[test]
fn a_rank_that_waits_for_a_late_one_uses_hardly_any_processor_time() {
    for service in ["TBCCL_RDMA_SERVICE=rc", "TBCCL_RDMA_SERVICE=uc"] {
        let used = cpu_share(&run_ranks("late", &pair("ib", ""), &[service]));
        assert!(used < MAX_CPU_SHARE, "{service}: {:.1} % of a core", used * 100.0);
    }
}

#[test]
fn an_idle_communicator_uses_hardly_any_processor_time() {
    for (profile, service) in [("ib", "TBCCL_RDMA_SERVICE=rc"), ("apple-tb5", "TBCCL_RDMA_SERVICE=uc")] {
        let used = cpu_share(&run_ranks("idle", &pair(profile, ""), &[service]));
        assert!(used < MAX_CPU_SHARE, "{profile}: {:.1} % of a core", used * 100.0);
    }
}

#[test]
fn connections_that_stop_working_when_idle_are_kept_alive() {
    // Connections stop after a second without a message; the communicator idles for longer than that.
    let fabric = pair("apple-tb5", ", idle_ms = 1000");
    run_ranks("idle", &fabric, &["TBCCL_KEEP_ALIVE=0.3"]);
    run_ranks("late", &fabric, &["TBCCL_KEEP_ALIVE=0.3"]);
}

/// Returns the number of device records that killed processes left, which an orderly end removes.
fn records_left(role: &str) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(role, &pair("apple-tb5", ""), &[], folder.path());
    assert!(!output.status.success(), "{output:?}");
    let records = |files: fs::ReadDir| {
        files
            .filter_map(Result::ok)
            .filter(|file| file.file_name().to_string_lossy().starts_with('p'))
            .count()
    };
    fs::read_dir(folder.path().join("shared")).map_or(0, records)
}

#[test]
fn connections_end_in_order_when_a_signal_ends_the_process() {
    assert_eq!(records_left("signalled"), 0);
    assert!(records_left("killed") > 0, "it can be told");
}
