//! The socket between the agent and its keeper; each sees in it the end of the other.
//!
//! The agent sends one line with the rules for ending its job, and an empty line every second as a sign of
//! life. The keeper sends nothing.

use crate::launch::processes::JobMark;
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
    process::{Pid, Signal, getppid, kill_process},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

/// Interval between an agent's signs of life.
pub(super) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time between SIGTERM and SIGKILL, if the agent has not received that of its job yet.
const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// The agent's end. Dropping it continues a stopped keeper, which would otherwise remain.
#[derive(Debug)]
pub(super) struct Lifeline {
    /// The socket; writing does not block.
    socket: UnixStream,
    keeper: Pid,
    /// Time of the last sign of life.
    last_sign: Instant,
}

impl Lifeline {
    /// Returns the agent's end of a socket to the keeper with this process id.
    pub(super) fn new(socket: UnixStream, keeper: Pid) -> io::Result<Lifeline> {
        socket.set_nonblocking(true)?;
        Ok(Lifeline { socket, keeper, last_sign: Instant::now() })
    }

    /// Tells the keeper by which rules to end the job.
    pub(super) fn set_job(&mut self, grace: Duration, mark: &JobMark) {
        // If the keeper is gone, the agent ends the job.
        let _ = self.socket.write(format!("{} {}\n", grace.as_millis(), mark.value()).as_bytes());
    }

    /// Shows the keeper that the agent runs, when that is due; returns the time of the next sign.
    pub(super) fn keep_alive(&mut self) -> Instant {
        if self.last_sign.elapsed() >= ALIVE_INTERVAL {
            // The socket may be full while the keeper is stopped, which then needs no sign.
            let _ = self.socket.write(b"\n");
            self.last_sign = Instant::now();
        }
        self.last_sign + ALIVE_INTERVAL
    }

    /// Returns a descriptor that is readable when the keeper is gone.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the keeper is gone.
    pub(super) fn is_cut(&self) -> bool {
        let received = recv(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT);
        !matches!(received, Err(Errno::AGAIN | Errno::INTR))
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // A process that is still the parent has not ended, so its id is its own.
        if getppid() == Some(self.keeper) {
            let _ = kill_process(self.keeper, Signal::CONT);
        }
    }
}

/// The keeper's end.
#[derive(Debug)]
pub(super) struct Reports {
    /// The socket; reading does not block.
    socket: UnixStream,
    /// The bytes received so far, without signs of life.
    text: Vec<u8>,
}

impl Reports {
    /// Returns the keeper's end of a socket to the agent.
    pub(super) fn new(socket: UnixStream) -> io::Result<Reports> {
        socket.set_nonblocking(true)?;
        Ok(Reports { socket, text: Vec::new() })
    }

    /// Reads the available bytes; returns whether there were any.
    pub(super) fn read(&mut self) -> bool {
        let mut has_sign = false;
        let mut buffer = [0; 256];
        loop {
            match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return has_sign,
                Ok(length) => {
                    has_sign = true;
                    // The rules are one line, and all other lines are empty.
                    self.text.extend(buffer[..length].iter().filter(|byte| **byte != b'\n'));
                }
            }
        }
    }

    /// Returns the rules that the agent has sent for ending its job.
    pub(super) fn rules(mut self) -> (Duration, Option<JobMark>) {
        self.read();
        let text = String::from_utf8_lossy(&self.text);
        let Some((grace, mark)) = text.split_once(' ') else { return (DEFAULT_GRACE, None) };
        let grace = grace.parse().map_or(DEFAULT_GRACE, Duration::from_millis);
        (grace, Some(JobMark::from_value(mark)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    fn pair() -> (Lifeline, Reports) {
        let (agent, keeper) = UnixStream::pair().expect("a socket");
        (Lifeline::new(agent, getpid()).expect("a socket"), Reports::new(keeper).expect("a socket"))
    }

    #[test]
    fn a_keeper_learns_the_rules_among_signs_of_life() {
        let ((mut lifeline, mut reports), mark) = (pair(), JobMark::new());
        assert!(!reports.read());
        for sets_job in [false, true, false] {
            lifeline.last_sign -= ALIVE_INTERVAL;
            lifeline.keep_alive();
            if sets_job {
                lifeline.set_job(Duration::from_millis(200), &mark);
            }
            assert!(reports.read());
            assert!(!reports.read(), "all was read");
        }
        drop(lifeline);
        assert_eq!(reports.rules(), (Duration::from_millis(200), Some(mark)));
    }

    #[test]
    fn an_agent_does_not_wait_for_a_stopped_keeper() {
        let (mut lifeline, reports) = pair();
        // The keeper reads nothing, and the socket takes some hundred signs.
        for _ in 0..10_000 {
            lifeline.last_sign -= ALIVE_INTERVAL;
            lifeline.keep_alive();
        }
        assert!(!lifeline.is_cut());
        drop(reports);
        assert!(lifeline.is_cut());
    }
}
