//! Makes the changes of a plan on all hosts, takes them back, and proves the cables by `tbccl ping`.
//!
//! Hosts are asked at the same time, and each makes its own changes in order ([`super::make`]). What takes
//! them back is noted before a host is asked ([`super::undo_file`]).

use super::{
    change::Change,
    make::{Made, make},
    plan::{Host, Plan},
    undo_file::UndoFile,
};
use crate::commands::{
    CommandError,
    run::this_program,
    survey::{Reach, SurveyArgs, interfaces},
};
use std::{
    io::Write,
    process::{Command, ExitStatus, Stdio},
};

/// Seconds after which the proof by `tbccl ping` ends.
const PING_SECONDS: &str = "120";

/// Makes the changes of a plan; returns the hosts' errors, one line each.
pub(super) fn apply(
    plan: &Plan<'_>,
    survey: &SurveyArgs,
    undo: &mut UndoFile,
) -> Result<Vec<String>, CommandError> {
    let work = plan.hosts.iter().zip(&plan.changes).filter(|(_, changes)| !changes.is_empty());
    let work: Vec<(&Host<'_>, &[Change])> = work.map(|(host, changes)| (host, changes.as_slice())).collect();
    let back = |host: &Host<'_>, changes: &[Change]| {
        changes.iter().rev().filter_map(|change| change.reversed(host.inventory)).collect::<Vec<_>>()
    };
    for (host, changes) in &work {
        undo.add(host.name, back(host, changes))?;
    }
    let named: Vec<(&str, &[Change])> = work.iter().map(|(host, changes)| (host.name, *changes)).collect();
    let mut errors = Vec::new();
    for ((host, changes), made) in work.iter().zip(make_all(survey, &named)?) {
        match made {
            // The host may have made any of them.
            Err(error) => errors.push(format!("host {}: {error}", host.name)),
            Ok(Made { error: None, .. }) => {}
            Ok(Made { count, error: Some(error) }) => {
                errors.push(format!("host {}: {error}", host.name));
                // The change that failed may have been made in part, those after it were not begun.
                undo.remove(host.name, &back(host, changes.get(count + 1..).unwrap_or_default()))?;
            }
        }
    }
    Ok(errors)
}

/// Takes back all noted changes of the hosts that `wanted` accepts; returns a line for each host that has
/// done so, and the errors of the others.
pub(super) fn undo(
    survey: &SurveyArgs,
    undo: &mut UndoFile,
    wanted: impl Fn(&str) -> bool,
) -> Result<(Vec<String>, Vec<String>), CommandError> {
    let noted = undo.hosts().filter(|(host, _)| wanted(host));
    let noted: Vec<(String, Vec<Change>)> =
        noted.map(|(host, changes)| (host.to_owned(), changes.to_vec())).collect();
    let work: Vec<(&str, &[Change])> =
        noted.iter().map(|(host, changes)| (host.as_str(), changes.as_slice())).collect();
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    for ((host, changes), made) in work.iter().zip(make_all(survey, &work)?) {
        let made = match made {
            Ok(made) => made,
            Err(error) => Made { count: 0, error: Some(error) },
        };
        undo.remove(host, &changes[..made.count.min(changes.len())])?;
        match made.error {
            None => lines.push(format!("{host}: {} changes taken back", changes.len())),
            Some(error) => errors.push(format!("host {host}: {error}")),
        }
    }
    Ok((lines, errors))
}

/// Has hosts make changes, each in its order; returns what became of each host's.
fn make_all(
    survey: &SurveyArgs,
    work: &[(&str, &[Change])],
) -> Result<Vec<Result<Made, String>>, CommandError> {
    let reach = survey.reach(work.iter().map(|(host, _)| *host))?;
    let made = reach.for_all("hosts changed", |at| make_on(&reach, at, work[at].1));
    Ok(made.into_iter().map(|made| made.unwrap_or_else(|| Err("the work has failed".to_owned()))).collect())
}

fn make_on(reach: &Reach, host: usize, changes: &[Change]) -> Result<Made, String> {
    if reach.is_local(host) {
        return Ok(make_here(changes));
    }
    let words: Vec<String> = changes.iter().map(Change::to_string).collect();
    Made::read(&reach.ask(host, &format!("config --make {}", words.join(",")))?)
}

/// Makes changes on this host.
pub(super) fn make_here(changes: &[Change]) -> Made {
    make(changes, &interfaces())
}

/// Runs `tbccl ping` between the hosts of a hostfile, one rank on each. Its table goes to stdout, or to
/// stderr if stdout is for JSON.
pub(super) fn ping(
    survey: &SurveyArgs,
    hostfile: &str,
    transport: &str,
    json: bool,
) -> Result<ExitStatus, CommandError> {
    let failed = |why: &dyn std::fmt::Display| CommandError::new(format_args!("tbccl ping: {why}"));
    let mut file = tempfile::NamedTempFile::new().map_err(|error| failed(&error))?;
    file.write_all(hostfile.as_bytes()).map_err(|error| failed(&error))?;
    let own = this_program()?;
    let mut command = Command::new(&own);
    command.args(["run", "--per-host", "1", "--order", "file", "--timeout", PING_SECONDS]);
    command.args(["--transport", transport, "--hostfile"]).arg(file.path()).args(survey.run_options());
    command.arg("--").arg(survey.remote_program().unwrap_or(&own)).arg("ping").stdin(Stdio::null());
    if json {
        command.stdout(std::io::stderr());
    }
    command.status().map_err(|error| failed(&error))
}
