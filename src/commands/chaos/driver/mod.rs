//! The driver of a round: starts its processes, injects faults, and looks for anything that is left.
//!
//! | module | purpose |
//! |---|---|
//! | `fabric` | software devices, and their faults |
//! | `inject` | faults from outside of a process |
//! | `job` | the processes of a round |
//! | `leftovers` | processes and files that are left |
//! | `system` | processes as the system shows them |
//! | `tcp` | connections over TCP |

mod fabric;
mod inject;
mod job;
mod leftovers;
mod system;
mod tcp;

pub(super) use fabric::enter as enter_fabric;
pub(super) use leftovers::Workplace;
pub(super) use system::adopt_orphans;

use super::{
    CommandError,
    account::{Account, now},
    fault::Effect,
    oracle::{End, Observation, Verdict, judge},
    plan::{Round, Wishes},
    worker::GO,
};
use inject::Injector;
use job::Job;
use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Interval of looks at the reports.
const INTERVAL: Duration = Duration::from_micros(500);

/// Time without any report after which a round hangs, beyond twice the time limit of calls.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time that processes have to make the next communicator and to close, beyond twice the time limit.
const CLOSING_TIME: Duration = Duration::from_secs(15);

/// A round that has been run and judged.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) round: Round,
    pub(super) verdict: Verdict,
    /// Whether each fault was injected.
    pub(super) injected: Vec<bool>,
    pub(super) took: Duration,
    /// The output of the processes, if the round violates a rule.
    pub(super) output: String,
}

/// Runs a round. Returns `None` if it was interrupted.
pub(super) fn run(
    round: Round,
    wishes: &Wishes,
    workplace: &Workplace,
    is_interrupted: &AtomicBool,
) -> Result<Option<Judged>, CommandError> {
    let began = Instant::now();
    let folder = workplace.folder(&round)?;
    let job = Job::start(&round, wishes, &folder)?;
    let mut driver = Driver {
        injector: Injector::new(&round, &folder),
        accounts: (0..round.processes()).map(|_| Account::default()).collect(),
        ends: vec![End::Ended; round.processes() as usize],
        leftovers: Vec::new(),
        round: &round,
        folder: &folder,
        job,
        is_interrupted,
        latest_news: now(),
    };
    driver.run()?;
    let Driver { injector, accounts, ends, leftovers, .. } = driver;
    if is_interrupted.load(Relaxed) {
        return Ok(None);
    }
    let (injected, effective) = (injector.times(&accounts), injector.effects(&accounts));
    let observation = Observation {
        round: &round,
        accounts: &accounts,
        injected: &injected,
        effective: &effective,
        ends: &ends,
        leftovers: &leftovers,
    };
    let verdict = judge(&observation);
    let output = if verdict.violations.is_empty() { String::new() } else { job::output(&folder) };
    workplace.put_away(&round, !verdict.violations.is_empty());
    let injected = injected.iter().map(Option::is_some).collect();
    Ok(Some(Judged { round, verdict, injected, took: began.elapsed(), output }))
}

struct Driver<'r> {
    round: &'r Round,
    folder: &'r Path,
    job: Job,
    injector: Injector<'r>,
    accounts: Vec<Account>,
    ends: Vec<End>,
    leftovers: Vec<String>,
    is_interrupted: &'r AtomicBool,
    /// Time of the latest report or injection.
    latest_news: u64,
}

impl Driver<'_> {
    fn run(&mut self) -> Result<(), CommandError> {
        let hang = 2 * self.round.timeout + PATIENCE + self.round.longest_fault();
        self.watch(hang, Driver::has_reported)?;
        self.injector.heal()?;
        self.let_go()?;
        self.watch(2 * self.round.timeout + CLOSING_TIME, Driver::is_over)?;
        // A process may have reported between the latest look at its file and its end.
        self.update()?;
        for number in 0..self.round.processes() {
            if !self.is_over(number) {
                self.ends[number as usize] = End::Stuck;
            }
        }
        if self.ends.contains(&End::Stuck) {
            self.job.record_stuck(&self.accounts, self.folder);
        }
        self.leftovers.extend(self.job.finish(self.round, self.injector.has_killed_server()));
        self.leftovers.extend(leftovers::find_and_end(self.folder, self.is_interrupted));
        Ok(())
    }

    /// Watches the processes, and injects faults, until `is_done` holds for each process, or nothing has
    /// happened for some time.
    fn watch(&mut self, patience: Duration, is_done: fn(&Self, u32) -> bool) -> Result<(), CommandError> {
        self.latest_news = now();
        loop {
            if self.update()? {
                self.latest_news = now();
            }
            let all = 0..self.round.processes();
            let is_over = all.into_iter().all(|number| is_done(self, number)) && self.injector.is_idle();
            let silent = Duration::from_micros(now() - self.latest_news);
            if is_over || silent > patience || self.is_interrupted.load(Relaxed) {
                return Ok(());
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Reads the reports and injects due faults; returns whether anything has happened.
    fn update(&mut self) -> Result<bool, CommandError> {
        let size = |accounts: &[Account]| accounts.iter().map(Account::size).sum::<u64>();
        let before = size(&self.accounts);
        for (number, account) in (0..).zip(&mut self.accounts) {
            account.update(self.folder, number);
        }
        let injects = self.injector.advance(&self.accounts, &mut self.job)?;
        Ok(injects || size(&self.accounts) != before)
    }

    /// Whether a process has made all of its steps, or has ended.
    fn has_reported(&self, number: u32) -> bool {
        self.accounts[number as usize].finished.is_some() || self.has_ended(number)
    }

    /// Whether a process has closed everything, or has ended.
    fn is_over(&self, number: u32) -> bool {
        self.has_ended(number)
    }

    fn has_ended(&self, number: u32) -> bool {
        match self.accounts[number as usize].pid {
            Some(pid) => !system::is_alive(pid),
            // Where the launcher has ended, nothing starts.
            None => self.job.is_without_starter(number, self.round),
        }
    }

    /// Lets the processes that live make the next communicator.
    fn let_go(&self) -> Result<(), CommandError> {
        let times = self.injector.times(&self.accounts);
        let happened = self.round.faults.iter().zip(times).filter(|(_, at)| at.is_some());
        // A process may live for a moment after the signal that kills it.
        let ended: Vec<u32> = happened
            .filter(|(fault, _)| self.round.effect(fault) == Effect::Ends)
            .flat_map(|(fault, _)| self.round.culprits(fault))
            .collect();
        let is_lost = |number: &u32| ended.contains(number) || self.has_ended(*number);
        let lost: Vec<u32> = (0..self.round.ranks).filter(is_lost).collect();
        let draft = self.folder.join("go.draft");
        let written = fs::write(&draft, serde_json::to_string(&lost).unwrap_or_default())
            .and_then(|()| fs::rename(&draft, self.folder.join(GO)));
        written.map_err(|error| CommandError::new(format_args!("{}: {error}", draft.display())))
    }
}
