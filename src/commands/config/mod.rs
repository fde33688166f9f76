//! `tbccl config`: finds the cables between hosts, plans their addresses, and writes hostfiles.
//!
//! The commands that hosts need are printed for a person to run. This command changes no host.
//!
//! | module | purpose |
//! |---|---|
//! | `files` | hostfiles |
//! | `networks` | a network for each cable |
//! | `plan` | cables, addresses, commands and remarks |
//! | `report` | text and JSON |

mod files;
mod networks;
mod plan;
mod report;
#[cfg(test)]
mod tests;

use super::{CommandError, WRONG, print, survey::SurveyArgs};
use plan::{Host, Plan};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  tbccl config --hosts mac0,mac1,mac2 --dry-run         the cables, and what would be done
  tbccl config --hosts mac0,mac1,mac2 -o hosts.toml     and write a hostfile for tbccl run
  tbccl config --hosts mac0,mac1 --mlx hosts.json       a hostfile for mlx.launch
  tbccl config --hosts a,b --over rdma -o hosts.toml    fail unless every cable has RDMA
  tbccl config --replay a.txt,b.txt --dry-run           of recorded machines (tbccl doctor --record)

All hosts are asked over ssh, at the same time, as `tbccl run` reaches them. Ports are matched by the
identifiers of their controllers. Each cable gets a network of its own, a /30 that overlaps no network of
any host; addresses that already are the two ends of a /30 stay. The commands for each host are printed:
run them there. This command changes no host. Addresses set by these commands are lost with a restart.

Exit status: 0; 1 if the cables are not what --over asks for; 2 for bad usage, or a host that does not
answer.";

/// Find the cables between hosts, plan their addresses, and write hostfiles
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    survey: SurveyArgs,

    /// Links to use: cables, with RDMA where there is (thunderbolt), cables with RDMA only (rdma), cables
    /// without RDMA (tcp), or the LAN (lan)
    #[arg(long, value_name = "LINKS", default_value = "thunderbolt")]
    over: Over,

    /// Write no file: print the hostfile
    #[arg(long)]
    dry_run: bool,

    /// Write tbccl's hostfile
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write MLX's hostfile, for mlx.launch
    #[arg(long, visible_alias = "output-hostfile", value_name = "FILE")]
    mlx: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Over {
    Thunderbolt,
    Rdma,
    Tcp,
    #[value(alias = "ethernet")]
    Lan,
}

/// Runs `tbccl config`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let survey = args.survey.survey()?;
    if survey.hosts.len() < 2 {
        return Err(CommandError::new("cables are between hosts: name two or more, e.g. --hosts mac0,mac1"));
    }
    let silent = survey.hosts.iter().filter_map(|host| Some((host, host.inventory.as_ref().err()?)));
    let silent: Vec<String> = silent.map(|(host, why)| format!("host {}: {why}", host.name)).collect();
    if !silent.is_empty() {
        return Err(CommandError::new(silent.join("\n")));
    }
    let hosts = survey.hosts.iter().filter_map(|host| {
        host.inventory.as_ref().ok().map(|inventory| Host { name: &host.name, inventory })
    });
    let plan = match args.over {
        Over::Lan => Plan::lan(hosts.collect()),
        _ => Plan::new(hosts.collect()).map_err(CommandError::new)?,
    };
    let with_rdma = matches!(args.over, Over::Thunderbolt | Over::Rdma);
    let (native, mlx) = (files::native(&plan, with_rdma), files::mlx(&plan, with_rdma));
    let problem = args.over.problem(&plan);
    if args.json {
        print(&report::json(&plan, &native, problem.as_deref()));
    } else {
        print(&report::text(&plan, problem.as_deref()));
    }
    if problem.is_some() {
        return Ok(ExitCode::from(WRONG));
    }
    if args.dry_run || (args.output.is_none() && args.mlx.is_none()) {
        if !args.json {
            print(&format!("\n{native}"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (path, text) in [(&args.output, &native), (&args.mlx, &mlx)] {
        if let Some(path) = path {
            write(path, text, args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Over {
    /// Returns the reason why the cables are not as asked for.
    fn problem(self, plan: &Plan<'_>) -> Option<String> {
        match self {
            Over::Lan => None,
            _ if plan.wires.is_empty() => Some(
                "no cable connects two of the hosts; see `tbccl doctor --check cable`, or use --over lan"
                    .to_owned(),
            ),
            Over::Rdma if !plan.has_rdma() => Some(
                "a cable has no RDMA device at one of its ends; see `tbccl doctor --check rdma,port`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

fn write(path: &Path, text: &str, quiet: bool) -> Result<(), CommandError> {
    std::fs::write(path, text)
        .map_err(|e| CommandError::new(format_args!("the file {}: {e}", path.display())))?;
    if !quiet {
        print(&format!("wrote {}\n", path.display()));
    }
    Ok(())
}
