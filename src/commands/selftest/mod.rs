//! `tbccl selftest`: tests on real hardware what tbccl relies on, and writes one file about it.
//!
//! The process that the user starts runs sections one after the other. Everything that touches a device runs
//! in a process of its own: this program as a probe, or as the ranks of a job under `tbccl run`. These print
//! messages, from which the report is made.
//!
//! | module | content |
//! |---|---|
//! | `check` | a line of the report |
//! | `child` | processes with a time limit |
//! | `device` | probes of one device |
//! | `driver` | the sections in their order |
//! | `finding` | results of probes |
//! | `job` | work of all ranks |
//! | `machine` | facts about this machine |
//! | `message` | messages of probes and ranks |
//! | `pair` | probes of two connected devices |
//! | `python` | programs for MLX and PyTorch |
//! | `report` | output and file |
//! | `section` | sections, and the choice among them |
//! | `speed` | latency and rate |
//! | `start` | commands that start probes and jobs |

mod check;
mod child;
mod device;
mod driver;
mod finding;
mod job;
mod machine;
mod message;
mod pair;
mod python;
mod report;
mod section;
mod speed;
mod start;

use super::{CommandError, WRONG, arguments, print};
use driver::{Driver, Options};
use message::Message;
use report::{Privacy, Report};
use section::{Section, Selection};
use start::Starter;
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tbccl::Config;
use topology::Hostfile;
use transport::verbs::Library;

/// Exit status after an interrupt, as of a shell.
const INTERRUPTED: u8 = 130;

/// Returns the text after the options.
fn after_help() -> String {
    let width = Section::ALL.map(|section| section.name().len()).into_iter().max().unwrap_or_default();
    let section = |section: Section| format!("  {:<width$}  {}\n", section.name(), section.help());
    format!("Sections, in their order:\n{}\n{EXAMPLES}", Section::ALL.map(section).concat())
}

const EXAMPLES: &str = "\
Examples:
  tbccl selftest --hostfile hosts.json            two or more Macs: the first thing to run on them
  tbccl selftest --hostfile hosts.json --unplug   asks for a cable to be pulled, too
  tbccl selftest                                  this machine alone, with two ranks
  tbccl selftest --only devices,order --quick     a section and a check of another one
  tbccl selftest --list                           all checks, with the reason for each
  tbccl selftest --fabric configs/fabrics/apple-tb5-mesh2.toml --quick    on software devices

Each line is `pass`, `fail` or `unknown`, with the thing to do about it. Every check runs in a
process of its own, so a driver that crashes or hangs is a line of the report. The section
`failures` kills a rank, after which drivers of some Macs were seen to need a restart; it comes
last, and --skip failures leaves it out.

The file has the version of tbccl, the system, the hardware, names and limits of devices,
link-local addresses, and every line with its details, as text and once more as JSON. It has no
secrets, no names of users or hosts, and no other addresses; its name contains that of this host
unless --out names another. It is written as the test goes, so a part of it is there after Ctrl-C
or a crash.

Exit status: 0 if nothing fails, unknown lines included; 1 if something fails; 2 for bad usage, or
if the file can't be written; 130 after Ctrl-C.";

/// Test on real hardware what tbccl relies on, and write one file that can be sent in
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Ranks of jobs; by default 2 on this host, and the slots of the hosts otherwise
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: Option<u32>,

    /// Hostfile, as for `tbccl run`; the first two hosts test the assumptions about devices
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// Hosts as a list: a,b
    #[arg(long, short = 'H', value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,

    /// Run on the nodes of a software fabric instead; its cables are pulled and plugged in without a user
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostfile", "hosts", "ranks"])]
    fabric: Option<PathBuf>,

    /// Command that reaches another host, with its options
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,

    /// Path of tbccl on the other hosts (the path of this program)
    #[arg(long, value_name = "PATH")]
    tbccl: Option<PathBuf>,

    /// Devices of this host to test, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    devices: Vec<String>,

    /// Sections and checks to run, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,

    /// Sections and checks to leave out, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    skip: Vec<String>,

    /// Ask for a cable to be pulled and plugged in again
    #[arg(long)]
    unplug: bool,

    /// Python interpreter that has tbccl, and MLX or PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,

    /// The file of the report [default: tbccl-selftest-HOST-DATE.txt]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Fewer sizes and repetitions
    #[arg(long)]
    quick: bool,

    /// Seconds that one check may take
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = arguments::seconds)]
    limit: Duration,

    /// List all checks, with the property that tbccl relies on, and test nothing
    #[arg(long)]
    list: bool,

    /// Set for a probe: its name
    #[arg(long, hide = true)]
    probe: Option<String>,

    /// Set for a probe: its device
    #[arg(long, hide = true)]
    device: Option<String>,

    /// Set for a rank of a job: the name of the job
    #[arg(long, hide = true)]
    job: Option<String>,

    /// Set for a rank of a job: the devices at both ends of the cable
    #[arg(long, hide = true)]
    cable: Option<String>,
}

/// Runs `tbccl selftest`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    match (&args.probe, &args.job) {
        (Some(probe), _) => run_probe(args, probe),
        (_, Some(name)) => job::run(args, name),
        _ if args.list => {
            print(&list());
            Ok(ExitCode::SUCCESS)
        }
        _ => args.test(),
    }
}

/// Acts as the process of a probe.
fn run_probe(args: &Args, probe: &str) -> Result<ExitCode, CommandError> {
    let config = Config::from_env().map_err(CommandError::new)?;
    if probe == driver::LIBRARY {
        let (check, devices) = machine::library(&config);
        Message::Devices(devices).print();
        Message::Check(check).print();
        return Ok(ExitCode::SUCCESS);
    }
    let library = Library::load(config.verbs.library.as_deref()).map_err(CommandError::new)?;
    device::run(&library, probe, args.device.as_deref().unwrap_or_default(), args.quick);
    Ok(ExitCode::SUCCESS)
}

/// Returns the list of checks.
fn list() -> String {
    let mut text = String::new();
    for section in Section::ALL {
        text += &format!("{}: {}\n", section.name(), section.help());
        let probes: Vec<(&str, &str)> = match section {
            Section::Devices => device::PROBES.iter().map(|probe| (probe.name, probe.relies)).collect(),
            Section::Assumptions => pair::PROBES.iter().map(|probe| (probe.name, probe.relies)).collect(),
            _ => Vec::new(),
        };
        for (name, relies) in probes {
            text += &format!("  {name}: {relies}\n");
        }
    }
    text
}

impl Args {
    /// Runs the test.
    fn test(&self) -> Result<ExitCode, CommandError> {
        if std::env::var("TBCCL_SIZE").is_ok_and(|size| size != "1") {
            return Err(CommandError::new(
                "`tbccl selftest` starts its own ranks: run it by itself, with --hostfile for several hosts",
            ));
        }
        let selection = Selection::new(&self.only, &self.skip).map_err(CommandError::new)?;
        let privacy = Privacy::new(&self.host_names()?);
        let is_interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&is_interrupted)).map_err(CommandError::new)?;
        }
        let starter = Starter::new(self)?;
        let options = Options {
            unplug: self.may_unplug(),
            selection,
            devices: self.devices.clone(),
            quick: self.quick,
            python: self.python.clone(),
            limit: self.limit,
        };
        let parts = Section::ALL.into_iter().filter(|section| options.selection.has(*section)).count();
        let path = self.out.clone().unwrap_or_else(report::default_path);
        let report = Report::open(&path, &starter, privacy, parts)?;
        let (report, interrupted) = Driver::new(options, &starter, report, &is_interrupted).run();
        let (succeeded, is_written) = report.finish(interrupted);
        Ok(match (interrupted, succeeded, is_written) {
            (true, ..) => ExitCode::from(INTERRUPTED),
            (_, false, _) => ExitCode::from(WRONG),
            (_, true, false) => ExitCode::from(CommandError::STATUS),
            (_, true, true) => ExitCode::SUCCESS,
        })
    }

    /// Returns whether the user can be asked to pull a cable, or the reason why not.
    fn may_unplug(&self) -> Result<(), String> {
        if !self.unplug {
            return Err("not asked for".to_owned());
        }
        if !io::stdout().is_terminal() && !io::stderr().is_terminal() {
            return Err("no terminal to ask on".to_owned());
        }
        Ok(())
    }

    /// Returns the names of other hosts, which the report leaves out; an error for a hostfile that can't be
    /// read.
    fn host_names(&self) -> Result<Vec<String>, CommandError> {
        let read = |path: &Path| {
            let bytes = std::fs::read(path).map_err(|error| {
                CommandError::new(format_args!("the hostfile {}: {error}; check --hostfile", path.display()))
            })?;
            Hostfile::parse(&bytes).map_err(|e| CommandError::new(format_args!("{}:{e}", path.display())))
        };
        let file = match (&self.hostfile, &self.hosts) {
            (Some(path), _) => read(path)?,
            (None, Some(list)) => Hostfile::from_list(list)
                .map_err(|e| CommandError::new(format_args!("--hosts {list}:{e}")))?,
            (None, None) => return Ok(Vec::new()),
        };
        Ok(file.hosts.into_iter().map(|host| host.name).collect())
    }
}
