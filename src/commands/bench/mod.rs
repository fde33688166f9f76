//! `tbccl bench`: measures an operation between ranks on this machine, and checks every element.
//!
//! The command is its own launcher: it starts itself once per rank, with `--worker` added, so that every rank
//! reads the same arguments. In a job of another launcher it is one of the ranks. With `--transport local`
//! the ranks are threads. Rank 0 reports. Wrong arguments are found before any rank is started. `all` is a job
//! for each operation, one after the other on the same communicator.
//!
//! | module | purpose |
//! |---|---|
//! | `args` | command-line arguments |
//! | `buffers` | buffers of measured operations |
//! | `case` | an operation with its form and size |
//! | `job` | the validated job |
//! | `measure` | the measurement of one operation |
//! | `measured` | results of one measurement |
//! | `memory` | check of the available memory |
//! | `operation` | operations that can be measured |
//! | `packed` | operations with packed messages |
//! | `pattern` | inputs with exact results |
//! | `regime` | whether the cores were near each other during a measurement |
//! | `report` | rank 0's output |
//! | `stats` | totals of each rank |
//! | `times` | statistics of samples |
//! | `work` | one rank's part of an operation |
//! | `worker` | one rank's loop over all cases |

mod args;
pub(super) mod buffers;
pub(super) mod case;
pub(super) mod job;
pub(super) mod measure;
mod measured;
pub(super) mod memory;
pub(super) mod operation;
pub(super) mod packed;
mod pattern;
mod regime;
mod report;
mod stats;
mod times;
pub(super) mod work;
mod worker;

pub(crate) use args::Args;

use super::{
    CommandError, WRONG, pin,
    role::{self, Role},
};
use args::Transport;
use job::{Job, Output};
use std::{process::ExitCode, thread};
use tbccl::{Communicator, Rank};
use worker::{Outcome, run_job};

/// Runs `tbccl bench`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let jobs = Job::all_of(args, &args.op)?;
    // All jobs of a command differ only in their operation.
    let Some(first) = jobs.first() else { return Ok(ExitCode::SUCCESS) };
    jobs.iter().try_for_each(memory::check)?;
    if args.worker {
        return run_worker(&jobs);
    }
    match (first.role, first.transport) {
        (Role::Rank { .. }, _) => run_job_rank(&jobs),
        (Role::Launcher, Transport::Local) => create_json(first).and_then(|()| run_threads(&jobs)),
        (Role::Launcher, Transport::Between(_)) => {
            create_json(first)?;
            role::start_ranks("tbccl bench", first.ranks, &first.config)
        }
    }
}

/// Creates the file for results, so that an unwritable one is reported before the measurement.
fn create_json(job: &Job) -> Result<(), CommandError> {
    match &job.output {
        Output::TableAndJson(path) => report::create(path),
        _ => Ok(()),
    }
}

/// Runs one rank of a job that another launcher has started.
fn run_job_rank(jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let mut comm = Communicator::from_env_with(&jobs[0].config).map_err(CommandError::new)?;
    if comm.rank() == Rank(0) {
        create_json(&jobs[0])?;
    }
    run_rank(&mut comm, jobs).map(exit_code)
}

/// Runs one rank, as a process that this command has started.
fn run_worker(jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let mut comm = Communicator::from_env_with(&jobs[0].config).map_err(CommandError::new)?;
    run_rank(&mut comm, jobs).map(exit_code)
}

/// Runs every rank as a thread.
fn run_threads(jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let comms = Communicator::local(jobs[0].ranks, &jobs[0].config).map_err(CommandError::new)?;
    let outcomes: Vec<Result<Outcome, CommandError>> = thread::scope(|scope| {
        let rank = |mut comm: Communicator| scope.spawn(move || run_rank(&mut comm, jobs));
        let threads: Vec<_> = comms.into_iter().map(rank).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(CommandError::new("a rank panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut outcomes = outcomes.into_iter();
    let rank_0 = outcomes.next().unwrap_or(Ok(Outcome::Correct));
    for failed in outcomes.filter_map(Result::err) {
        failed.report();
    }
    rank_0.map(exit_code)
}

/// Runs all jobs as one rank, until one can't report.
fn run_rank(comm: &mut Communicator, jobs: &[Job]) -> Result<Outcome, CommandError> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    if jobs.iter().any(|job| job.pin) {
        pin::pin(comm);
    }
    let mut all = Outcome::Correct;
    for (index, job) in jobs.iter().enumerate() {
        match run_job(comm, job, cores, index > 0)? {
            Outcome::Stopped => return Ok(Outcome::Stopped),
            Outcome::Wrong => all = Outcome::Wrong,
            Outcome::Correct => {}
        }
    }
    Ok(all)
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Correct | Outcome::Stopped => ExitCode::SUCCESS,
        Outcome::Wrong => ExitCode::from(WRONG),
    }
}
