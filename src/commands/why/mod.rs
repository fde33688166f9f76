//! `tbccl why`: shows what the ranks of a hanging job wait for.
//!
//! | module | purpose |
//! |---|---|
//! | `jobs` | the jobs of this user on this host, and their snapshots |

mod jobs;

use super::{CommandError, print};
use jobs::{Found, Job};
use serde::Serialize;
use std::{process::ExitCode, time::Duration};
use tbccl::why::Report;

const EXAMPLES: &str = "\
Examples:
  tbccl why                       all jobs of this user that have their rendezvous on this machine
  tbccl why --job 4711            the job whose launcher, rendezvous or rank has this process id
  tbccl why --json | jq -r '.jobs[].knot.sentence'

The first line is the knot, in one sentence; the table shows the call of each rank, and the rank it waits for:

  rank 2 never called all_reduce number 17: it computes outside tbccl since 8.2 s
  rank    process     in                        since  waits for                           before
  rank 0  71 on mac0  all_reduce number 17 ...  8.1 s  rank 2: step 1 of mesh: recv ...    barrier ...
  rank 1  44 on mac1  all_reduce number 17 ...  8.1 s  rank 2: step 1 of mesh: recv ...    barrier ...
  rank 2  45 on mac1  outside tbccl             8.2 s  -                                   barrier ...

Needs no debugger, and changes nothing in the job. Run it where `tbccl run`, `tbccl rendezvous` or rank 0
runs: ranks of other hosts are asked from there. A rank prints the same report when its time limit
(TBCCL_TIMEOUT) passes; TBCCL_HANG_REPORT names a file for it. More: docs/reliability.md.";

/// Show what the ranks of a hanging job wait for
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Process id of the job's launcher, of its rendezvous or of one of its ranks (all jobs)
    #[arg(long, value_name = "PID")]
    job: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Seconds from which a wait counts as a hang
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    wait: f64,
}

/// Time in which the ranks of a job answer. The rendezvous waits for a second for ranks that are silent.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2);

/// A job for programs.
#[derive(Serialize)]
struct JobReport<'r> {
    /// Process id of the rendezvous.
    rendezvous_pid: u32,
    #[serde(flatten)]
    report: &'r Report,
}

/// A rendezvous that does not answer.
#[derive(Serialize)]
struct SilentRendezvous {
    pid: u32,
    sentence: String,
}

/// Runs `tbccl why`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let Found { jobs, silent } = jobs::find().map_err(CommandError::new)?;
    let jobs: Vec<Job> = jobs.into_iter().filter(|job| job.has_process(args.job)).collect();
    let silent: Vec<SilentRendezvous> = silent
        .into_iter()
        .filter(|(pid, _)| args.job.is_none_or(|wanted| wanted == *pid))
        .map(|(pid, state)| SilentRendezvous {
            pid,
            sentence: format!("process {pid}, which has the rendezvous of a job, is {state}"),
        })
        .collect();
    if jobs.is_empty() && silent.is_empty() {
        return Err(CommandError::new(match args.job {
            Some(pid) => format!("process {pid} is not of a job of this user; `tbccl why` lists all jobs"),
            None => "no job of this user has its rendezvous on this machine; run this where `tbccl run`, \
                     `tbccl rendezvous` or rank 0 runs"
                .to_owned(),
        }));
    }
    let reports: Vec<(u32, Report)> = jobs
        .into_iter()
        .map(|job| {
            let pid = job.rendezvous_pid();
            (pid, Report::new(&job.snapshots(SNAPSHOT_TIMEOUT), &[], args.wait))
        })
        .collect();
    print(&if args.json { json(&reports, &silent) } else { text(&reports, &silent) });
    Ok(ExitCode::SUCCESS)
}

fn json(reports: &[(u32, Report)], silent: &[SilentRendezvous]) -> String {
    let jobs: Vec<JobReport<'_>> =
        reports.iter().map(|(pid, report)| JobReport { rendezvous_pid: *pid, report }).collect();
    let all = serde_json::json!({ "jobs": jobs, "silent_rendezvous": silent });
    format!("{all:#}\n")
}

fn text(reports: &[(u32, Report)], silent: &[SilentRendezvous]) -> String {
    let has_several = reports.len() + silent.len() > 1;
    let mut parts: Vec<String> = silent.iter().map(|silent| format!("{}\n", silent.sentence)).collect();
    parts.extend(reports.iter().map(|(pid, report)| match has_several {
        true => format!("job with its rendezvous in process {pid}:\n{report}"),
        false => report.to_string(),
    }));
    parts.join("\n")
}
