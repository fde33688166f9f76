//! `tbccl devices`: which RDMA devices this machine has, and what tbccl makes of them.

mod json;
mod look;
mod table;

use super::{Failed, print};
use look::Answer;
use std::process::ExitCode;
use tbccl::Config;
use transport::verbs::Library;

const EXAMPLES: &str = "\
Examples:
  tbccl devices
  tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh2.toml --node 0 -- tbccl devices

What a device can do is found by trying: a queue pair and some memory are taken for a moment. The verbs
library is librdma.dylib on macOS and libibverbs.so.1 elsewhere, or the one that TBCCL_VERBS_LIB names.

Exit status: 0, also when there are no devices; 2 when there is no verbs library.";

/// Show the RDMA devices of this machine, and how tbccl will use them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// As JSON, with all that is known
    #[arg(long)]
    json: bool,
}

/// Carries out `tbccl devices`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failed> {
    let config = Config::from_env().map_err(Failed::new)?;
    let library = Library::load(config.verbs.library.as_deref()).map_err(Failed::new)?;
    let answer = look::around(&library)?;
    print(&if args.json { json::of(&answer) } else { text(&answer) });
    Ok(ExitCode::SUCCESS)
}

/// Returns the result as text for people.
fn text(answer: &Answer) -> String {
    match &answer.nothing {
        Some(why) => format!("{why}\n"),
        None => table::of(&answer.devices),
    }
}
