//! The agent: the launcher starts one on each host, and it starts and ends the ranks there.
//!
//! It exchanges frames over its stdin and stdout. When the launcher ends, is killed, or loses the connection,
//! stdin ends or nothing more arrives; the agent then ends its ranks and itself. When the agent itself is
//! killed, the Linux kernel kills the ranks with it; on other systems the ranks notice the end of the
//! rendezvous connection, as without an agent.
//!
//! One thread does all work and blocks only in `poll`, on the launcher, signals and the ranks' pipes.
//!
//! The agent makes no decisions: the launcher decides when the failure of one rank ends the others.

mod channel;
mod files;
mod job;

use super::{
    frame::{FromAgent, PROTOCOL, ToAgent, VERSION},
    local_ranks::Orphans,
    signals::Signals,
};
use channel::Channel;
use job::Job;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    io,
    time::{Duration, Instant},
};

/// Time without a frame after which the launcher counts as gone; it sends one every second.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that the launcher has to read the last frames.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The variable in which the ssh server passes the addresses of both ends of the connection.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// The agent's next action after its input has been handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    /// The job is over; end the ranks and report it.
    Finish,
    /// The launcher is gone; end the ranks.
    Orphaned,
}

/// Serves the launcher at the other end of stdin and stdout until the job is over or the launcher is gone.
///
/// # Errors
/// Any error of the system while signals and stdin are set up, before a rank is started.
pub fn serve() -> io::Result<()> {
    let signals = Signals::catch().map_err(io::Error::other)?;
    let _orphans = Orphans::adopt();
    let mut agent = Agent { channel: Channel::open()?, signals, job: None };
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
    /// The job; `None` until the Prepare frame arrives.
    job: Option<Job>,
}

impl Agent {
    fn run(mut self) {
        let next = loop {
            if let Some(job) = &mut self.job {
                job.advance(&mut self.channel);
            }
            self.channel.flush();
            if self.channel.is_lost(LAUNCHER_TIMEOUT) {
                break Next::Orphaned;
            }
            self.wait();
            match self.handle_input() {
                Next::Continue => {}
                next => break next,
            }
        };
        if let Some(job) = self.job.take() {
            job.end(&mut self.channel);
        }
        if next == Next::Finish {
            self.channel.queue(&FromAgent::Finished, b"");
            self.flush_before_exit();
        }
    }

    /// Sleeps until a descriptor is ready or a keep-alive frame is due.
    fn wait(&mut self) {
        let until = self.channel.keep_alive();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        if self.channel.has_unsent() {
            fds.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        let reads = !self.channel.is_full();
        fds.extend(self.job.iter().flat_map(|job| job.poll_descriptors(reads)));
        // Errors appear when the descriptor is read.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Handles signals and the launcher's frames.
    fn handle_input(&mut self) -> Next {
        if self.signals.arrived().iter().any(|signal| [SIGTERM, SIGHUP, SIGINT].contains(signal)) {
            return Next::Orphaned;
        }
        for (frame, tail) in self.channel.receive() {
            match (frame, &mut self.job) {
                (ToAgent::Prepare(prepare), None) => match Job::prepare(*prepare) {
                    Ok(job) => {
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
                (ToAgent::Signal { number }, Some(job)) => job.signal(number),
                (ToAgent::Finish, _) => return Next::Finish,
                _ => {}
            }
        }
        Next::Continue
    }

    fn flush_before_exit(&mut self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        loop {
            self.channel.flush();
            let left = until.saturating_duration_since(Instant::now());
            if !self.channel.has_unsent() || left.is_zero() {
                return;
            }
            let stdout = io::stdout();
            let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}
