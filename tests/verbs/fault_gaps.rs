//! The longest gap in traffic after each fault of `tbccl fabric fault`. No job ends that has a working cable
//! left, or whose only cable comes back.
//!
//! Ranks make checked calls, and note each call that takes long, with the time for which their thread waited
//! for a core meanwhile. A job lives through several faults of a kind, one at a time. A job whose device is
//! lost for good has one.

use crate::roles::{print, say};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use support::{FabricJob, Finished, Wiring, milliseconds};
use tbccl::{Communicator, ReduceOp, Result};

/// Injections of each fault, where `FAULT_RUNS` does not say otherwise.
const RUNS: usize = 10;
/// Injections into one job.
const RUNS_PER_JOB: usize = 10;
/// Time for which a fault lasts that is undone.
const OUTAGE: Duration = Duration::from_millis(300);
/// Pauses of at least this many microseconds are noted.
const NOTED_MICROS: u128 = 2_000;
/// Time after which traffic must flow again by every cable, and the bytes of it that show that pieces do. A
/// cable that was slow, as the ranks of a busy machine make it seem, is given one piece of 128.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const TRAFFIC_BYTES: u64 = 100_000;

/// A fault, with `PORT` for a port, `CABLE` for its cable and `NODE` for its node.
struct Fault {
    inject: &'static [&'static str],
    /// The command that undoes it after [`OUTAGE`].
    undo: &'static [&'static str],
    /// Injections into one job.
    per_job: usize,
    /// Whether the device is of no use afterwards.
    is_final: bool,
}

const fn fault(inject: &'static [&'static str], undo: &'static [&'static str]) -> Fault {
    Fault { inject, undo, per_job: RUNS_PER_JOB, is_final: false }
}

/// All faults but `unplug --crash`, which ends processes; first none, which shows how busy the machine is.
const FAULTS: [Fault; 11] = [
    fault(&[], &[]),
    fault(&["unplug", "CABLE"], &["replug", "CABLE"]),
    fault(&["port-down", "PORT"], &["port-up", "PORT"]),
    fault(&["fail-qp", "PORT"], &[]),
    Fault { is_final: true, per_job: 1, ..fault(&["overflow-cq", "PORT"], &[]) },
    // A rail that falls silent again soon is waited for longer.
    Fault { per_job: 1, ..fault(&["sleep", "PORT"], &[]) },
    fault(&["stall", "NODE"], &["resume", "NODE"]),
    fault(&["leak", "PORT"], &["leak", "PORT", "--domains", "0"]),
    fault(&["gid", "PORT", "--missing"], &["gid", "PORT", "--restore"]),
    fault(&["gid", "PORT", "--index", "2"], &["gid", "PORT", "--restore"]),
    fault(&["gid", "PORT", "--ipv4", "10.9.8.7"], &["gid", "PORT", "--restore"]),
];

/// Time for which the thread that opened it was runnable and had no core (proc_pid_schedstat).
struct CoreWaits(Option<File>);

impl CoreWaits {
    fn new() -> CoreWaits {
        CoreWaits(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Returns microseconds; 0 where the system does not tell.
    fn total(&self) -> u128 {
        let mut text = [0; 80];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..read]).into_owned();
        text.split(' ').nth(1).and_then(|nanos| nanos.parse::<u128>().ok()).unwrap_or(0) / 1000
    }
}

/// Makes calls until rank 0 finds the file, and prints the long ones: the time of their end, their
/// microseconds, and those for which the thread had no core.
pub(crate) fn note_pauses(comm: &mut Communicator, file: &Path) -> Result<()> {
    let (n, me) = (comm.size() as i32, comm.rank().0 as i32);
    let mut data = comm.alloc::<i32>(200_000)?;
    let base = (0..n).sum::<i32>();
    let core_waits = CoreWaits::new();
    for round in 0u64.. {
        for len in [200_000, 100, 3_000] {
            let data = &mut data[..len];
            data.iter_mut().enumerate().for_each(|(at, place)| *place = (at % 1000) as i32 + me);
            let (before, waited) = (Instant::now(), core_waits.total());
            comm.all_reduce_in_place(data, ReduceOp::Sum)?;
            let pause = before.elapsed().as_micros();
            if pause >= NOTED_MICROS {
                let waited = core_waits.total() - waited;
                say(comm, "pause", &format!("{} {pause} {waited}", milliseconds()));
            }
            let wrong = data.iter().enumerate().find(|(at, x)| **x != (at % 1000) as i32 * n + base);
            assert!(wrong.is_none(), "round {round}: {wrong:?}");
        }
        let mut over = [u8::from(me == 0 && file.exists())];
        comm.broadcast(&mut over, tbccl::Rank(0))?;
        if round == 3 {
            say(comm, "running", &std::process::id().to_string());
        }
        if over[0] != 0 && round > 3 {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns a command for an end of a cable.
fn at(command: &[&str], end: usize, cable: usize) -> Vec<String> {
    let of = |word: &&str| match *word {
        "CABLE" => cable.to_string(),
        "PORT" => format!("n{end}/d{cable}"),
        "NODE" => format!("n{end}"),
        word => word.to_owned(),
    };
    command.iter().map(of).collect()
}

/// Waits until a cable carries traffic.
fn wait_for_traffic(job: &FabricJob, cables: impl Iterator<Item = usize>, what: &str) {
    for cable in cables {
        let (before, until) = (job.bytes_per_cable()[cable], Instant::now() + BACK_WITHIN);
        while job.bytes_per_cable()[cable] < before + TRAFFIC_BYTES {
            assert!(Instant::now() < until, "{what}: no traffic by cable {cable}");
            sleep(Duration::from_millis(20));
        }
    }
}

/// The longest gap in traffic after a fault, in microseconds: as measured, and less the time for which a rank
/// waited for a core.
#[derive(Clone, Copy, Default)]
struct Gap {
    whole: u128,
    net: u128,
}

/// Injects a fault `runs` times into a job, and returns the longest gap that followed each.
fn run_job(wiring: &Wiring, service: &str, fault: &Fault, (first, runs): (usize, usize)) -> Vec<Gap> {
    let env = [("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
    let mut job = FabricJob::start(wiring, "", "note_pauses $HOME_OF_TEST/stop", &env);
    job.wait_for("running", 2);
    let cables = wiring.cables as usize;
    let mut since = Vec::new();
    for run in first..first + runs {
        let (end, cable) = (run % 2, run / 2 % cables);
        let what = format!("{} {service} {:?} {cables} cables, run {run}", wiring.profile, fault.inject);
        since.push(milliseconds());
        let run_command = |command: &[&str]| {
            let words = at(command, end, cable);
            if !words.is_empty() {
                job.fault(&words.iter().map(String::as_str).collect::<Vec<_>>());
            }
        };
        run_command(fault.inject);
        if !fault.undo.is_empty() {
            sleep(OUTAGE);
            run_command(fault.undo);
        }
        let is_used = |other: &usize| !fault.is_final || *other != cable;
        wait_for_traffic(&job, (0..cables).filter(is_used), &what);
        sleep(Duration::from_millis(100));
    }
    std::fs::write(job.home.path().join("stop"), "").expect("our folder");
    let done = job.finish();
    done.assert_success("done", 2);
    gaps(&done, &since)
}

/// A call that took long: its rank, the times of its begin and its end, and the time without a core, in
/// microseconds.
#[derive(Clone, Copy)]
struct Pause {
    rank: u32,
    begin: u128,
    end: u128,
    waited: u128,
}

fn pauses(done: &Finished) -> Vec<Pause> {
    let of = |message: &&support::Message| {
        let numbers: Vec<u128> =
            message.rest.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [end, micros, waited] = numbers[..] else { panic!("{message:?}") };
        Pause { rank: message.rank, begin: (end * 1000).saturating_sub(micros), end: end * 1000, waited }
    };
    done.all("pause").iter().map(of).collect()
}

/// Returns the longest gap that ended after each time, in milliseconds, and before the next one.
fn gaps(done: &Finished, since: &[u128]) -> Vec<Gap> {
    let mut longest = vec![Gap::default(); since.len()];
    let pauses = pauses(done);
    for pause in &pauses {
        let run = since.partition_point(|begin| *begin * 1000 <= pause.end);
        let Some(gap) = run.checked_sub(1).map(|run| &mut longest[run]) else { continue };
        let is_beside =
            |other: &&Pause| other.rank != pause.rank && other.begin < pause.end && pause.begin < other.end;
        let waited = pause.waited + pauses.iter().filter(is_beside).map(|other| other.waited).sum::<u128>();
        let whole = pause.end - pause.begin;
        *gap = Gap { whole: gap.whole.max(whole), net: gap.net.max(whole.saturating_sub(waited)) };
    }
    longest
}

/// Measures a fault, and prints a row of the table.
fn measure(wiring: &Wiring, service: &str, fault: &Fault, runs: usize) {
    let mut longest = Vec::new();
    let mut jobs = 0;
    while longest.len() < runs {
        let more = fault.per_job.min(runs - longest.len());
        longest.extend(run_job(wiring, service, fault, (longest.len(), more)));
        jobs += 1;
    }
    let row = |of: fn(&Gap) -> u128| {
        let mut all: Vec<u128> = longest.iter().map(of).collect();
        all.sort_unstable();
        let [middle, last] = [all.len() / 2, all.len() - 1].map(|at| all[at]);
        format!("{}.{} | {}.{}", middle / 1000, middle / 100 % 10, last / 1000, last / 100 % 10)
    };
    print(&format!(
        "| {} {service} | {} | `{}` | {runs} in {jobs} | {} | {} |\n",
        wiring.profile,
        wiring.cables,
        if fault.inject.is_empty() { "none".to_owned() } else { fault.inject.join(" ") },
        row(|gap| gap.net),
        row(|gap| gap.whole),
    ));
}

fn measure_all(profile: &'static str, service: &str) {
    let runs = std::env::var("FAULT_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    print(
        "\n| devices | cables | fault | runs in jobs | median ms, net | longest, net | median | longest |\n",
    );
    print("|---|---:|---|---:|---:|---:|---:|---:|\n");
    for cables in [2, 1] {
        for fault in FAULTS.iter().filter(|fault| cables > 1 || !fault.is_final) {
            measure(&Wiring::pair(profile, cables), service, fault, runs);
        }
    }
}

#[test]
#[ignore = "takes minutes; `make faults` and `make endurance` run it, and `faults` has one of each"]
fn no_fault_of_macs_ends_a_job_that_has_a_cable_and_the_longest_gap_is_stated() {
    measure_all("apple-tb5", "uc");
}

#[test]
#[ignore = "takes minutes; `make faults` and `make endurance` run it, and `faults` has one of each"]
fn no_fault_of_infiniband_ends_a_job_that_has_a_cable_and_the_longest_gap_is_stated() {
    measure_all("ib", "rc");
}

#[test]
#[ignore = "takes minutes; `make faults` and `make endurance` run it, and `faults` has one of each"]
fn no_fault_of_usb4_ends_a_job_that_has_a_cable_and_the_longest_gap_is_stated() {
    measure_all("usb4", "uc");
}
