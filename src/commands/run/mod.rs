//! `tbccl run`: starts the ranks of a job on this host and others, as mpirun does.
//!
//! | module | purpose |
//! |---|---|
//! | `devices` | RDMA device matrix of ranks |
//! | `hosts` | hosts of the job |
//! | `mlx` | variables of MLX's backends |
//! | `mpi_library` | the MPI library that MLX loads |
//! | `rendezvous` | the job's rendezvous server |

mod devices;
mod hosts;
mod mlx;
pub(super) mod mpi_library;
mod rendezvous;

pub(super) use hosts::named_hosts;

use super::{CommandError, arguments, error};
use crate::launch::{Hosts, LaunchSpec, OnFailure, Output, Stdin, launch};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    time::Duration,
};
use tbccl::Transport;
use topology::Bind;

const EXAMPLES: &str = "\
Examples:
  tbccl run -n 4 ./train --batch 32           four ranks of ./train on this machine
  tbccl run --hostfile hosts.toml ./train     as many ranks as the hosts have slots
  tbccl run --hosts a,b:2 -n 3 ./train        one rank on a, two on b, reached by ssh
  tbccl run -n 2 -x RUST_LOG=debug -- ./app   a variable for every rank
  tbccl run -n 4 --tag-output ./app           `[2] ` before each line of rank 2
  tbccl run -n 8 --timeout 60 ./app           ended after a minute, exit status 124
  tbccl run -n 4 --trace traces ./app         a trace of each rank, for `tbccl trace merge`

Each rank gets TBCCL_RANK, TBCCL_SIZE, TBCCL_LOCAL_RANK, TBCCL_LOCAL_SIZE, TBCCL_NODE_RANK and
TBCCL_BOOTSTRAP in its environment; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
MLX_RANK and MLX_WORLD_SIZE for programs that expect them; and in MLX_MPI_LIBNAME the library by
which MLX uses tbccl, if it is installed. With a hostfile it also gets MLX_HOSTFILE, MLX_IBV_DEVICES
and MLX_JACCL_COORDINATOR, as the file's backend needs them, and TBCCL_IBV_DEVICES if the file lists
RDMA devices.

Other hosts get the variables of -x, those of the hostfile, and those of this environment that begin
with TBCCL_. Every host must have the same version of tbccl, at the same path or in PATH, and
`ssh HOST true` must work without a password.

The exit status is that of the first rank that fails: its own, or 128 + the number of the signal
that killed it, or 255 if its host is lost. The other ranks are then ended: they have one second to
report errors of their own, then get SIGTERM, and SIGKILL after --grace. With --keep-going they
continue, and the status is 0 if any rank succeeds. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
forwarded to all ranks; a second SIGINT kills them.";

/// Start the ranks of a job, here or on several hosts, and end them together
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of ranks (also mpirun's -np); by default the slots of the hosts
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
        required_unless_present_any = ["hostfile", "hosts"],
    )]
    ranks: Option<u32>,

    #[command(flatten)]
    job: Job,

    #[command(flatten)]
    hosts: hosts::HostArgs,
}

/// The program to start and its options, shared by `run` and `fabric run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Job {
    /// Set a variable for every rank, or pass on one of this environment; repeatable, the last one wins
    #[arg(short = 'x', value_name = "KEY[=VALUE]", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,

    #[arg(
        long,
        value_name = "NAME",
        value_parser = Transport::from_str,
        help = arguments::transport_help("; short for -x TBCCL_TRANSPORT=NAME \
             [default: auto; shm+auto on several hosts]")
    )]
    transport: Option<Transport>,

    /// Write a trace of each rank, DIR/rank-2-*.json and so on, on its host; see `tbccl trace --help`
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,

    /// Working folder of every rank, also on other hosts (this command's own)
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// Binding of each rank: to its share of the cores (core), to the cores of one NUMA node (numa), or none
    #[arg(long, value_name = "WHERE", default_value = "none")]
    bind: BindTo,

    /// Begin each line of output with its rank: `[2] ` for stdout, `[2:err] ` for stderr
    #[arg(long)]
    tag_output: bool,

    /// Begin each line of output with the time, in UTC
    #[arg(long)]
    timestamp: bool,

    /// Write the output of rank 2 to DIR/rank.2.out and DIR/rank.2.err, and so on
    #[arg(long, value_name = "DIR", conflicts_with = "tag_output")]
    output: Option<PathBuf>,

    /// Receiver of this command's stdin: a rank number, all, or none
    #[arg(long, value_name = "WHO", value_parser = stdin, default_value = "0")]
    stdin: Stdin,

    /// End the job after this many seconds, with exit status 124
    #[arg(long, value_name = "SECONDS", value_parser = arguments::seconds)]
    timeout: Option<Duration>,

    /// Seconds between SIGTERM and SIGKILL when ranks are ended
    #[arg(long, value_name = "SECONDS", value_parser = arguments::seconds, default_value = "3")]
    grace: Duration,

    /// Let the other ranks continue when one fails; the exit status is then 0 if any rank succeeds
    #[arg(long)]
    keep_going: bool,

    /// The program that each rank runs, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Command-line form of [`Bind`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BindTo {
    None,
    Core,
    Numa,
}

/// Parses `2`, `all` or `none`.
fn stdin(text: &str) -> Result<Stdin, String> {
    match text {
        "all" => Ok(Stdin::All),
        "none" => Ok(Stdin::None),
        _ => text.parse().map(Stdin::Rank).map_err(|_| "a rank, `all` or `none` was expected".to_owned()),
    }
}

/// Runs `tbccl run`.
pub(crate) fn run(args: Args) -> Result<ExitCode, CommandError> {
    let mut spec = args.job.spec(args.ranks.unwrap_or(1))?;
    let setup = args.hosts.apply(args.ranks, &mut spec)?;
    check_stdin(&spec)?;
    let server = rendezvous::open(spec.ranks, setup)?;
    let outcome = launch(&spec, &server).map_err(CommandError::new)?;
    Ok(ExitCode::from(outcome.exit_code()))
}

fn check_stdin(spec: &LaunchSpec) -> Result<(), CommandError> {
    match spec.hosts.stdin {
        Stdin::Rank(rank) if rank >= spec.ranks => Err(CommandError::new(format_args!(
            "--stdin {rank}: there is no such rank among {}; name one from 0 to {}",
            spec.ranks,
            spec.ranks - 1
        ))),
        _ => Ok(()),
    }
}

/// Returns the path of this program, which hosts run as their agent. A link is resolved: under the name
/// `mpirun` the program has no subcommands.
pub(super) fn this_program() -> Result<PathBuf, CommandError> {
    let path = std::env::current_exe()
        .map_err(|why| CommandError::new(format_args!("the path of this program can't be found: {why}")))?;
    Ok(path.canonicalize().unwrap_or(path))
}

impl Job {
    /// Returns the specification of `ranks` ranks on this host.
    pub(crate) fn spec(self, ranks: u32) -> Result<LaunchSpec, CommandError> {
        let hosts = self.hosts(ranks)?;
        let agent = hosts.agent.clone();
        let mut command = self.command.into_iter();
        let program = command.next().ok_or_else(|| CommandError::new("no program was given"))?;
        let mut env = variables(self.env)?;
        env.extend(self.transport.map(|transport| ("TBCCL_TRANSPORT".into(), transport.name().into())));
        let absolute = |option: &str, path| {
            std::path::absolute(path).map_err(|e| CommandError::new(format_args!("{option}: {e}")))
        };
        let folder = self.trace.map(|folder| absolute("--trace", folder)).transpose()?;
        env.extend(folder.map(|folder| ("TBCCL_TRACE".into(), folder.into())));
        let library = mpi_library::variable(&env);
        env.extend(library);
        Ok(LaunchSpec {
            args: command.collect(),
            env,
            cwd: self.cwd.map(|cwd| absolute("--cwd", cwd)).transpose()?,
            bind: match self.bind {
                BindTo::None => Bind::None,
                BindTo::Core => Bind::Core,
                BindTo::Numa => Bind::Numa,
            },
            hosts,
            timeout: self.timeout,
            grace: self.grace,
            on_failure: if self.keep_going { OnFailure::Continue } else { OnFailure::EndAll },
            ..LaunchSpec::new(ranks, program, agent)
        })
    }

    /// Returns this host, with the output and input that the options name.
    fn hosts(&self, ranks: u32) -> Result<Hosts, CommandError> {
        let here = Hosts::here(ranks, this_program()?);
        let output = match &self.output {
            Some(folder) => Output::Files { folder: folder.clone(), stamped: self.timestamp },
            None => Output::Lines { tagged: self.tag_output, stamped: self.timestamp },
        };
        if output == Output::default() && self.stdin == Stdin::default() {
            return Ok(here);
        }
        Ok(Hosts { output, stdin: self.stdin, ..here })
    }
}

/// Parses `KEY=VALUE`, or `KEY` to pass on a variable of this environment.
fn variables(given: Vec<OsString>) -> Result<Vec<(OsString, OsString)>, CommandError> {
    let mut variables = Vec::new();
    for text in given {
        let mut parts = text.as_bytes().splitn(2, |byte| *byte == b'=');
        let key = OsString::from(OsStr::from_bytes(parts.next().unwrap_or_default()));
        if key.is_empty() {
            return Err(CommandError::new(format_args!(
                "-x {}: a variable needs a name, as in -x KEY=VALUE",
                text.display()
            )));
        }
        match (parts.next(), std::env::var_os(&key)) {
            (Some(value), _) => variables.push((key, OsStr::from_bytes(value).to_owned())),
            (None, Some(value)) => variables.push((key, value)),
            // Open MPI warns and continues, and scripts rely on that.
            (None, None) => error::warn(format_args!("-x {}: not set here, so not passed on", key.display())),
        }
    }
    Ok(variables)
}
