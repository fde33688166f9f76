//! The agent: the launcher starts one on each host, and it starts and ends the ranks there.
//!
//! It exchanges frames over its stdin and stdout, or on the launcher's host over a socket. When the launcher
//! ends, is killed, or loses the connection, the connection ends or nothing more arrives; the agent then ends
//! its ranks and itself. When the agent itself is killed, the Linux kernel kills the ranks with it, and its
//! `keeper` ends the processes that they have started. The keeper ends all of them when the agent is stopped.
//!
//! | module | purpose |
//! |---|---|
//! | `channel` | the connection to the launcher |
//! | `files` | files for the ranks |
//! | `job` | the ranks: processes, pipes, files |
//! | `keeper` | the agent's parent |
//! | `lifeline` | the socket between the agent and its keeper |
//!
//! One thread does all work and blocks only in `poll`, on the launcher, the keeper, signals and the ranks'
//! pipes.
//!
//! The agent makes no decisions: the launcher decides when the failure of one rank ends the others.

mod channel;
mod files;
mod job;
mod keeper;
mod lifeline;

use super::{
    ending::Ending,
    frame::{FromAgent, PROTOCOL, ToAgent, VERSION},
    processes::Scope,
    signals::Signals,
    spawn,
};
use channel::Channel;
use job::Job;
use lifeline::Lifeline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};
use std::{
    io,
    os::fd::RawFd,
    time::{Duration, Instant},
};

/// Time without a frame after which the launcher counts as gone; it sends one every second.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that the launcher has to read the last frames.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The variable in which the ssh server passes the addresses of both ends of the connection.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// Interval between searches for ended processes that the ranks have left.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// Grace period of an agent that has no job yet.
const NO_GRACE: Duration = Duration::ZERO;

/// The agent's next action after its input has been handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    /// The job is over, or the launcher is gone; end the ranks.
    End,
    /// End the ranks without a grace period.
    Kill,
}

/// Serves the launcher until the job is over or the launcher is gone. `connection` is the number of the
/// socket to the launcher; without it, stdin and stdout lead there. This process must have one thread;
/// another process returns from this call.
///
/// # Errors
/// Any error of the system while processes, signals and the connection are set up, before a rank is started.
pub fn serve(connection: Option<RawFd>) -> io::Result<()> {
    let connection = connection.map(spawn::take_connection).transpose()?;
    let (lifeline, connection) = keeper::split(connection)?;
    let signals = Signals::catch().map_err(io::Error::other)?;
    let channel = Channel::open(connection)?;
    let mut agent = Agent {
        channel,
        signals,
        lifeline,
        job: None,
        ending: None,
        is_finishing: false,
        last_reaped: Instant::now(),
    };
    let launcher = std::env::var(SSH_CONNECTION).ok();
    let launcher = launcher.and_then(|connection| connection.split(' ').next().map(str::to_owned));
    let hello = FromAgent::Hello { version: VERSION.to_owned(), protocol: PROTOCOL, launcher };
    agent.channel.queue(&hello, b"");
    agent.run();
    Ok(())
}

struct Agent {
    channel: Channel,
    signals: Signals,
    lifeline: Lifeline,
    /// The job; `None` until the Prepare frame arrives.
    job: Option<Job>,
    /// The end of the job's processes, once it has begun.
    ending: Option<Ending>,
    /// Whether the launcher has asked for the end of the job.
    is_finishing: bool,
    /// Time of the last search for ended processes that the ranks have left.
    last_reaped: Instant,
}

impl Agent {
    fn run(mut self) {
        loop {
            if let Some(job) = &mut self.job {
                job.forward(&mut self.channel);
                // Ranks that the agent ends unasked count as lost with it.
                if self.ending.is_none() || self.is_finishing {
                    job.report_ended(&mut self.channel);
                }
            }
            self.channel.flush();
            if self.channel.is_lost(LAUNCHER_TIMEOUT) || self.lifeline.is_cut() {
                self.end();
            }
            if self.ending.as_mut().is_some_and(Ending::poll) {
                break;
            }
            self.wait();
            let next = self.handle_input();
            self.reap_orphans();
            match next {
                Next::Continue => {}
                Next::End => self.end(),
                Next::Kill => self.kill(),
            }
        }
        // A launcher that has not asked for the end learns of it as the end of the connection.
        if self.is_finishing {
            self.report_end();
        }
    }

    /// Begins to end the job's processes, if that has not begun.
    fn end(&mut self) {
        if self.ending.is_none() {
            let mark = self.job.as_ref().map(|job| job.mark().clone());
            let grace = self.job.as_ref().map_or(NO_GRACE, Job::grace);
            self.ending = Some(Ending::begin(Scope::descendants(mark), grace));
        }
    }

    /// Kills the job's processes, if their end has begun.
    fn kill(&mut self) {
        if let Some(ending) = &mut self.ending {
            ending.kill();
        }
    }

    /// Sends the last frames.
    fn report_end(mut self) {
        if let Some(job) = &self.job {
            job.drain(&mut self.channel);
        }
        let left = self.ending.iter().flat_map(Ending::left);
        let left: Vec<String> = left.map(|process| process.pid.to_string()).collect();
        if !left.is_empty() {
            let text = format!("these processes did not end after SIGKILL: {}", left.join(", "));
            self.channel.queue(&FromAgent::Warning { text }, b"");
        }
        self.channel.queue(&FromAgent::Finished, b"");
        self.flush_before_exit();
    }

    /// Sleeps until a descriptor is ready or something is due.
    fn wait(&mut self) {
        let mut until = self.channel.keep_alive().min(self.lifeline.keep_alive());
        if self.ending.is_some() {
            until = until.min(Instant::now() + Ending::POLL_INTERVAL);
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
        // A closed connection would be readable at all times.
        if self.ending.is_none() {
            fds.push(PollFd::from_borrowed_fd(self.lifeline.descriptor(), PollFlags::IN));
            fds.push(PollFd::from_borrowed_fd(self.channel.input(), PollFlags::IN));
        }
        if self.channel.has_unsent() {
            fds.push(PollFd::from_borrowed_fd(self.channel.output(), PollFlags::OUT));
        }
        let reads = !self.channel.is_full();
        fds.extend(self.job.iter().flat_map(|job| job.poll_descriptors(reads)));
        // Errors appear when the descriptor is read.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Reaps ended processes that the ranks have left, if children have ended and it is time.
    fn reap_orphans(&mut self) {
        if let Some(job) = self.job.as_ref().filter(|_| self.last_reaped.elapsed() >= REAP_INTERVAL)
            && self.signals.take_child_ended()
        {
            job.reap_orphans();
            self.last_reaped = Instant::now();
        }
    }

    /// Handles signals and the launcher's frames.
    fn handle_input(&mut self) -> Next {
        if self.signals.arrived().iter().any(|signal| [SIGTERM, SIGHUP, SIGINT].contains(signal)) {
            return Next::End;
        }
        let mut next = Next::Continue;
        for (frame, tail) in self.channel.receive() {
            match (frame, &mut self.job) {
                (ToAgent::Prepare(prepare), None) => match Job::prepare(*prepare) {
                    Ok(job) => {
                        self.lifeline.set_job(job.grace(), job.mark());
                        if let Some(text) = job.warning() {
                            self.channel.queue(&FromAgent::Warning { text }, b"");
                        }
                        self.job = Some(job);
                        self.channel.queue(&FromAgent::Ready, b"");
                    }
                    Err(why) => self.channel.queue(&FromAgent::Refused { why }, b""),
                },
                (ToAgent::Go, Some(job)) => match job.start() {
                    Ok(pids) => self.channel.queue(&FromAgent::Started { pids }, b""),
                    Err(why) => self.channel.queue(&FromAgent::Refused { why: why.to_string() }, b""),
                },
                (ToAgent::Stdin { rank }, Some(job)) => job.feed(rank, &tail, &mut self.channel),
                (ToAgent::Signal { number: SIGKILL }, _) if self.ending.is_some() => next = Next::Kill,
                // The leaders of groups are reaped as soon as the end has begun.
                (ToAgent::Signal { number }, Some(job)) if self.ending.is_none() => job.signal(number),
                (ToAgent::Finish, _) => {
                    self.is_finishing = true;
                    next = Next::End;
                }
                _ => {}
            }
        }
        next
    }

    fn flush_before_exit(&mut self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        loop {
            self.channel.flush();
            let left = until.saturating_duration_since(Instant::now());
            if !self.channel.has_unsent() || left.is_zero() {
                return;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.channel.output(), PollFlags::OUT)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}
