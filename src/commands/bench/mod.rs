//! `tbccl bench`: measures an operation between ranks on this machine, and checks every element.
//!
//! The command is its own launcher: it starts itself once per rank, with `--worker` added, so that every rank
//! reads the same arguments. In a job of another launcher it is one of the ranks. With `--transport local`
//! the ranks are threads instead. Rank 0 reports.
//!
//! Wrong arguments are found before anything is started.

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
mod report;
mod stats;
pub(super) mod work;
mod worker;

pub(crate) use args::Args;

use super::{
    Failed, WRONG, pin,
    place::{self, Place},
};
use args::Transport;
use job::{Job, Output};
use std::{process::ExitCode, thread};
use tbccl::{Communicator, Rank};
use worker::{Verdict, work};

/// Carries out `tbccl bench`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    let is_worker = args.worker;
    let job = Job::new(args)?;
    memory::check(&job)?;
    if is_worker {
        return as_process(&job);
    }
    match (job.place, job.transport) {
        (Place::Rank { .. }, _) => as_rank_of_a_job(&job),
        (Place::Launcher, Transport::Local) => create_json(&job).and_then(|()| run_threads(&job)),
        (Place::Launcher, Transport::Between(_)) => {
            create_json(&job)?;
            place::start_ranks("tbccl bench", job.ranks, &job.config)
        }
    }
}

/// Makes the file for results, so that it need not be found out later that it can't be.
fn create_json(job: &Job) -> Result<(), Failed> {
    match &job.output {
        Output::TableAndJson(path) => report::create(path),
        _ => Ok(()),
    }
}

/// One rank of a job that somebody else has started.
fn as_rank_of_a_job(job: &Job) -> Result<ExitCode, Failed> {
    let mut comm = Communicator::from_env_with(&job.config).map_err(Failed::new)?;
    if comm.rank() == Rank(0) {
        create_json(job)?;
    }
    as_rank(&mut comm, job).map(exit_code)
}

/// One rank, as a process that the launcher has started.
fn as_process(job: &Job) -> Result<ExitCode, Failed> {
    let mut comm = Communicator::from_env_with(&job.config).map_err(Failed::new)?;
    as_rank(&mut comm, job).map(exit_code)
}

/// Runs every rank as a thread.
fn run_threads(job: &Job) -> Result<ExitCode, Failed> {
    let comms = Communicator::local(job.ranks, &job.config).map_err(Failed::new)?;
    let verdicts: Vec<Result<Verdict, Failed>> = thread::scope(|scope| {
        let rank = |mut comm: Communicator| scope.spawn(move || as_rank(&mut comm, job));
        let threads: Vec<_> = comms.into_iter().map(rank).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(Failed::new("a rank panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut verdicts = verdicts.into_iter();
    let rank_0 = verdicts.next().unwrap_or(Ok(Verdict::Right));
    for failed in verdicts.filter_map(Result::err) {
        failed.report();
    }
    rank_0.map(exit_code)
}

fn as_rank(comm: &mut Communicator, job: &Job) -> Result<Verdict, Failed> {
    if job.pin {
        pin::pin(comm);
    }
    work(comm, job)
}

fn exit_code(verdict: Verdict) -> ExitCode {
    match verdict {
        Verdict::Right | Verdict::Stopped => ExitCode::SUCCESS,
        Verdict::Wrong => ExitCode::from(WRONG),
    }
}
