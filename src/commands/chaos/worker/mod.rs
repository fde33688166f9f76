//! One process of a round: joins, makes its steps, reports each, and makes the next communicator.
//!
//! A step that fails closes its group for this process, which goes on with the steps of other groups. When
//! all processes have reported, the driver names the lost ones in a file. The others then make a communicator
//! of their own, use it, and close everything.
//!
//! | module | purpose |
//! |---|---|
//! | `calls` | the work of steps |
//! | `fork` | forked children |
//! | `harm` | faults that a rank injects into itself |
//! | `meeting` | joining by the means of the round |
//! | `next` | the next communicator |
//! | `residue` | descriptors, threads and mappings that are left |

mod calls;
mod fork;
mod harm;
mod meeting;
mod next;
mod residue;

pub(super) use meeting::GO;

use super::{
    CommandError,
    account::{Failed, Report, Reporter, now},
    plan::{Round, Step, Work},
};
use crate::reference::traffic::TrafficError;
use fork::Child;
use harm::Limits;
use residue::Baseline;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    thread::JoinHandle,
};
use tbccl::{Config, Error, P2p, SharedCommunicator};

/// A communicator of the plan.
#[derive(Clone, Debug)]
enum Group {
    Calls(SharedCommunicator),
    Tagged(P2p),
}

/// The end of a step without success.
#[derive(Debug)]
enum Mishap {
    /// The library reported an error.
    Failed(Error),
    /// A result is wrong, or a rule is violated.
    Wrong(String),
}

impl From<Error> for Mishap {
    fn from(error: Error) -> Mishap {
        Mishap::Failed(error)
    }
}

impl From<TrafficError> for Mishap {
    fn from(error: TrafficError) -> Mishap {
        match error {
            TrafficError::Failed(error) => Mishap::Failed(error),
            TrafficError::Wrong(text) => Mishap::Wrong(text),
        }
    }
}

/// A process of a round.
#[derive(Debug)]
struct Worker<'r> {
    round: &'r Round,
    number: u32,
    /// The folder that all processes of the round share.
    folder: PathBuf,
    reporter: &'r Reporter,
    config: Config,
    groups: HashMap<usize, Group>,
    /// Groups that have failed here, with their errors. They are kept until the end.
    failed: HashMap<usize, (Group, Error)>,
    /// Time at which the latest step began, or at which the process had found the means for it.
    began: u64,
    children: Vec<Child>,
    aborts: Vec<JoinHandle<()>>,
}

/// Runs a process of a round.
///
/// # Errors
/// Errors of its options, and of its file.
pub(super) fn run(round: &Round, number: u32, folder: &Path) -> Result<(), CommandError> {
    let reporter = Reporter::create(folder, number).map_err(CommandError::new)?;
    let config = Config::from_env().map_err(CommandError::new)?;
    reporter.say(&Report::Started { pid: std::process::id() });
    // It stays for the life of the process.
    tbccl::record_on_signal(config.dump.as_deref()).map_err(CommandError::new)?;
    let baseline = Baseline::take();
    let config = Config { host_id: round.host_of(number).unwrap_or_default(), ..config };
    let worker = Worker {
        round,
        number,
        folder: folder.to_owned(),
        reporter: &reporter,
        config,
        groups: HashMap::new(),
        failed: HashMap::new(),
        began: 0,
        children: Vec::new(),
        aborts: Vec::new(),
    };
    worker.live();
    reporter.say(&Report::Closed { residue: baseline.residue() });
    Ok(())
}

impl Worker<'_> {
    /// Lives through the round.
    fn live(mut self) {
        self.join();
        for at in 0..self.round.steps.len() {
            if self.takes_part(at) && self.make_step(at).is_none() {
                return;
            }
        }
        self.reporter.say(&Report::Finished { at: now() });
        for abort in std::mem::take(&mut self.aborts) {
            let _ = abort.join();
        }
        let children = std::mem::take(&mut self.children);
        if let Some(lost) = self.wait_for_driver() {
            self.make_next(&lost);
        }
        for child in children {
            if let Err(text) = child.wait() {
                self.reporter.say(&Report::Wrong { step: None, text });
            }
        }
        self.close_all();
    }

    /// Joins the world, if this process is of it.
    fn join(&mut self) {
        if self.number >= self.round.ranks {
            return;
        }
        self.come_late();
        let began = now();
        match self.meet() {
            Ok(comm) => {
                self.groups.insert(0, Group::Calls(SharedCommunicator::new(comm)));
            }
            Err(error) => self.report(None, began, &Mishap::Failed(error)),
        }
    }

    /// Whether this process makes a step: it is a member of the group, which has not failed here, or joins by
    /// the step.
    fn takes_part(&self, at: usize) -> bool {
        let step = &self.round.steps[at];
        self.groups.contains_key(&step.group) || self.round.newcomers_of(step).contains(&self.number)
    }

    /// Makes a step and reports its failure. Returns `None` if this process leaves.
    fn make_step(&mut self, at: usize) -> Option<()> {
        let step = &self.round.steps[at];
        self.reporter.say(&Report::Step { step: at, at: now() });
        let limits = self.inject(at)?;
        self.began = now();
        let made = self.work(at, step);
        drop::<Option<Limits>>(limits);
        if let Err(mishap) = made {
            self.report(Some(at), self.began, &mishap);
            if let (Some(group), Mishap::Failed(error)) = (self.groups.remove(&step.group), mishap) {
                self.failed.insert(step.group, (group, error));
            }
        }
        Some(())
    }

    fn report(&self, step: Option<usize>, began: u64, mishap: &Mishap) {
        let report = match mishap {
            Mishap::Wrong(text) => Report::Wrong { step, text: text.clone() },
            Mishap::Failed(error) => {
                let at = now();
                let kind = format!("{error:?}");
                let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
                Report::Failed(Failed { step, at, took: at - began, kind, text: error.to_string() })
            }
        };
        self.reporter.say(&report);
    }

    fn work(&mut self, at: usize, step: &Step) -> Result<(), Mishap> {
        match &step.work {
            Work::Call(case) => self.call(at, step.group, *case),
            Work::Calls(cases) => self.calls(step.group, cases),
            Work::Barrier => self.on_communicator(step.group, |comm| Ok(comm.barrier()?)),
            Work::Traffic(traffic) => self.traffic(step.group, traffic),
            Work::Split { colors, keys, .. } => self.split(at, step, colors, keys),
            Work::Tag { makes } => self.tag(step.group, *makes),
            Work::Shrink { without, makes } => self.shrink(step.group, without, *makes),
            Work::Grow { host, makes } => self.grow(step, *host, *makes),
            Work::Close => self.close(step.group),
        }
    }

    /// Closes everything that this process holds.
    fn close_all(&mut self) {
        self.groups.clear();
        self.failed.clear();
    }
}
