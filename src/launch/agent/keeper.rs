//! The keeper: the agent's parent, which ends the job's processes if the agent is killed or stopped.
//!
//! The program splits in two before it does anything else. The parent waits for the child, the agent, and
//! then ends what is left of the job. The agent in turn ends the job when its keeper is gone. Each has a
//! process group of its own, so that a signal to one group leaves the other process alive. Both adopt orphans
//! on Linux: all processes that descend from a rank descend from the agent, and after its death from the
//! keeper, in any session.
//!
//! An agent that shows no sign of life, stopped by SIGSTOP for example, counts as lost after as many seconds
//! as for the launcher, and after fewer once the launcher has closed the connection. The keeper counts only
//! seconds in which it ran itself, so that a suspended machine ends no job.

use super::lifeline::{ALIVE_INTERVAL, Lifeline, Reports};
use crate::launch::{
    ending::Ending,
    processes::{self, Scope},
    signals::Signals,
    spawn::{self, Forked},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process, waitid},
};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::exit,
    time::Instant,
};

/// Exit status of a keeper whose agent counts as lost, or that can't wait for its agent.
const BROKEN: i32 = 2;

/// Intervals without a sign of life after which an agent counts as lost. The launcher waits as long.
const MAX_SILENT_INTERVALS: u32 = 20;

/// The same, once the launcher has closed the connection.
const MAX_SILENT_INTERVALS_AT_END: u32 = 5;

/// State of an input that the launcher has closed.
#[cfg(target_os = "linux")]
const HANG_UP: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::RDHUP);
/// State of an input that the launcher has closed.
#[cfg(not(target_os = "linux"))]
const HANG_UP: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

/// Splits this process into the keeper and the agent; it must have one thread. Returns in the agent. The
/// keeper exits with the agent's status. `connection` leads to the launcher; without it, stdin and stdout do.
///
/// # Errors
/// Those of the system while the processes are set up.
pub(super) fn split(connection: Option<OwnedFd>) -> io::Result<(Lifeline, Option<OwnedFd>)> {
    // A program in the place of ssh may have become this process, with the death signal that the launcher
    // gives to ssh. It would kill the keeper with the launcher, before the job's processes have ended.
    spawn::outlive_parent()?;
    // A shell that has executed this program may have left children to it, which are not the job's.
    if processes::has_children()
        && let Forked::Parent(child) = spawn::fork()?
    {
        let status = release(connection).and_then(|()| wait_for(child));
        exit(status.unwrap_or(BROKEN));
    }
    processes::adopt_orphans();
    let (agent, keeper) = UnixStream::pair()?;
    let keeper_id = getpid();
    match spawn::fork()? {
        Forked::Parent(child) => {
            drop(keeper);
            exit(keep(child, agent, connection).unwrap_or(BROKEN));
        }
        Forked::Child => {
            drop(agent);
            rustix::process::setpgid(None, None)?;
            processes::adopt_orphans();
            Ok((Lifeline::new(keeper, keeper_id)?, connection))
        }
    }
}

/// Closes this process's copy of the agent's connection, so that the connection ends with the agent.
fn release(connection: Option<OwnedFd>) -> io::Result<()> {
    match connection {
        Some(connection) => drop(connection),
        None => {
            spawn::release_stdin()?;
            spawn::release_stdout()?;
        }
    }
    Ok(())
}

/// Waits for a child and forwards terminating signals to it; returns its exit status.
fn wait_for(child: Pid) -> io::Result<i32> {
    let mut signals = Signals::catch().map_err(io::Error::other)?;
    loop {
        if let Some(status) = exit_status_of(child)? {
            return Ok(status);
        }
        forward(&signals.wait(None, None).map_err(io::Error::other)?, child);
    }
}

/// Waits for the agent, and ends the processes that it has left; returns its exit status.
fn keep(child: Pid, agent: UnixStream, connection: Option<OwnedFd>) -> io::Result<i32> {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tbccl-keeper");
    let mut reports = Reports::new(agent)?;
    let status = watch(child, &mut reports, connection.as_ref());
    let status = release(connection).and(status);
    let (grace, mark) = reports.rules();
    // An agent that counts as lost is a descendant, too. If it runs again, it ends its ranks in order.
    Ending::begin(Scope::descendants(mark), grace).wait();
    status
}

/// Waits until the agent ends or counts as lost, and forwards terminating signals to it; returns its exit
/// status. Keeps the input from the launcher open, which shows its end.
fn watch(child: Pid, reports: &mut Reports, connection: Option<&OwnedFd>) -> io::Result<i32> {
    if connection.is_none() {
        spawn::release_stdout()?;
    }
    let stdin = io::stdin();
    let input = connection.map_or(stdin.as_fd(), AsFd::as_fd);
    let mut signals = Signals::catch().map_err(io::Error::other)?;
    let mut due = Instant::now() + ALIVE_INTERVAL;
    let mut silent_intervals = 0;
    loop {
        if let Some(status) = exit_status_of(child)? {
            return Ok(status);
        }
        if Instant::now() >= due {
            silent_intervals = if reports.read() { 0 } else { silent_intervals + 1 };
            due = Instant::now() + ALIVE_INTERVAL;
        }
        if silent_intervals >= MAX_SILENT_INTERVALS
            || (silent_intervals >= MAX_SILENT_INTERVALS_AT_END && is_hung_up(input))
        {
            return Ok(BROKEN);
        }
        forward(&signals.wait(Some(due), None).map_err(io::Error::other)?, child);
    }
}

/// Whether the launcher has closed the connection. Bytes that it has sent before may still be unread.
fn is_hung_up(input: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(input, HANG_UP)];
    let _ = poll(&mut fds, Some(&Timespec::default()));
    fds[0].revents().intersects(HANG_UP)
}

/// Returns the exit status of a child that has ended, or that of a shell if a signal killed it.
fn exit_status_of(child: Pid) -> io::Result<Option<i32>> {
    let status = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    let number = |status: WaitIdStatus| {
        let killed = || status.terminating_signal().map(|signal| 128 + signal);
        status.exit_status().or_else(killed).unwrap_or(BROKEN)
    };
    Ok(status.map(number))
}

/// Sends signals to a child that has not been reaped, whose id is therefore its own.
fn forward(signals: &[i32], child: Pid) {
    for signal in signals.iter().filter_map(|signal| Signal::from_named_raw(*signal)) {
        let _ = kill_process(child, signal);
    }
}
