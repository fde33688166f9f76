//! `tbccl bench`: measures an operation between ranks on this machine, and checks every element.
//!
//! The command is its own launcher: it starts itself once per rank, with `--worker` added, so that every rank
//! reads the same arguments. In a job of another launcher it is one of the ranks. With `--transport local`
//! the ranks are threads. Rank 0 reports. Wrong arguments are found before any rank is started. `all` is a
//! job for each operation, one after the other on the same communicator. The launcher makes the HTML page of
//! the rows that rank 0 has written.
//!
//! | module | purpose |
//! |---|---|
//! | `args` | command-line arguments |
//! | `buffers` | buffers of measured operations |
//! | `case` | an operation with its form and size |
//! | `compare` | comparison of two files of rows |
//! | `html` | rows as a page of charts and tables |
//! | `job` | the validated job |
//! | `measure` | the measurement of one operation |
//! | `measured` | results of one measurement |
//! | `memory` | check of the available memory |
//! | `operation` | operations that can be measured |
//! | `packed` | operations with packed messages |
//! | `pattern` | inputs with exact results |
//! | `regime` | whether the cores were near each other during a measurement |
//! | `report` | rank 0's output |
//! | `rows` | rows of earlier measurements |
//! | `sizes` | the series of sizes |
//! | `stats` | totals of each rank |
//! | `times` | statistics of samples |
//! | `transports` | comparison of RDMA with TCP over a modelled cable |
//! | `work` | one rank's part of an operation |
//! | `worker` | one rank's loop over all cases |

mod args;
pub(super) mod buffers;
pub(super) mod case;
mod compare;
mod html;
mod job;
pub(super) mod measure;
mod measured;
pub(super) mod memory;
pub(super) mod operation;
pub(super) mod packed;
mod pattern;
mod regime;
mod report;
mod rows;
pub(super) mod sizes;
mod stats;
mod times;
mod transports;
pub(super) mod work;
mod worker;

pub(crate) use args::Args;

use super::{
    CommandError, WRONG, pin, print,
    role::{self, Role},
};
use args::Transport;
use html::Report;
use job::{Job, Output};
use operation::OpArg;
use std::{process::ExitCode, thread};
use tbccl::{Communicator, Rank};
use worker::{Outcome, run_job};

/// Runs `tbccl bench`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    if args.transports.compare_transports {
        return transports::run(&args.transports);
    }
    // clap leaves out requirements that other arguments contradict.
    if args.compare.is_empty() && (args.fail_above.is_some() || args.peer.is_some()) {
        return Err(CommandError::new(
            "--fail-above and --peer are for --compare A B; name two files of rows",
        ));
    }
    match &args.op {
        op if !args.compare.is_empty() => {
            let op = match op {
                Some(OpArg::One(op)) => Some(op.operation),
                _ => None,
            };
            compare::run(&args.compare, op, args.peer.as_deref(), args.fail_above)
        }
        Some(op) => measure_all(args, op),
        None => {
            let Some(folder) = &args.report else {
                return Err(CommandError::new("--from: a report needs a folder; add --report DIR"));
            };
            print(&Report::prepare(folder, &args.from)?.write()?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Measures one operation or all.
fn measure_all(args: &Args, op: &OpArg) -> Result<ExitCode, CommandError> {
    let jobs = Job::all_of(args, op)?;
    // All jobs of a command differ only in their operation.
    let Some(first) = jobs.first() else { return Ok(ExitCode::SUCCESS) };
    jobs.iter().try_for_each(memory::check)?;
    if args.worker {
        return run_worker(&jobs);
    }
    match (first.role, first.transport) {
        (Role::Rank { .. }, _) => run_job_rank(args, &jobs),
        (Role::Launcher, Transport::Local) => reported(args, first, || run_threads(&jobs)),
        (Role::Launcher, Transport::Between(_)) => {
            reported(args, first, || role::start_ranks("tbccl bench", first.ranks, &first.config))
        }
    }
}

/// Runs a measurement whose rows rank 0 writes to files, which are created before, and makes the report of
/// them, if one was requested.
fn reported(
    args: &Args,
    job: &Job,
    run: impl FnOnce() -> Result<ExitCode, CommandError>,
) -> Result<ExitCode, CommandError> {
    create_json(job)?;
    let mut report = args.report.as_deref().map(|folder| Report::prepare(folder, &args.from)).transpose()?;
    report.as_mut().map_or(Ok(()), Report::begin)?;
    let status = run()?;
    // Without a result for every size there is no report; the rows so far are kept.
    let is_complete = [ExitCode::SUCCESS, ExitCode::from(WRONG)].contains(&status);
    if let Some(report) = report.filter(|_| is_complete) {
        let told = report.end()?;
        if job.output != Output::Json {
            print(&told);
        }
    }
    Ok(status)
}

/// Creates the file for results, so that an unwritable one is reported before the measurement.
fn create_json(job: &Job) -> Result<(), CommandError> {
    match &job.output {
        Output::TableAndJson(path) => report::create(path),
        _ => Ok(()),
    }
}

/// Runs one rank of a job that another launcher has started.
fn run_job_rank(args: &Args, jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let cores = cores();
    let mut comm = pin::join(&jobs[0].config, pins(jobs))?;
    let is_first = comm.rank() == Rank(0);
    let mut run = || run_rank(&mut comm, jobs, cores).map(exit_code);
    if is_first { reported(args, &jobs[0], run) } else { run() }
}

/// Runs one rank, as a process that this command has started.
fn run_worker(jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let cores = cores();
    let mut comm = pin::join(&jobs[0].config, pins(jobs))?;
    run_rank(&mut comm, jobs, cores).map(exit_code)
}

/// Runs every rank as a thread.
fn run_threads(jobs: &[Job]) -> Result<ExitCode, CommandError> {
    let cores = cores();
    let comms = Communicator::local(jobs[0].ranks, &jobs[0].config).map_err(CommandError::new)?;
    let outcomes: Vec<Result<Outcome, CommandError>> = thread::scope(|scope| {
        let rank = |mut comm: Communicator| {
            scope.spawn(move || {
                if pins(jobs) {
                    pin::pin(&comm);
                }
                run_rank(&mut comm, jobs, cores)
            })
        };
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

/// Whether ranks are bound to cores.
fn pins(jobs: &[Job]) -> bool {
    jobs.iter().any(|job| job.pin)
}

/// Returns the number of cores that this process may use, before it is bound to its share.
fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// Runs all jobs as one rank, until one can't report. This process might use `cores` cores before it was
/// bound.
fn run_rank(comm: &mut Communicator, jobs: &[Job], cores: u32) -> Result<Outcome, CommandError> {
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
