//! `tbccl why`: shows what the ranks of a hanging job wait for.

use super::{
    CommandError, arguments,
    jobs::{self, Found, Job},
    print,
};
use bootstrap::ProcessState;
use serde::Serialize;
use std::{process::ExitCode, thread, time::Duration};
use tbccl::why::Report;

const EXAMPLES: &str = "\
Examples:
  tbccl why                       all jobs of this user that have their rendezvous on this machine
  tbccl why --job 4711            the job whose launcher, rendezvous or rank has this process id
  tbccl why --json | jq -r '.jobs[].knot.sentence'

The first line is the knot, in one sentence. The table has a row for each rank:

  rank 2 never called all_reduce number 17: it has been outside tbccl for 8.2 s, after barrier ...
  rank    process     call                      for    waits for             latest ended call
  rank 0  71 on mac0  all_reduce number 17 ...  8.1 s  rank 2 (step 1 of ..  barrier number 16, ..
  rank 1  44 on mac1  all_reduce number 17 ...  8.1 s  rank 2 (step 1 of ..  barrier number 16, ..
  rank 2  45 on mac1  outside tbccl             8.2 s  -                     barrier number 16, ..

Needs no debugger, and changes nothing in the job. Run it where `tbccl run`, `tbccl rendezvous` or
rank 0 runs: ranks of other hosts are asked from there. A rank prints the same report when its time
limit (TBCCL_TIMEOUT) passes; TBCCL_HANG_REPORT names a file for it. More: docs/hangs.md.";

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
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = arguments::seconds)]
    wait: Duration,
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

impl SilentRendezvous {
    fn new((pid, state): (u32, ProcessState)) -> SilentRendezvous {
        let advice = match state {
            ProcessState::Stopped => format!("; `kill -CONT {pid}` continues it"),
            _ => String::new(),
        };
        let sentence = format!("process {pid}, which has the rendezvous of a job, is {state}{advice}");
        SilentRendezvous { pid, sentence }
    }
}

/// Returns the error where there is no job, or none of the wanted process. A silent rendezvous does not tell
/// its ranks, so the process may be one of them.
fn not_found(wanted: Option<u32>, silent: &[SilentRendezvous]) -> CommandError {
    let Some(pid) = wanted else {
        return CommandError::new(
            "no job of this user has its rendezvous on this machine; run this where `tbccl run`, `tbccl \
             rendezvous` or rank 0 runs",
        );
    };
    let mut why = format!("process {pid} belongs to no job of this user that answers on this machine");
    silent.iter().for_each(|silent| why.push_str(&format!("; {}", silent.sentence)));
    why.push_str("; `tbccl why` shows all jobs");
    CommandError::new(why)
}

/// Runs `tbccl why`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let Found { jobs, silent } = jobs::find().map_err(CommandError::new)?;
    let jobs: Vec<Job> = jobs.into_iter().filter(|job| job.has_process(args.job)).collect();
    let silent: Vec<SilentRendezvous> = silent.into_iter().map(SilentRendezvous::new).collect();
    let is_wanted = |silent: &SilentRendezvous| args.job.is_none_or(|wanted| wanted == silent.pid);
    let (wanted, others): (Vec<_>, Vec<_>) = silent.into_iter().partition(is_wanted);
    if jobs.is_empty() && wanted.is_empty() {
        return Err(not_found(args.job, &others));
    }
    let reports = reports_of(jobs, args.wait);
    print(&if args.json { json(&reports, &wanted) } else { text(&reports, &wanted) });
    Ok(ExitCode::SUCCESS)
}

/// Asks all jobs at once. Returns the process id of each job's rendezvous, and the report.
fn reports_of(jobs: Vec<Job>, wait: Duration) -> Vec<(u32, Report)> {
    let report = |job: Job| {
        let pid = job.rendezvous_pid();
        (pid, Report::new(&job.snapshots(SNAPSHOT_TIMEOUT), &[], wait.as_secs_f64()))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || report(job))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
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
