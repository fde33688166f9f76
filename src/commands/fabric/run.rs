//! `tbccl fabric run`: starts one or more processes per node of a fabric.

use super::{
    CommandError,
    folder::Folder,
    tool::{Inject, Tool, Variables},
};
use crate::commands::run::Job;
use crate::launch::{LaunchSpec, launch};
use bootstrap::{Secret, Server, ServerSpec};
use collectives::MAX_RANKS;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  tbccl fabric run --fabric apple-tb5-mesh3.toml -- ibv_devinfo    on each of three nodes
  tbccl fabric run --fabric apple-tb5-mesh3.toml -- tbccl bench all_reduce
  tbccl fabric run --fabric pair.toml --per-node 2 --transport shm+verbs -- tbccl bench all_reduce
  tbccl fabric run --fabric pair.toml --node 0 -- ibv_rc_pingpong -g 1
  tbccl fabric run --fabric pair.toml --node 1 -- ibv_rc_pingpong -g 1 localhost

The program needs no changes. LD_PRELOAD, or with --inject library-path a libibverbs.so.1 in
LD_LIBRARY_PATH, replaces libibverbs by the software device. TBCCL_VERBS_LIB names the device for programs
that load such a library themselves, as tbccl does. The process of node K is rank K and gets the variables
of `tbccl run`, and SOFTRDMA_FABRIC, SOFTRDMA_NODE and SOFTRDMA_DIR. With --per-node the ranks of one node
are consecutive, and TBCCL_HOST_ID keeps those of different nodes from sharing memory. SOFTRDMA_LIB names
the library if it is not beside this program. SOFTRDMA_BASE names the folder in which the folders of
fabrics are made, /dev/shm by default; `tbccl fabric fault` and `tbccl fabric stat` find fabrics in the same.

Runs with --node share a fabric if their fabric files are equal, or if they name the same --dir. While a
program runs, `tbccl fabric fault` injects faults and `tbccl fabric stat` shows the traffic.";

/// Start a program on each node of a fabric of software RDMA devices, or on one of them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The fabric file
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,

    /// Start the program on this node only; a name or a number
    #[arg(long, value_name = "NODE")]
    node: Option<OsString>,

    /// Processes per node
    #[arg(long, value_name = "K", value_parser = crate::commands::arguments::ranks, default_value = "1")]
    per_node: u32,

    /// Folder that the processes of the fabric share; it is kept
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// How the program gets the software device instead of libibverbs
    #[arg(long, value_name = "HOW", default_value = "preload")]
    inject: Inject,

    #[command(flatten)]
    job: Job,
}

/// Runs `tbccl fabric run`.
pub(crate) fn run(args: Args) -> Result<ExitCode, CommandError> {
    let tool = Tool::find()?;
    let (nodes, _folder) = prepare(&tool, &args)?;
    let ranks = u32::try_from(nodes.len()).ok().and_then(|nodes| nodes.checked_mul(args.per_node));
    let ranks = ranks.filter(|ranks| *ranks <= MAX_RANKS).ok_or_else(|| {
        CommandError::new(format_args!("--per-node {}: a job has at most {MAX_RANKS} ranks", args.per_node))
    })?;
    let library = tool.library()?;
    let of_node = |node: Variables| {
        let host = node.get("SOFTRDMA_NODE").filter(|_| args.per_node > 1).cloned();
        let host = host.map(|name| ("TBCCL_HOST_ID".into(), name.into()));
        let variables = node.into_iter().map(|(name, value)| (name.into(), value.into()));
        variables.chain([("TBCCL_VERBS_LIB".into(), library.clone().into())]).chain(host).collect()
    };
    let spec = LaunchSpec {
        rank_env: nodes
            .into_iter()
            .map(of_node)
            .flat_map(|env: Vec<_>| vec![env; args.per_node as usize])
            .collect(),
        name: "tbccl fabric run",
        ..args.job.spec(ranks)?
    };
    let secret = Secret::generate().map_err(CommandError::new)?;
    let server = Server::start(&ServerSpec::local(ranks, Some(secret)).with_exit_reports())
        .map_err(CommandError::new)?;
    let outcome = launch(&spec, &server).map_err(CommandError::new)?;
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Returns the variables of each node, and the folder to remove at the end.
fn prepare(tool: &Tool, args: &Args) -> Result<(Vec<Variables>, Option<Folder>), CommandError> {
    let environments =
        |dir: Option<&Path>| tool.environments(&args.fabric, args.node.as_deref(), dir, args.inject);
    match (&args.node, &args.dir) {
        (_, Some(dir)) => Ok((environments(Some(dir))?, None)),
        (None, None) => {
            let folder = Folder::own();
            Ok((environments(Some(folder.path()))?, Some(folder)))
        }
        (Some(_), None) => {
            let nodes = environments(None)?;
            let dir = nodes.first().and_then(|node| node.get("SOFTRDMA_DIR"));
            let folder = dir.map(|dir| Folder::shared(dir.into())).transpose()?;
            Ok((nodes, folder))
        }
    }
}
