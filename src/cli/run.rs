//! `tbccl run`: starts the ranks of a job, as mpirun does.

use super::{Failed, arguments, error};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
    str::FromStr,
    time::Duration,
};
use tbccl::{
    Transport,
    bootstrap::{Server, ServerSpec},
    launch::{LaunchSpec, Output, launch},
};

const EXAMPLES: &str = "\
Examples:
  tbccl run -n 4 ./train --batch 32           four ranks of ./train
  tbccl run -n 2 -x RUST_LOG=debug -- ./app   a variable for every rank
  tbccl run -n 4 --tag-output ./app           `[2] ` before each line of rank 2
  tbccl run -n 8 --timeout 60 ./app           ended after a minute, exit status 124

Each rank finds TBCCL_RANK, TBCCL_SIZE, TBCCL_LOCAL_RANK, TBCCL_LOCAL_SIZE, TBCCL_NODE_RANK and
TBCCL_BOOTSTRAP in its environment, and RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE for
programs that expect them.

The exit status is that of the first rank that fails: its own, or 128 + the number of the signal
that killed it. The other ranks are then ended: one second to find out by themselves, SIGTERM, and
SIGKILL after --grace. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all ranks; a
second SIGINT kills them.";

/// Start the ranks of a job on this machine, and end them together
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How many ranks (mpirun's -np is understood as well); may exceed the number of cores
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    ranks: u32,

    #[command(flatten)]
    job: Job,
}

/// What is started, and how: what does not depend on who starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Job {
    /// Set a variable for every rank, or pass one of ours on; may be repeated, the last one wins
    #[arg(short = 'x', value_name = "KEY[=VALUE]", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,

    /// What moves the bytes between ranks: auto, shm, tcp or verbs; short for -x TBCCL_TRANSPORT=NAME
    #[arg(long, value_name = "NAME", value_parser = Transport::from_str)]
    transport: Option<Transport>,

    /// Begin each line of output with its rank: `[2] ` for stdout, `[2:err] ` for stderr
    #[arg(long)]
    tag_output: bool,

    /// End the job after so many seconds, with exit status 124
    #[arg(long, value_name = "SECONDS", value_parser = arguments::seconds)]
    timeout: Option<Duration>,

    /// Seconds from SIGTERM to SIGKILL when ranks have to be ended
    #[arg(long, value_name = "SECONDS", value_parser = arguments::seconds, default_value = "3")]
    grace: Duration,

    /// The program that each rank runs, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Carries out `tbccl run`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    let spec = args.job.spec(args.ranks)?;
    let server = Server::start(&ServerSpec::local(spec.ranks)).map_err(Failed::new)?;
    let outcome = launch(&spec, &server).map_err(Failed::new)?;
    Ok(ExitCode::from(outcome.exit_code()))
}

impl Job {
    /// For so many ranks.
    pub(crate) fn spec(self, ranks: u32) -> Result<LaunchSpec, Failed> {
        let mut command = self.command.into_iter();
        let program = command.next().ok_or_else(|| Failed::new("no program was given"))?;
        let mut env = variables(self.env)?;
        env.extend(self.transport.map(|transport| ("TBCCL_TRANSPORT".into(), transport.name().into())));
        Ok(LaunchSpec {
            args: command.collect(),
            env,
            output: if self.tag_output { Output::Tagged } else { Output::Direct },
            timeout: self.timeout,
            grace: self.grace,
            ..LaunchSpec::new(ranks, program)
        })
    }
}

/// Reads `KEY=VALUE`, and `KEY` for a variable of ours, which the ranks inherit anyway.
fn variables(given: Vec<OsString>) -> Result<Vec<(OsString, OsString)>, Failed> {
    let mut variables = Vec::new();
    for text in given {
        let mut parts = text.as_bytes().splitn(2, |byte| *byte == b'=');
        let key = OsString::from(OsStr::from_bytes(parts.next().unwrap_or_default()));
        if key.is_empty() {
            return Err(Failed::new(format_args!(
                "-x {}: a variable needs a name, as in -x KEY=VALUE",
                text.display()
            )));
        }
        match (parts.next(), std::env::var_os(&key)) {
            (Some(value), _) => variables.push((key, OsStr::from_bytes(value).to_owned())),
            (None, Some(value)) => variables.push((key, value)),
            // Open MPI warns and goes on, and scripts rely on it.
            (None, None) => error::warn(format_args!("-x {}: not set here, so not passed on", key.display())),
        }
    }
    Ok(variables)
}
