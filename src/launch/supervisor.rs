//! The phases of a job: running, draining, terminating, killed.
//!
//! The supervisor decides when ranks are ended. [`HostRanks`] knows where they run.

use super::{
    Ended, Failure, LaunchError, LaunchSpec, OnFailure, Outcome, Rendezvous,
    hosts::{HostRanks, Member},
    signals::Signals,
    sink::OutputError,
};
use rustix::process::Signal;
use signal_hook::consts::SIGINT;
use std::time::{Duration, Instant};

/// Time to wait for killed processes before they are left to the system.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The phase of a job.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No rank has failed.
    Running,
    /// A rank has failed; the others may run until this time, to report errors of their own.
    Draining(Instant),
    /// All ranks got SIGTERM; those still running at this time are killed.
    Terminating(Instant),
    /// All ranks got SIGKILL; the supervisor gives up at this time.
    Killed(Instant),
}

/// Runs a job from its start until none of its processes is left.
pub(super) fn run(spec: &LaunchSpec, rendezvous: &dyn Rendezvous) -> Result<Outcome, LaunchError> {
    let started = Instant::now();
    let mut signals = Signals::catch()?;
    let ranks = HostRanks::start(spec, rendezvous, &mut signals)?;
    let deadline = spec.timeout.and_then(|limit| started.checked_add(limit));
    let (phase, outcome) = (Phase::Running, Outcome::Succeeded);
    let mut supervisor =
        Supervisor { spec, rendezvous, ranks, phase, deadline, interrupts: 0, outcome, has_success: false };
    supervisor.watch(&mut signals)?;
    supervisor.ranks.finish(&mut signals)?;
    supervisor.take_output_error();
    Ok(supervisor.final_outcome())
}

/// The state of a running job.
struct Supervisor<'a> {
    spec: &'a LaunchSpec,
    rendezvous: &'a dyn Rendezvous,
    ranks: HostRanks<'a>,
    phase: Phase,
    /// End of the job's time limit.
    deadline: Option<Instant>,
    /// `SIGINT`s forwarded so far.
    interrupts: u32,
    /// The outcome so far; the first failure stays.
    outcome: Outcome,
    /// Whether a rank has exited with status 0.
    has_success: bool,
}

impl Supervisor<'_> {
    /// Supervises the ranks until the last one has ended.
    fn watch(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        for signal in self.ranks.early_signals() {
            self.forward(signal);
        }
        loop {
            self.collect();
            self.take_output_error();
            self.advance(Instant::now());
            if self.ranks.running().is_empty() || self.has_given_up(Instant::now()) {
                return Ok(());
            }
            let until = match self.phase {
                Phase::Running => self.deadline,
                Phase::Draining(t) | Phase::Terminating(t) | Phase::Killed(t) => Some(t),
            };
            for signal in signals.wait(until, Some(self.ranks.descriptor()))? {
                self.forward(signal);
            }
        }
    }

    /// Handles ranks that have ended. After a SIGTERM of the supervisor, the end of a rank is no failure.
    fn collect(&mut self) {
        let is_ending = matches!(self.phase, Phase::Terminating(_) | Phase::Killed(_));
        let mut first = None;
        for (Member { rank, pid, host }, how) in self.ranks.newly_ended() {
            if how.is_success() {
                self.has_success = true;
                self.rendezvous.report_success(rank, pid);
            }
            if is_ending || how.is_success() {
                continue;
            }
            self.rendezvous.report_exit(rank, pid, &how.to_string());
            first.get_or_insert(Failure { rank, pid, how, host });
        }
        if let (Some(failure), Outcome::Succeeded) = (first, &self.outcome) {
            let is_reported = match failure.how {
                Ended::Exited(status) => self.spec.reported_statuses.contains(&status),
                Ended::Signaled(_) => false,
                // The loss of its host has been reported.
                Ended::Lost => true,
            };
            if !is_reported {
                self.report_failure(&failure);
            }
            self.outcome = Outcome::Failed(failure);
        }
    }

    fn report_failure(&self, failure: &Failure) {
        let Failure { rank, pid, how, host } = failure;
        let placement = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        let others = match self.ranks.running().len() {
            0 => String::new(),
            1 if self.spec.on_failure == OnFailure::Continue => "; the other rank goes on".to_owned(),
            n if self.spec.on_failure == OnFailure::Continue => format!("; the other {n} ranks go on"),
            1 => "; ending the other rank".to_owned(),
            n => format!("; ending the other {n} ranks"),
        };
        self.say(&format!("rank {rank} (pid {pid}{placement}) {how}{others}"));
    }

    /// Ends the job if output was lost.
    fn take_output_error(&mut self) {
        let Some(output_error) = self.ranks.output_error() else { return };
        let outcome = match output_error {
            OutputError::ReaderGone => Outcome::OutputClosed,
            OutputError::Failed(message) => {
                self.say(&message);
                Outcome::OutputError
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
                self.say(&format!("the time limit of {limit:?} has passed; ending {}", self.running_names()));
                self.outcome = Outcome::TimedOut;
                self.terminate(now);
            }
            Phase::Draining(until) if now >= until => self.terminate(now),
            Phase::Terminating(until) if now >= until => {
                let names = self.running_names();
                self.say(&format!("{names} did not end within {:?} of SIGTERM; killing", self.spec.grace));
                self.kill(now);
            }
            _ => {}
        }
    }

    fn failure_ends_all(&self) -> bool {
        self.spec.on_failure == OnFailure::EndAll || !matches!(self.outcome, Outcome::Failed(_))
    }

    /// Returns the outcome of the ended job. With [`OnFailure::Continue`], one successful rank is enough.
    fn final_outcome(self) -> Outcome {
        match self.outcome {
            Outcome::Failed(_) if self.has_success && self.spec.on_failure == OnFailure::Continue => {
                Outcome::Succeeded
            }
            outcome => outcome,
        }
    }

    fn terminate(&mut self, now: Instant) {
        self.ranks.signal(Signal::TERM);
        self.phase = Phase::Terminating(now + self.spec.grace);
    }

    fn kill(&mut self, now: Instant) {
        self.ranks.signal(Signal::KILL);
        self.phase = Phase::Killed(now + KILL_WAIT);
    }

    /// Whether even SIGKILL has not ended all ranks in time: a process is in an uninterruptible system call.
    fn has_given_up(&self, now: Instant) -> bool {
        let given_up = matches!(self.phase, Phase::Killed(until) if now >= until);
        if given_up {
            let names = self.running_names();
            self.say(&format!("{names} did not end within {KILL_WAIT:?} of SIGKILL; giving up"));
        }
        given_up
    }

    /// Forwards a signal to all ranks. A second `SIGINT` kills them.
    fn forward(&mut self, signal: i32) {
        self.interrupts += u32::from(signal == SIGINT);
        if signal == SIGINT && self.interrupts > 1 {
            self.say(&format!("interrupted again; killing {}", self.running_names()));
            if self.outcome == Outcome::Succeeded {
                self.outcome = Outcome::Interrupted;
            }
            self.kill(Instant::now());
        } else if let Some(signal) = Signal::from_named_raw(signal) {
            self.ranks.signal(signal);
        }
    }

    /// Returns the names of running ranks: `rank 3 (pid 77)`, `ranks 0, 3`.
    fn running_names(&self) -> String {
        match self.ranks.running().as_slice() {
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
