//! `tbccl bench`: measures an operation between ranks on this machine, and checks every element.
//!
//! The command is its own launcher: it starts itself once per rank, with `--worker` added, so that every rank
//! reads the same arguments. In a job of another launcher it is one of the ranks. With `--transport local`
//! the ranks are threads. Rank 0 reports. Wrong arguments are found before any rank is started.
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
pub(crate) fn run(args: Args) -> Result<ExitCode, CommandError> {
    let is_worker = args.worker;
    let job = Job::new(args)?;
    memory::check(&job)?;
    if is_worker {
        return run_worker(&job);
    }
    match (job.role, job.transport) {
        (Role::Rank { .. }, _) => run_job_rank(&job),
        (Role::Launcher, Transport::Local) => create_json(&job).and_then(|()| run_threads(&job)),
        (Role::Launcher, Transport::Between(_)) => {
            create_json(&job)?;
            role::start_ranks("tbccl bench", job.ranks, &job.config)
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
fn run_job_rank(job: &Job) -> Result<ExitCode, CommandError> {
    let mut comm = Communicator::from_env_with(&job.config).map_err(CommandError::new)?;
    if comm.rank() == Rank(0) {
        create_json(job)?;
    }
    run_rank(&mut comm, job).map(exit_code)
}

/// Runs one rank, as a process that this command has started.
fn run_worker(job: &Job) -> Result<ExitCode, CommandError> {
    let mut comm = Communicator::from_env_with(&job.config).map_err(CommandError::new)?;
    run_rank(&mut comm, job).map(exit_code)
}

/// Runs every rank as a thread.
fn run_threads(job: &Job) -> Result<ExitCode, CommandError> {
    let comms = Communicator::local(job.ranks, &job.config).map_err(CommandError::new)?;
    let outcomes: Vec<Result<Outcome, CommandError>> = thread::scope(|scope| {
        let rank = |mut comm: Communicator| scope.spawn(move || run_rank(&mut comm, job));
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

fn run_rank(comm: &mut Communicator, job: &Job) -> Result<Outcome, CommandError> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    if job.pin {
        pin::pin(comm);
    }
    run_job(comm, job, cores)
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Correct | Outcome::Stopped => ExitCode::SUCCESS,
        Outcome::Wrong => ExitCode::from(WRONG),
    }
}
