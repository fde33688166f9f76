//! The keeper: the agent's parent, which ends the job's processes if the agent is killed.
//!
//! The program splits in two before it does anything else. The parent waits for the child, the agent, and
//! then ends what is left of the job. The agent in turn ends the job when its keeper is gone. Each has a
//! process group of its own, so that a signal to one group leaves the other process alive. Both adopt orphans
//! on Linux: all processes that descend from a rank descend from the agent, and after its death from the
//! keeper, in any session.

use crate::launch::{
    ending::Ending,
    processes::{self, JobMark, Scope},
    signals::Signals,
    spawn::{self, Forked},
};
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, waitid},
};
use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::exit,
    time::Duration,
};

/// Time between SIGTERM and SIGKILL, if the agent has not received that of its job yet.
const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// Exit status of a keeper that can't wait for its agent.
const BROKEN: i32 = 2;

/// The agent's connection to its keeper.
#[derive(Debug)]
pub(super) struct Lifeline {
    keeper: UnixStream,
}

impl Lifeline {
    /// Tells the keeper by which rules to end the job.
    pub(super) fn set_job(&mut self, grace: Duration, mark: &JobMark) {
        // If the keeper is gone, the agent ends the job.
        let _ = writeln!(self.keeper, "{} {}", grace.as_millis(), mark.value());
    }

    /// Returns a descriptor that is readable when the keeper is gone.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }

    /// Whether the keeper is gone.
    pub(super) fn is_cut(&self) -> bool {
        let received = recv(&self.keeper, &mut [0; 1], RecvFlags::DONTWAIT);
        !matches!(received, Err(Errno::AGAIN | Errno::INTR))
    }
}

/// Splits this process into the keeper and the agent; it must have one thread. Returns in the agent. The
/// keeper exits with the agent's status. `connection` leads to the launcher; without it, stdin and stdout do.
///
/// # Errors
/// Those of the system while the processes are set up.
pub(super) fn split(connection: Option<OwnedFd>) -> io::Result<(Lifeline, Option<OwnedFd>)> {
    // A shell that has executed this program may have left children to it, which are not the job's.
    if processes::has_children()
        && let Forked::Parent(child) = spawn::fork()?
    {
        let status = release(connection).and_then(|()| wait_for(child));
        exit(status.unwrap_or(BROKEN));
    }
    processes::adopt_orphans();
    let (agent, keeper) = UnixStream::pair()?;
    match spawn::fork()? {
        Forked::Parent(child) => {
            drop(keeper);
            exit(keep(child, agent, connection).unwrap_or(BROKEN));
        }
        Forked::Child => {
            drop(agent);
            rustix::process::setpgid(None, None)?;
            processes::adopt_orphans();
            Ok((Lifeline { keeper }, connection))
        }
    }
}

/// Closes this process's copy of the agent's connection, so that the connection ends with the agent.
fn release(connection: Option<OwnedFd>) -> io::Result<()> {
    match connection {
        Some(connection) => drop(connection),
        None => spawn::release_stdio()?,
    }
    Ok(())
}

/// Waits for the agent, and ends what it has left; returns its exit status.
fn keep(child: Pid, agent: UnixStream, connection: Option<OwnedFd>) -> io::Result<i32> {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tbccl-keeper");
    let status = release(connection).and_then(|()| wait_for(child));
    let (grace, mark) = rules(agent);
    Ending::begin(Scope::descendants(mark), grace).wait();
    status
}

/// Returns the rules that the agent has sent, before it ended, for ending its job.
fn rules(mut agent: UnixStream) -> (Duration, Option<JobMark>) {
    let mut text = String::new();
    // The agent's end is closed, so this ends.
    let _ = agent.read_to_string(&mut text);
    let Some((grace, mark)) = text.trim_end().split_once(' ') else { return (DEFAULT_GRACE, None) };
    let grace = grace.parse().map_or(DEFAULT_GRACE, Duration::from_millis);
    (grace, Some(JobMark::from_value(mark)))
}

/// Waits for a child and forwards terminating signals to it; returns its status, or that of a shell if a
/// signal killed it.
fn wait_for(child: Pid) -> io::Result<i32> {
    let mut signals = Signals::catch().map_err(io::Error::other)?;
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        if let Some(status) = waitid(WaitId::Pid(child), options)? {
            return Ok(exit_status(&status));
        }
        for signal in signals.wait(None, None).map_err(io::Error::other)? {
            if let Some(signal) = Signal::from_named_raw(signal) {
                // The child is not reaped yet, so its id is its own.
                let _ = kill_process(child, signal);
            }
        }
    }
}

fn exit_status(status: &WaitIdStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(BROKEN)
}
