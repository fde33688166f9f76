//! The life of a job: running, draining, terminating, killed.
//!
//! It knows when ranks are to be ended, and not where they are: that is the crew's business.

use super::{
    Ended, Failure, LaunchError, LaunchSpec, OnFailure, Outcome, Place, Rendezvous,
    hosts::RemoteRanks,
    local_ranks::LocalRanks,
    rank_set::{Member, RankSet},
    signals::Signals,
    sink::Unwritten,
};
use rustix::process::Signal;
use signal_hook::consts::SIGINT;
use std::time::{Duration, Instant};

/// How long we wait for processes that were killed before we leave them to the system.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// The phase of a job.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// All is well.
    Running,
    /// A rank has failed; the others may find out for themselves until then.
    Draining(Instant),
    /// All have been asked to end, and are killed then.
    Terminating(Instant),
    /// All have been killed, and are given up then.
    Killed(Instant),
}

/// Runs a job from its start to its end.
pub(super) fn run(spec: &LaunchSpec, rendezvous: &dyn Rendezvous) -> Result<Outcome, LaunchError> {
    let started = Instant::now();
    let mut signals = Signals::catch()?;
    match &spec.place {
        Place::Here => watch(spec, rendezvous, LocalRanks::start(spec, rendezvous)?, &mut signals, started),
        Place::Hosts(plan) => {
            let company = RemoteRanks::start(spec, plan, rendezvous, &mut signals)?;
            watch(spec, rendezvous, company, &mut signals, started)
        }
    }
}

/// Watches over a crew until nothing of it is left.
fn watch(
    spec: &LaunchSpec,
    rendezvous: &dyn Rendezvous,
    crew: impl RankSet,
    signals: &mut Signals,
    started: Instant,
) -> Result<Outcome, LaunchError> {
    let deadline = spec.timeout.and_then(|limit| started.checked_add(limit));
    let (phase, outcome) = (Phase::Running, Outcome::Succeeded);
    let mut supervisor =
        Supervisor { spec, rendezvous, crew, phase, deadline, interrupts: 0, outcome, has_success: false };
    supervisor.watch(signals)?;
    supervisor.crew.finish(signals)?;
    supervisor.take_trouble();
    Ok(supervisor.verdict())
}

/// A job that has been started.
struct Supervisor<'a, C> {
    spec: &'a LaunchSpec,
    rendezvous: &'a dyn Rendezvous,
    crew: C,
    phase: Phase,
    /// When the job's time is over.
    deadline: Option<Instant>,
    /// How many `SIGINT`s were passed on.
    interrupts: u32,
    /// The outcome. The first failure stays.
    outcome: Outcome,
    /// Whether a rank has done its work.
    has_success: bool,
}

impl<C: RankSet> Supervisor<'_, C> {
    /// Returns when the last rank has ended.
    fn watch(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        for signal in self.crew.early_signals() {
            self.pass_on(signal);
        }
        loop {
            self.collect();
            self.take_trouble();
            self.advance(Instant::now());
            if self.crew.running().is_empty() || self.is_given_up(Instant::now()) {
                return Ok(());
            }
            let until = match self.phase {
                Phase::Running => self.deadline,
                Phase::Draining(t) | Phase::Terminating(t) | Phase::Killed(t) => Some(t),
            };
            for signal in signals.wait(until, self.crew.descriptor())? {
                self.pass_on(signal);
            }
        }
    }

    /// Handles ranks that have ended. The end of a rank that was asked to end is no failure.
    fn collect(&mut self) {
        let ours = matches!(self.phase, Phase::Terminating(_) | Phase::Killed(_));
        let mut first = None;
        for (Member { rank, pid, host }, how) in self.crew.newly_ended() {
            if how.is_success() {
                self.has_success = true;
                self.rendezvous.report_success(rank, pid);
            }
            if ours || how.is_success() {
                continue;
            }
            self.rendezvous.report_exit(rank, pid, &how.to_string());
            first.get_or_insert(Failure { rank, pid, how, host });
        }
        if let (Some(failure), Outcome::Succeeded) = (first, &self.outcome) {
            let is_explained = match failure.how {
                Ended::Exited(status) => self.spec.explained.contains(&status),
                Ended::Signaled(_) => false,
                // The host that lost it has been reported.
                Ended::Lost => true,
            };
            if !is_explained {
                self.say_failed(&failure);
            }
            self.outcome = Outcome::Failed(failure);
        }
    }

    fn say_failed(&self, failure: &Failure) {
        let Failure { rank, pid, how, host } = failure;
        let place = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        let others = match self.crew.running().len() {
            0 => String::new(),
            1 if self.spec.on_failure == OnFailure::GoOn => "; the other rank goes on".to_owned(),
            n if self.spec.on_failure == OnFailure::GoOn => format!("; the other {n} ranks go on"),
            1 => "; ending the other rank".to_owned(),
            n => format!("; ending the other {n} ranks"),
        };
        self.say(&format!("rank {rank} (pid {pid}{place}) {how}{others}"));
    }

    /// Output that is lost is the end of the job.
    fn take_trouble(&mut self) {
        let Some(trouble) = self.crew.trouble() else { return };
        let outcome = match trouble {
            Unwritten::ReaderGone => Outcome::Unread,
            Unwritten::Failed(what) => {
                self.say(&what);
                Outcome::Unwritten
            }
        };
        if self.outcome == Outcome::Succeeded {
            self.outcome = outcome;
        }
        if matches!(self.phase, Phase::Running | Phase::Draining(_)) {
            self.terminate(Instant::now());
        }
    }

    /// Enters the next phase when it is due.
    fn advance(&mut self, now: Instant) {
        match self.phase {
            Phase::Running if self.outcome != Outcome::Succeeded && self.failure_ends_all() => {
                self.phase = Phase::Draining(now + self.spec.drain);
            }
            Phase::Running if self.deadline.is_some_and(|deadline| now >= deadline) => {
                let limit = self.spec.timeout.unwrap_or_default();
                self.say(&format!("the time of {limit:?} is over; ending {}", self.names_of_running()));
                self.outcome = Outcome::TimedOut;
                self.terminate(now);
            }
            Phase::Draining(until) if now >= until => self.terminate(now),
            Phase::Terminating(until) if now >= until => {
                let who = self.names_of_running();
                self.say(&format!("{who} did not end within {:?} of SIGTERM; killing", self.spec.grace));
                self.kill(now);
            }
            _ => {}
        }
    }

    fn failure_ends_all(&self) -> bool {
        self.spec.on_failure == OnFailure::EndAll || !matches!(self.outcome, Outcome::Failed(_))
    }

    /// Returns the outcome of a job that is over. Where ranks go on without those that fail, one that has
    /// done its work is enough.
    fn verdict(self) -> Outcome {
        match self.outcome {
            Outcome::Failed(_) if self.has_success && self.spec.on_failure == OnFailure::GoOn => {
                Outcome::Succeeded
            }
            outcome => outcome,
        }
    }

    fn terminate(&mut self, now: Instant) {
        self.crew.signal(Signal::TERM);
        self.phase = Phase::Terminating(now + self.spec.grace);
    }

    fn kill(&mut self, now: Instant) {
        self.crew.signal(Signal::KILL);
        self.phase = Phase::Killed(now + AFTER_KILL);
    }

    /// Not even killing has helped: a process sits in an uninterruptible system call.
    fn is_given_up(&self, now: Instant) -> bool {
        let given_up = matches!(self.phase, Phase::Killed(until) if now >= until);
        if given_up {
            let who = self.names_of_running();
            self.say(&format!("{who} did not end within {AFTER_KILL:?} of SIGKILL; giving up"));
        }
        given_up
    }

    /// Passes a signal on to all ranks. A second interrupt kills them.
    fn pass_on(&mut self, signal: i32) {
        self.interrupts += u32::from(signal == SIGINT);
        if signal == SIGINT && self.interrupts > 1 {
            self.say(&format!("interrupted again; killing {}", self.names_of_running()));
            if self.outcome == Outcome::Succeeded {
                self.outcome = Outcome::Interrupted;
            }
            self.kill(Instant::now());
        } else if let Some(signal) = Signal::from_named_raw(signal) {
            self.crew.signal(signal);
        }
    }

    /// `rank 3 (pid 77)`, `ranks 0, 3`.
    fn names_of_running(&self) -> String {
        match self.crew.running().as_slice() {
            [one] => format!("rank {} (pid {})", one.rank, one.pid),
            several => {
                let names: Vec<String> = several.iter().map(|member| member.rank.to_string()).collect();
                format!("ranks {}", names.join(", "))
            }
        }
    }

    fn say(&self, text: &str) {
        self.spec.say(text);
    }
}
