//! The life of a job: running, draining, terminating, killed.

use super::{
    Ended, Failure, LaunchError, LaunchSpec, Outcome, Output, Rendezvous, environment,
    output::Tagger,
    ranks::{RankProcess, Ranks},
    signals::Signals,
    spawn,
};
use rustix::process::Signal;
use signal_hook::consts::SIGINT;
use std::{
    io::{self, IsTerminal, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How long we wait for processes that were killed before we leave them to the system.
const AFTER_KILL: Duration = Duration::from_secs(5);

/// Where a job is on its way to the end.
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
pub(super) fn run(
    spec: &LaunchSpec,
    program: &Path,
    rendezvous: &dyn Rendezvous,
) -> Result<Outcome, LaunchError> {
    let started = Instant::now();
    let mut signals = Signals::catch()?;
    let _orphans = Orphans::adopt();
    let (ranks, tagger) = start(spec, program, &rendezvous.address())?;
    let mut supervisor = Supervisor {
        spec,
        rendezvous,
        ranks,
        phase: Phase::Running,
        deadline: spec.timeout.and_then(|limit| started.checked_add(limit)),
        interrupts: 0,
        outcome: Outcome::Succeeded,
    };
    supervisor.watch(&mut signals)?;
    supervisor.ranks.sweep(spec.grace);
    if let Some(tagger) = tagger {
        tagger.finish(&mut signals)?;
    }
    Ok(supervisor.outcome)
}

/// Starts all ranks, or none.
fn start(spec: &LaunchSpec, program: &Path, bootstrap: &str) -> Result<(Ranks, Option<Tagger>), LaunchError> {
    let mut ranks = Ranks::default();
    let mut tagger = match spec.output {
        Output::Direct => None,
        Output::Tagged => Some(Tagger::default()),
    };
    for rank in 0..spec.ranks {
        let own = spec.rank_env.get(rank as usize).into_iter().flatten();
        let mut command = Command::new(program);
        command
            .arg0(&spec.program)
            .args(&spec.args)
            .envs(environment::of_rank(rank, spec.ranks, bootstrap))
            .envs(spec.env.iter().chain(own).map(|(key, value)| (key, value)))
            .stdin(stdin_of(rank));
        if tagger.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = spawn::in_own_group(command).map_err(|source| LaunchError::Spawn {
            rank,
            ranks: spec.ranks,
            source,
        })?;
        ranks.add(rank, &child);
        if let Some(tagger) = &mut tagger {
            tagger.add(rank, &mut child)?;
        }
    }
    let tagger = tagger.map(Tagger::start).transpose()?;
    Ok((ranks, tagger))
}

/// Rank 0 reads what is piped into the launcher. A terminal's input is for nobody: the ranks are not in its
/// foreground process group, and would be stopped for trying.
fn stdin_of(rank: u32) -> Stdio {
    if rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

/// A job that has been started.
struct Supervisor<'a> {
    spec: &'a LaunchSpec,
    rendezvous: &'a dyn Rendezvous,
    ranks: Ranks,
    phase: Phase,
    /// When the job's time is over.
    deadline: Option<Instant>,
    /// How many `SIGINT`s were passed on.
    interrupts: u32,
    /// What it came to. Once it is not success, it stays.
    outcome: Outcome,
}

impl Supervisor<'_> {
    /// Returns when the last rank has ended.
    fn watch(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        loop {
            self.collect();
            self.advance(Instant::now());
            if self.ranks.running().next().is_none() || self.is_given_up(Instant::now()) {
                return Ok(());
            }
            let until = match self.phase {
                Phase::Running => self.deadline,
                Phase::Draining(t) | Phase::Terminating(t) | Phase::Killed(t) => Some(t),
            };
            for signal in signals.wait(until, None)? {
                self.pass_on(signal);
            }
        }
    }

    /// Takes notice of the ranks that have ended. What ends after we asked for it is no failure.
    fn collect(&mut self) {
        let ours = matches!(self.phase, Phase::Terminating(_) | Phase::Killed(_));
        let mut first = None;
        for (process, how) in self.ranks.newly_ended() {
            if how.is_success() {
                self.rendezvous.report_success(process.rank, process.pid());
            }
            if ours || how.is_success() {
                continue;
            }
            self.rendezvous.report_exit(process.rank, process.pid(), &how.to_string());
            first.get_or_insert(Failure { rank: process.rank, pid: process.pid(), how });
        }
        if let (Some(failure), Outcome::Succeeded) = (first, &self.outcome) {
            if !matches!(failure.how, Ended::Exited(status) if self.spec.explained.contains(&status)) {
                self.say_failed(&failure);
            }
            self.outcome = Outcome::Failed(failure);
        }
    }

    fn say_failed(&self, failure: &Failure) {
        let Failure { rank, pid, how } = failure;
        let others = match self.ranks.running().count() {
            0 => String::new(),
            1 => "; ending the other rank".to_owned(),
            n => format!("; ending the other {n} ranks"),
        };
        self.say(&format!("rank {rank} (pid {pid}) {how}{others}"));
    }

    /// Enters the next phase when it is due.
    fn advance(&mut self, now: Instant) {
        match self.phase {
            Phase::Running if self.outcome != Outcome::Succeeded => {
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

    fn terminate(&mut self, now: Instant) {
        self.ranks.signal(Signal::TERM);
        self.phase = Phase::Terminating(now + self.spec.grace);
    }

    fn kill(&mut self, now: Instant) {
        self.ranks.signal(Signal::KILL);
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

    /// What someone wants of the job goes to all of its ranks. Who interrupts twice does not want to wait.
    fn pass_on(&mut self, signal: i32) {
        self.interrupts += u32::from(signal == SIGINT);
        if signal == SIGINT && self.interrupts > 1 {
            self.say(&format!("interrupted again; killing {}", self.names_of_running()));
            if self.outcome == Outcome::Succeeded {
                self.outcome = Outcome::Interrupted;
            }
            self.kill(Instant::now());
        } else if let Some(signal) = Signal::from_named_raw(signal) {
            self.ranks.signal(signal);
        }
    }

    /// `rank 3 (pid 77)`, `ranks 0, 3`.
    fn names_of_running(&self) -> String {
        match self.ranks.running().collect::<Vec<&RankProcess>>().as_slice() {
            [one] => format!("rank {} (pid {})", one.rank, one.pid()),
            several => {
                let names: Vec<String> = several.iter().map(|p| p.rank.to_string()).collect();
                format!("ranks {}", names.join(", "))
            }
        }
    }

    /// One line on stderr, in one write: the ranks may be writing there as well.
    fn say(&self, text: &str) {
        let line = format!("{}: {text}\n", self.spec.name);
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// While it lives, orphans of the ranks become our children, and so can be waited for.
struct Orphans;

impl Orphans {
    fn adopt() -> Orphans {
        // Without it the ends of orphans are the business of process 1, as everywhere but on Linux.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Orphans
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(None);
    }
}
