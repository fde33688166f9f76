//! The agent: started by the launcher on each host, once, to start the ranks there and end them.
//!
//! It exchanges frames over its stdin and stdout. When the launcher ends, is killed, or the connection
//! between the hosts is lost, stdin ends or falls silent; then the agent ends its ranks and itself. When the
//! agent itself is killed, the kernel kills the ranks with it on Linux; elsewhere they notice the end of the
//! rendezvous, as without an agent.
//!
//! One thread does everything and waits only in `poll`: for the launcher, for signals, for the ranks' pipes.
//!
//! The agent decides nothing: the launcher decides when ranks are ended because another has failed.

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

/// A launcher that has said nothing for so long is gone: it says every second that it is there.
const SILENCE: Duration = Duration::from_secs(20);

/// How long the launcher may take to read our last words.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The variable of ssh's server with the addresses of a connection's ends.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// Whether the agent goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    /// The job is over.
    Finish,
    /// There is nobody to work for.
    Orphaned,
}

/// Serves the launcher at the other end of stdin and stdout, until the job is over or the launcher gone.
///
/// # Errors
/// When the system refuses what every agent needs, before anything has been started.
pub fn serve() -> io::Result<()> {
    let signals = Signals::catch().map_err(io::Error::other)?;
    let _orphans = Orphans::adopt();
    let mut agent = Agent { channel: Channel::open()?, signals, job: None };
    let launcher = std::env::var(SSH_CONNECTION).ok();
    let launcher = launcher.and_then(|ends| ends.split(' ').next().map(str::to_owned));
    let hello = FromAgent::Hello { version: VERSION.to_owned(), protocol: PROTOCOL, launcher };
    agent.channel.say(&hello, b"");
    agent.run();
    Ok(())
}

struct Agent {
    channel: Channel,
    signals: Signals,
    /// From Prepare on.
    job: Option<Job>,
}

impl Agent {
    fn run(mut self) {
        let next = loop {
            if let Some(job) = &mut self.job {
                job.advance(&mut self.channel);
            }
            self.channel.send();
            if self.channel.is_lost(SILENCE) {
                break Next::Orphaned;
            }
            self.wait();
            match self.listen() {
                Next::GoOn => {}
                next => break next,
            }
        };
        if let Some(job) = self.job.take() {
            job.end(&mut self.channel);
        }
        if next == Next::Finish {
            self.channel.say(&FromAgent::Finished, b"");
            self.say_last_words();
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) {
        let until = self.channel.keep_alive();
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        if self.channel.is_waiting() {
            fds.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        let reads = !self.channel.is_full();
        fds.extend(self.job.iter().flat_map(|job| job.interests(reads)));
        // An error shows when the descriptor is read.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Handles signals and the launcher's frames.
    fn listen(&mut self) -> Next {
        if self.signals.arrived().iter().any(|signal| [SIGTERM, SIGHUP, SIGINT].contains(signal)) {
            return Next::Orphaned;
        }
        for (frame, tail) in self.channel.receive() {
            match (frame, &mut self.job) {
                (ToAgent::Prepare(prepare), None) => match Job::prepare(*prepare) {
                    Ok(job) => {
                        if let Some(text) = job.warning() {
                            self.channel.say(&FromAgent::Warning { text }, b"");
                        }
                        self.job = Some(job);
                        self.channel.say(&FromAgent::Ready, b"");
                    }
                    Err(why) => self.channel.say(&FromAgent::Refused { why }, b""),
                },
                (ToAgent::Go, Some(job)) => match job.start() {
                    Ok(pids) => self.channel.say(&FromAgent::Started { pids }, b""),
                    Err(why) => self.channel.say(&FromAgent::Refused { why: why.to_string() }, b""),
                },
                (ToAgent::Stdin { rank }, Some(job)) => job.feed(rank, &tail, &mut self.channel),
                (ToAgent::Signal { number }, Some(job)) => job.signal(number),
                (ToAgent::Finish, _) => return Next::Finish,
                _ => {}
            }
        }
        Next::GoOn
    }

    fn say_last_words(&mut self) {
        let until = Instant::now() + LAST_WORDS;
        loop {
            self.channel.send();
            let left = until.saturating_duration_since(Instant::now());
            if !self.channel.is_waiting() || left.is_zero() {
                return;
            }
            let stdout = io::stdout();
            let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}
