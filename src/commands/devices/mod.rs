//! `tbccl devices`: lists the RDMA devices of this machine and how tbccl uses them.

mod json;
pub(super) mod query;
mod table;

use super::{CommandError, print};
use query::DeviceList;
use std::process::ExitCode;
use tbccl::Config;
use transport::verbs::Library;

const EXAMPLES: &str = "\
Examples:
  tbccl devices
  tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh2.toml --node 0 -- tbccl devices

The capabilities of a device are probed: a queue pair and some memory are allocated for a moment. The
verbs library is librdma.dylib on macOS and libibverbs.so.1 elsewhere, or the file named by TBCCL_VERBS_LIB.

Exit status: 0, even without devices; 2 without a verbs library.";

/// Show the RDMA devices of this machine, and how tbccl will use them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON with all details
    #[arg(long)]
    json: bool,
}

/// Runs `tbccl devices`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let config = Config::from_env().map_err(CommandError::new)?;
    let library = Library::load(config.verbs.library.as_deref()).map_err(CommandError::new)?;
    let list = query::query_all(&library)?;
    print(&if args.json { json::of(&list) } else { text(&list) });
    Ok(ExitCode::SUCCESS)
}

/// Returns the list as text for people.
fn text(list: &DeviceList) -> String {
    match &list.no_devices {
        Some(why) => format!("{why}\n"),
        None => table::of(&list.devices),
    }
}
