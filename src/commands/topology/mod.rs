//! `tbccl topology`: cores, caches and memories of machines, with the devices near them and the cables
//! between them, as text, JSON or a drawing.
//!
//! Machines are surveyed as `tbccl doctor` does. [`tree`] makes one description of each, from which text and
//! drawing are made, so both show the same.
//!
//! | module | purpose |
//! |---|---|
//! | `devices` | ports, RDMA devices and interfaces, with the cores near them |
//! | `drawing` | boxes within boxes |
//! | `json` | the form for programs |
//! | `text` | lines of text |
//! | `tree` | the parts of a machine, with like cores folded |

mod devices;
mod drawing;
mod json;
mod text;
mod tree;

#[cfg(test)]
mod tests;

use super::{
    CommandError, WRONG,
    error::warn,
    print,
    survey::{Cables, SurveyArgs, Surveyed},
};
use inventory::Inventory;
use std::{path::PathBuf, process::ExitCode};

/// Show the cores, caches, memories, devices and cables of machines
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    survey: SurveyArgs,

    /// Write a drawing, an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A host that has answered.
#[derive(Clone, Copy, Debug)]
struct Host<'a> {
    name: &'a str,
    inventory: &'a Inventory,
}

/// Runs `tbccl topology`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let survey = args.survey.survey()?;
    let hosts: Vec<Host<'_>> = survey.hosts.iter().filter_map(answered).collect();
    let cables = Cables::of(hosts.iter().map(|host| (host.name, host.inventory)));
    if let Some(path) = &args.svg {
        std::fs::write(path, drawing::svg(&hosts, &cables))
            .map_err(|e| CommandError::new(format_args!("the file {}: {e}", path.display())))?;
    }
    if args.json {
        print(&json::json(&hosts, &cables));
    } else if args.svg.is_none() {
        print(&text::text(&hosts, &cables));
    }
    let silent: Vec<_> =
        survey.hosts.iter().filter_map(|host| Some((host, host.inventory.as_ref().err()?))).collect();
    for (host, why) in &silent {
        warn(format_args!("host {}: {why}", host.name));
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn answered(host: &Surveyed) -> Option<Host<'_>> {
    Some(Host { name: &host.name, inventory: host.inventory.as_ref().ok()? })
}
