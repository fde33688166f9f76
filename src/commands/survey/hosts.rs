//! Inventories of several hosts.

use super::{ARGUMENTS, parse_answer, record};
use crate::{
    commands::{CommandError, arguments, run::this_program},
    launch::{HostSpec, Hosts, ask},
};
use inventory::{Inventory, Recording};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use topology::Hostfile;

/// Options that choose and reach hosts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Hosts")]
pub(in crate::commands) struct SurveyArgs {
    /// Hostfile, as for `tbccl run`
    #[arg(long, value_name = "FILE")]
    pub(in crate::commands) hostfile: Option<PathBuf>,

    /// Hosts as a list: a,b,c
    #[arg(long, visible_alias = "host", short = 'H', value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,

    /// Command that reaches another host, with its options, such as `ssh -F FILE`
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,

    /// Path of tbccl on the other hosts (the path of this program if it exists there, else PATH)
    #[arg(long, value_name = "PATH")]
    tbccl: Option<PathBuf>,

    /// Seconds in which a host must answer
    #[arg(long, value_name = "SECONDS", value_parser = arguments::seconds, default_value = "60")]
    limit: Duration,

    /// Recordings of machines, in the place of hosts; `tbccl doctor --record` writes them
    #[arg(long, value_name = "FILES", value_delimiter = ',', conflicts_with_all = ["hostfile", "hosts"])]
    replay: Vec<PathBuf>,
}

/// A host and its inventory.
#[derive(Debug)]
pub(in crate::commands) struct Surveyed {
    /// The name by which the user calls it.
    pub(in crate::commands) name: String,
    /// Its inventory, or the reason why there is none.
    pub(in crate::commands) inventory: Result<Inventory, String>,
    /// Milliseconds by which its clock is ahead of this host's.
    pub(in crate::commands) skew_ms: Option<i64>,
}

/// The hosts that the user has named, or this one.
#[derive(Debug)]
pub(in crate::commands) struct Survey {
    /// The hosts, in the order of the user's list.
    pub(in crate::commands) hosts: Vec<Surveyed>,
    /// The hostfile, if one was named.
    pub(in crate::commands) hostfile: Option<Hostfile>,
}

impl SurveyArgs {
    /// Takes the inventories of all hosts.
    pub(in crate::commands) fn survey(&self) -> Result<Survey, CommandError> {
        if !self.replay.is_empty() {
            let hosts = self.replay.iter().map(|path| replay(path)).collect::<Result<_, _>>()?;
            return Ok(Survey { hosts, hostfile: None });
        }
        let file = match (&self.hostfile, &self.hosts) {
            (Some(path), _) => Some(read(path)?),
            (None, Some(list)) => Some(
                Hostfile::from_list(list)
                    .map_err(|e| CommandError::new(format_args!("--hosts {list}:{e}")))?,
            ),
            (None, None) => None,
        };
        let Some(file) = file else {
            let inventory = Inventory::read(&record());
            let name = inventory.hostname.clone();
            return Ok(Survey {
                hosts: vec![Surveyed { name, inventory: Ok(inventory), skew_ms: None }],
                hostfile: None,
            });
        };
        let specs: Vec<HostSpec> = file.hosts.iter().map(|host| HostSpec::new(host.name.as_str())).collect();
        let mut plan = Hosts::new(specs, Vec::new(), this_program()?);
        plan.ssh = words(&self.ssh)?;
        plan.tbccl.clone_from(&self.tbccl);
        let hosts = thread::scope(|scope| {
            let plan = &plan;
            let ask = |host| scope.spawn(move || self.one(plan, host));
            let asked: Vec<_> = plan.hosts.iter().map(ask).collect();
            let answered = asked.into_iter().zip(&plan.hosts).map(|(thread, host)| {
                thread.join().unwrap_or_else(|_| Surveyed {
                    name: host.name.clone(),
                    inventory: Err("the question has failed".to_owned()),
                    skew_ms: None,
                })
            });
            answered.collect()
        });
        Ok(Survey { hosts, hostfile: Some(file) })
    }

    fn one(&self, plan: &Hosts, host: &HostSpec) -> Surveyed {
        let name = host.name.clone();
        if host.local {
            return Surveyed { name, inventory: Ok(Inventory::read(&record())), skew_ms: None };
        }
        let inventory = ask(plan, host, ARGUMENTS, self.limit).and_then(|output| parse_answer(&output));
        // The other host reads its clock at the end of its work, moments ago.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let theirs = inventory.as_ref().ok().and_then(|inventory| i64::try_from(inventory.time_ms?).ok());
        let skew_ms = theirs.zip(i64::try_from(now).ok()).map(|(theirs, ours)| theirs - ours);
        Surveyed { name, inventory, skew_ms }
    }
}

fn replay(path: &Path) -> Result<Surveyed, CommandError> {
    let failed = |why: String| CommandError::new(format_args!("the recording {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| failed(format!("{e}; check --replay")))?;
    let recording = Recording::from_text(&text).map_err(|e| failed(e.to_string()))?;
    let inventory = Inventory::read(&recording);
    Ok(Surveyed { name: inventory.hostname.clone(), inventory: Ok(inventory), skew_ms: None })
}

fn read(path: &Path) -> Result<Hostfile, CommandError> {
    let bytes = std::fs::read(path).map_err(|e| {
        CommandError::new(format_args!("the hostfile {}: {e}; check --hostfile", path.display()))
    })?;
    Hostfile::parse(&bytes).map_err(|e| CommandError::new(format_args!("{}:{e}", path.display())))
}

/// Splits a command into words as a shell does.
fn words(command: &str) -> Result<Vec<OsString>, CommandError> {
    let words = shlex::split(command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        CommandError::new(format_args!("--ssh {command:?}: a command was expected, e.g. `ssh -p 2222`"))
    })?;
    Ok(words.into_iter().map(OsString::from).collect())
}
