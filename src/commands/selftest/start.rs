//! Ways to start probes and jobs: on this host, on the hosts of a hostfile, or on a software fabric.

use super::Args;
use crate::commands::{
    CommandError,
    fabric::{Inject, Tool, Variables},
    run::this_program,
};
use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    process::Command,
    time::Duration,
};

/// The place of the ranks.
#[derive(Debug)]
enum Place {
    /// This host.
    Here,
    /// The hosts of a list or a hostfile, by options of `tbccl run`.
    Hosts(Vec<OsString>),
    /// The nodes of a software fabric.
    Fabric {
        file: PathBuf,
        /// Folder that its processes share; removed at the end.
        folder: tempfile::TempDir,
        /// Variables of the first node.
        variables: Variables,
        nodes: u32,
    },
}

/// Starts probes and jobs.
#[derive(Debug)]
pub(super) struct Starter {
    place: Place,
    /// This program, here and on other hosts.
    program: PathBuf,
    remote: OsString,
    ranks: Option<u32>,
    /// Options that children share with this process.
    shared: Vec<OsString>,
}

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Transport; that of the environment if none is named.
    pub(super) transport: Option<String>,
    /// Whether two ranks suffice, one on each of two hosts.
    pub(super) is_pair: bool,
    /// Whether the others go on when a rank fails.
    pub(super) keep_going: bool,
    /// Variables of the ranks.
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) limit: Duration,
}

impl Job {
    pub(super) fn new(transport: &str, limit: Duration) -> Job {
        let transport = Some(transport.to_owned()).filter(|name| !name.is_empty());
        Job { transport, is_pair: false, keep_going: false, env: Vec::new(), limit }
    }
}

impl Starter {
    /// Chooses the place of the ranks.
    pub(super) fn new(args: &Args) -> Result<Starter, CommandError> {
        let program = this_program()?;
        let place = match (&args.fabric, &args.hostfile, &args.hosts) {
            (Some(file), _, _) => fabric(file)?,
            (None, Some(file), _) => Place::Hosts(vec!["--hostfile".into(), file.into()]),
            (None, None, Some(list)) => Place::Hosts(vec!["--hosts".into(), list.into()]),
            (None, None, None) => Place::Here,
        };
        let place = match place {
            Place::Hosts(mut options) => {
                options.extend(["--ssh".into(), args.ssh.clone().into()]);
                let remote = args.tbccl.iter().flat_map(|path| ["--tbccl".into(), path.into()]);
                options.extend(remote);
                Place::Hosts(options)
            }
            other => other,
        };
        let remote = args.tbccl.clone().unwrap_or_else(|| program.clone()).into();
        let mut shared: Vec<OsString> = Vec::new();
        if args.quick {
            shared.push("--quick".into());
        }
        if !args.devices.is_empty() {
            shared.extend(["--devices".into(), args.devices.join(",").into()]);
        }
        Ok(Starter { place, program, remote, ranks: args.ranks, shared })
    }

    /// Whether ranks run on several hosts, or on nodes of a fabric.
    pub(super) fn has_hosts(&self) -> bool {
        !matches!(self.place, Place::Here)
    }

    /// Whether the devices are a fabric's.
    pub(super) fn is_fabric(&self) -> bool {
        matches!(self.place, Place::Fabric { .. })
    }

    /// Returns the sentence about the place in the report.
    pub(super) fn describe(&self) -> String {
        match &self.place {
            Place::Here => format!("{} ranks on this host", self.ranks.unwrap_or(2)),
            Place::Hosts(_) => "ranks on the hosts of --hostfile or --hosts".to_owned(),
            Place::Fabric { nodes, .. } => format!("{nodes} nodes of a software fabric, not real devices"),
        }
    }

    /// Returns the command of a process of this host that runs `tbccl selftest` with these options.
    pub(super) fn probe(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("selftest").args(options).args(&self.shared);
        if let Place::Fabric { variables, .. } = &self.place {
            command.envs(variables);
        }
        without_identity(&mut command);
        command
    }

    /// Returns the command of a job whose ranks run `tbccl selftest` with these options.
    pub(super) fn selftest(&self, job: &Job, options: &[&str]) -> Command {
        let own = options.iter().map(OsString::from).chain(self.shared.iter().cloned());
        self.job(job, self.remote.clone(), std::iter::once("selftest".into()).chain(own))
    }

    /// Returns the command of a job whose ranks run another subcommand of this program.
    pub(super) fn subcommand(&self, job: &Job, arguments: &[&str]) -> Command {
        self.job(job, self.remote.clone(), arguments.iter().map(OsString::from))
    }

    /// Returns the command of a job whose ranks run a program.
    pub(super) fn job(
        &self,
        job: &Job,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Command {
        let mut command = Command::new(&self.program);
        let ranks = if job.is_pair { Some(2) } else { self.ranks };
        match &self.place {
            Place::Here => {
                command.args(["run", "-n", &ranks.unwrap_or(2).to_string()]);
            }
            Place::Hosts(options) => {
                command.arg("run").args(options);
                if let Some(ranks) = ranks {
                    command.args(["-n", &ranks.to_string()]);
                }
                if job.is_pair {
                    command.args(["--map-by", "node"]);
                }
            }
            Place::Fabric { file, folder, .. } => {
                command.args(["fabric", "run", "--fabric"]).arg(file).arg("--dir").arg(folder.path());
            }
        }
        command.args(["--tag-output", "--stdin", "none", "--grace", "2", "--timeout"]);
        command.arg(job.limit.as_secs_f64().to_string());
        if let Some(transport) = &job.transport {
            command.args(["--transport", transport]);
        }
        if job.keep_going {
            command.arg("--keep-going");
        }
        for (name, value) in &job.env {
            command.args(["-x", &format!("{name}={value}")]);
        }
        command.arg("--").arg(program).args(arguments);
        without_identity(&mut command);
        command
    }

    /// Pulls the first cable of the fabric, or plugs it in again. Does nothing on real hosts.
    pub(super) fn fault(&self, fault: &str) -> Result<(), CommandError> {
        match &self.place {
            Place::Fabric { folder, .. } => {
                Tool::find()?.run("fault", folder.path(), &[fault.into(), "0".into()])
            }
            _ => Ok(()),
        }
    }
}

fn fabric(file: &std::path::Path) -> Result<Place, CommandError> {
    let tool = Tool::find()?;
    let nodes = tool.nodes(file)?.count();
    let memory = std::path::Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder =
        tempfile::Builder::new().prefix("tbccl-fabric-").tempdir_in(base).map_err(CommandError::new)?;
    let mut all = tool.environments(file, None, Some(folder.path()), Inject::Preload)?;
    if all.is_empty() {
        return Err(CommandError::new(format_args!("{} has no nodes", file.display())));
    }
    let mut variables = all.swap_remove(0);
    // tbccl loads the library by its path.
    variables.remove("LD_PRELOAD");
    variables.insert("TBCCL_VERBS_LIB".to_owned(), tool.library()?.to_string_lossy().into_owned());
    Ok(Place::Fabric { file: file.to_owned(), folder, variables, nodes })
}

/// Removes the identity of a rank, which this process may be, from a command's environment.
fn without_identity(command: &mut Command) {
    for name in tbccl::IDENTITY {
        command.env_remove(name);
    }
}
