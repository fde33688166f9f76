//! Inventories of several hosts.

use super::{ARGUMENTS, parse_answer, record};
use crate::{
    commands::{
        CommandError, arguments,
        progress::Progress,
        run::{named_hosts, this_program},
    },
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
        let Some(file) = self.file()? else {
            let inventory = Inventory::read(&record());
            let name = inventory.hostname.clone();
            return Ok(Survey {
                hosts: vec![Surveyed { name, inventory: Ok(inventory), skew_ms: None }],
                hostfile: None,
            });
        };
        let reach = self.reach(file.hosts.iter().map(|host| host.name.as_str()))?;
        let names = reach.names();
        let hosts = reach.for_all("hosts asked", |at| one(&reach, at));
        let hosts = hosts.into_iter().zip(names).map(|(surveyed, name)| {
            surveyed.unwrap_or_else(|| Surveyed {
                name: name.to_owned(),
                inventory: Err("the question has failed".to_owned()),
                skew_ms: None,
            })
        });
        Ok(Survey { hosts: hosts.collect(), hostfile: Some(file) })
    }

    /// Returns the names of the hosts that the user has named, if he has.
    pub(in crate::commands) fn host_names(&self) -> Result<Option<Vec<String>>, CommandError> {
        Ok(self.file()?.map(|file| file.hosts.iter().map(|host| host.name.clone()).collect()))
    }

    /// Returns the hosts that the user has named, as a hostfile.
    fn file(&self) -> Result<Option<Hostfile>, CommandError> {
        named_hosts(self.hostfile.as_deref(), self.hosts.as_deref())
    }

    /// Returns the way to hosts with these names.
    pub(in crate::commands) fn reach<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Reach, CommandError> {
        let mut plan = Hosts::new(names.map(HostSpec::new).collect(), Vec::new(), this_program()?);
        plan.ssh = words(&self.ssh)?;
        plan.tbccl.clone_from(&self.tbccl);
        Ok(Reach { plan, limit: self.limit })
    }

    /// Returns the path of tbccl on the other hosts, if the user has named one.
    pub(in crate::commands) fn remote_program(&self) -> Option<&PathBuf> {
        self.tbccl.as_ref()
    }

    /// Returns the options of `tbccl run` that reach the same hosts.
    pub(in crate::commands) fn run_options(&self) -> Vec<OsString> {
        let mut options = vec!["--ssh".into(), self.ssh.clone().into()];
        if let Some(path) = &self.tbccl {
            options.extend(["--tbccl".into(), path.clone().into_os_string()]);
        }
        options
    }
}

/// Hosts, and the way to them.
#[derive(Debug)]
pub(in crate::commands) struct Reach {
    plan: Hosts,
    limit: Duration,
}

impl Reach {
    fn names(&self) -> Vec<&str> {
        self.plan.hosts.iter().map(|host| host.name.as_str()).collect()
    }

    /// Whether a host is this one.
    pub(in crate::commands) fn is_local(&self, host: usize) -> bool {
        self.plan.hosts[host].local
    }

    /// Runs tbccl on another host, with arguments that need no quotation marks; returns its stdout.
    pub(in crate::commands) fn ask(&self, host: usize, arguments: &str) -> Result<String, String> {
        ask(&self.plan, &self.plan.hosts[host], arguments, self.limit)
    }

    /// Does the same for all hosts at the same time, with a progress bar. Returns `None` for a host where it
    /// has panicked.
    pub(in crate::commands) fn for_all<T: Send>(
        &self,
        units: &str,
        work: impl Fn(usize) -> T + Sync,
    ) -> Vec<Option<T>> {
        let progress = Progress::new(self.plan.hosts.len(), units);
        let done = thread::scope(|scope| {
            let (work, progress) = (&work, &progress);
            let begin = |host| {
                scope.spawn(move || {
                    let done = work(host);
                    progress.advance();
                    done
                })
            };
            let begun: Vec<_> = (0..self.plan.hosts.len()).map(begin).collect();
            begun.into_iter().map(|thread| thread.join().ok()).collect()
        });
        progress.finish();
        done
    }
}

fn one(reach: &Reach, host: usize) -> Surveyed {
    let name = reach.plan.hosts[host].name.clone();
    if reach.is_local(host) {
        return Surveyed { name, inventory: Ok(Inventory::read(&record())), skew_ms: None };
    }
    let inventory = reach.ask(host, ARGUMENTS).and_then(|output| parse_answer(&output));
    // The other host reads its clock at the end of its work, moments ago.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let theirs = inventory.as_ref().ok().and_then(|inventory| i64::try_from(inventory.time_ms?).ok());
    let skew_ms = theirs.zip(i64::try_from(now).ok()).map(|(theirs, ours)| theirs - ours);
    Surveyed { name, inventory, skew_ms }
}

fn replay(path: &Path) -> Result<Surveyed, CommandError> {
    let failed = |why: String| CommandError::new(format_args!("the recording {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| failed(format!("{e}; check --replay")))?;
    let recording = Recording::from_text(&text).map_err(|e| failed(e.to_string()))?;
    let inventory = Inventory::read(&recording);
    Ok(Surveyed { name: inventory.hostname.clone(), inventory: Ok(inventory), skew_ms: None })
}

/// Splits a command into words as a shell does.
fn words(command: &str) -> Result<Vec<OsString>, CommandError> {
    let words = shlex::split(command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        CommandError::new(format_args!("--ssh {command:?}: a command was expected, e.g. `ssh -p 2222`"))
    })?;
    Ok(words.into_iter().map(OsString::from).collect())
}
