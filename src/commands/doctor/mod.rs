//! `tbccl doctor`: named checks of the set-up of one host or several.
//!
//! A check is a function of the hosts' inventories. It reports its observation, the reason why a fault
//! matters, and the command that mends it. Nothing is changed on any host.
//!
//! | module | purpose |
//! |---|---|
//! | `check` | checks, their findings, and the hosts that they look at |
//! | `checks` | all checks |
//! | `report` | text and JSON |

mod check;
mod checks;
mod report;
#[cfg(test)]
mod tests;

use super::{
    CommandError, WRONG, print,
    survey::{self, Survey, SurveyArgs},
};
use check::{Check, Cluster};
use collectives::UnknownName;
use inventory::{Inventory, Recording};
use report::{Entry, Report};
use std::{
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// Time between two looks at hosts whose RDMA ports lack an address.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  tbccl doctor                                    this machine
  tbccl doctor --hostfile hosts.toml              all hosts of a job, and the cables between them
  tbccl doctor --hosts mac0,mac1 --check gid,bridge
  tbccl doctor --json | jq '.checks[] | select(.verdict == \"red\")'
  tbccl doctor --check gid --address-wait 30      is an address coming, or missing?
  tbccl doctor --list                             all checks, with the reason for each
  tbccl doctor --record mac0.txt                  what this machine shows, to send in
  tbccl doctor --replay mac0.txt,mac1.txt         checks of recorded machines

Each check is green, yellow (jobs run, slower than they could or with a risk) or red (jobs fail, or can't
use what they should). Checks that apply to no host are left out. Nothing is changed on any host.

Other hosts are asked over ssh, all at the same time, as `tbccl run` reaches them.

Exit status: 0 if all checks are green or yellow; 1 if one is red; 2 for bad usage.";

/// Find faults of the set-up, with the command that mends each
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    survey: SurveyArgs,

    /// Checks to make, by name; all if not given
    #[arg(long = "check", value_name = "NAMES", value_delimiter = ',')]
    checks: Vec<String>,

    /// Seconds to wait for the addresses of RDMA ports that are up, as a job does; the check `gid` then says
    /// for how long one has been missing
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "replay")]
    address_wait: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// List all checks, and check nothing
    #[arg(long)]
    list: bool,

    /// Write the texts that were read on this machine to a file; they have names, addresses and identifiers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostfile", "hosts", "replay"])]
    record: Option<PathBuf>,

    /// Print the inventory of this machine; other hosts ask for it
    #[arg(long, hide = true)]
    inventory: bool,
}

/// Runs `tbccl doctor`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    if args.inventory {
        print(&survey::answer());
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        print(&list());
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&args.checks)?;
    if let Some(path) = &args.record {
        return write_recording(path, &survey::record());
    }
    let checks_addresses = chosen.iter().any(|check| check.name == "gid");
    let wait = Duration::from_secs(if checks_addresses { args.address_wait.into() } else { 0 });
    let (survey, waited) = look(&args.survey, wait)?;
    let empty = Inventory::default();
    let report = diagnose(&cluster(&survey, &empty).after(waited), &chosen);
    print(&if args.json { report.json() } else { report.text() });
    Ok(if report.is_red() { ExitCode::from(WRONG) } else { ExitCode::SUCCESS })
}

/// Takes the inventories of all hosts, again and again while an RDMA port lacks its address, within a time.
/// Returns the last ones, and for how long an address has been missing.
fn look(args: &SurveyArgs, wait: Duration) -> Result<(Survey, Duration), CommandError> {
    let mut survey = args.survey()?;
    let (began, empty) = (Instant::now(), Inventory::default());
    while began.elapsed() < wait && checks::lacks_gid(&cluster(&survey, &empty)) {
        thread::sleep(LOOK_INTERVAL.min(wait.saturating_sub(began.elapsed())));
        survey = args.survey()?;
    }
    Ok((survey, if wait.is_zero() { wait } else { began.elapsed() }))
}

fn cluster<'a>(survey: &'a Survey, empty: &'a Inventory) -> Cluster<'a> {
    let devices = survey.hostfile.as_ref().and_then(|file| file.devices.as_ref());
    Cluster::new(&survey.hosts, empty, devices)
}

/// Returns the checks with these names, or all.
fn choose(names: &[String]) -> Result<Vec<&'static Check>, CommandError> {
    let one = |name: &String| {
        let found = checks::ALL.iter().find(|check| check.name == name);
        found.ok_or_else(|| {
            CommandError::new(UnknownName::new("check", name, checks::ALL.iter().map(|check| check.name)))
        })
    };
    if names.is_empty() { Ok(checks::ALL.iter().collect()) } else { names.iter().map(one).collect() }
}

/// Applies checks to hosts.
fn diagnose(cluster: &Cluster<'_>, chosen: &[&'static Check]) -> Report {
    let hosts = cluster.surveyed.iter().map(|host| host.name.clone()).collect();
    let entries = chosen.iter().map(|check| Entry { check, outcome: (check.run)(cluster) });
    Report { hosts, entries: entries.collect() }
}

fn write_recording(path: &PathBuf, recording: &Recording) -> Result<ExitCode, CommandError> {
    std::fs::write(path, recording.to_text()).map_err(|e| {
        CommandError::new(format_args!("the file {}: {e}; name another with --record", path.display()))
    })?;
    print(&format!("recorded in {}: read it before you send it in\n", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the list of all checks.
fn list() -> String {
    let width = checks::ALL.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let line =
        |check: &Check| format!("{:<width$}  {}\n{:<width$}    {}\n", check.name, check.about, "", check.why);
    checks::ALL.iter().map(line).collect()
}
