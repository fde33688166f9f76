//! `softrdma fault freeze`: stops a process between two operations of its devices.
//!
//! A process moves the bytes of its messages itself, and holds locks of its peers' queues meanwhile. If it is
//! stopped then, its peers wait for it in their own calls. A device of hardware goes on without its process.

use super::CliError;
use rustix::{
    io,
    process::{Pid, Signal, kill_process},
};
use softrdma::Observer;
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

/// Time until all threads of a process are stopped, and until it is stopped without a lock.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a process runs on that was stopped with a lock.
const RUN_TIME: Duration = Duration::from_micros(200);

/// Stops a process while it holds no lock of the fabric.
pub(crate) fn freeze(observer: &Observer, pid: u32) -> Result<(), CliError> {
    let until = Instant::now() + TIMEOUT;
    loop {
        signal(pid, Signal::STOP)?;
        while !is_stopped(pid)? {
            check_time(until, pid)?;
            sleep(RUN_TIME);
        }
        if !observer.holds_lock(pid) {
            return Ok(());
        }
        signal(pid, Signal::CONT)?;
        check_time(until, pid)?;
        sleep(RUN_TIME);
    }
}

fn check_time(until: Instant, pid: u32) -> Result<(), CliError> {
    if Instant::now() < until {
        return Ok(());
    }
    Err(CliError::new(format_args!("process {pid} can't be stopped without a lock")))
}

fn signal(pid: u32, signal: Signal) -> Result<(), CliError> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let sent = process.ok_or(io::Errno::SRCH).and_then(|process| kill_process(process, signal));
    sent.map_err(|error| failed(pid, &error.into()))
}

/// Whether no thread of a process runs.
fn is_stopped(pid: u32) -> Result<bool, CliError> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| failed(pid, &error))?;
    let runs = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The name before the state may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 'Z', 'X']))
    };
    Ok(!tasks.flatten().any(runs))
}

fn failed(pid: u32, error: &std::io::Error) -> CliError {
    CliError::new(format_args!("process {pid} can't be stopped: {error}"))
}
