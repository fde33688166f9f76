//! `tbccl config`: finds the cables between hosts, plans their addresses, and writes hostfiles.
//!
//! The commands that hosts need are printed for a person to run, or run by `--apply`, and taken back by
//! `--undo`.
//!
//! | module | purpose |
//! |---|---|
//! | `apply` | changes made on all hosts, and taken back; the proof by `tbccl ping` |
//! | `change` | one change of a host |
//! | `files` | tbccl's hostfile |
//! | `make` | changes made on this host |
//! | `mlx` | MLX's hostfile, and the backends for which it is |
//! | `networks` | a network for each cable |
//! | `plan` | cables, addresses, changes and remarks |
//! | `report` | text and JSON |
//! | `undo_file` | the file of changes that can be taken back |

mod apply;
mod change;
mod files;
mod make;
mod mlx;
mod networks;
mod plan;
mod report;
#[cfg(test)]
mod tests;
mod undo_file;

use super::{
    CommandError, WRONG, print,
    survey::{Survey, SurveyArgs},
};
use crate::commands::error::warn;
use change::Change;
use mlx::{Backend, Settings};
use plan::{Host, Plan};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};
use undo_file::UndoFile;

/// Times that hosts are changed and looked at again, since a loaded module makes new interfaces.
const ROUNDS: usize = 3;

const EXAMPLES: &str = "\
Examples:
  tbccl config --hosts mac0,mac1,mac2 --dry-run         the cables, and what would be done
  tbccl config --hosts mac0,mac1,mac2 -o hosts.toml     and write a hostfile for tbccl run
  tbccl config --hosts a,b --apply -o hosts.toml        run the commands, write it, and ping all hosts
  tbccl config --undo                                   take back what --apply has done
  tbccl config --hosts mac0,mac1 --mlx hosts.json       a hostfile for mlx.launch
  tbccl config --hosts a,b --backend ring --mlx h.json  for its backend ring, whatever the cables can
  tbccl config --hosts a,b --over rdma -o hosts.toml    fail unless every cable has RDMA
  tbccl config --replay a.txt,b.txt --dry-run           of recorded machines (tbccl doctor --record)

All hosts are asked over ssh, at the same time, as `tbccl run` reaches them. Ports are matched by the
identifiers of their controllers. Each cable gets a network of its own, a /30 that overlaps no network of
any host; addresses that already are the two ends of a /30 stay.

The commands that each host needs are printed. --apply runs them: as root, or by sudo where it asks for no
password. Then it looks at the hosts again, and runs `tbccl ping` between them. Commands that a host does
not need are left out, so --apply can be repeated. What --undo takes back is noted in
~/.local/state/tbccl/config-undo.json. Addresses are lost with a restart: run --apply again.

Exit status: 0; 1 if the cables are not what --over asks for, a change fails, or a ping does; 2 for bad
usage, or a host that does not answer.";

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

    /// Write no hostfile: print the hostfile
    #[arg(long)]
    dry_run: bool,

    /// Write tbccl's hostfile
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write MLX's hostfile, for mlx.launch
    #[arg(long, visible_alias = "output-hostfile", value_name = "FILE")]
    mlx: Option<PathBuf>,

    /// Backend of MLX for which the hostfiles are; without it, the first of jaccl, jaccl-ring and ring that
    /// the cables allow
    #[arg(long, value_name = "BACKEND", conflicts_with = "undo")]
    backend: Option<Backend>,

    /// Environment variable of all ranks, for the hostfiles; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment, conflicts_with = "undo")]
    env: Vec<String>,

    /// Write a picture of hosts, ports and cables, an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the cables as a graph for Graphviz, and nothing else
    #[arg(long, conflicts_with_all = ["apply", "json", "undo"])]
    dot: bool,

    /// Run the commands that hosts need, and ping all hosts
    #[arg(long, visible_alias = "auto-setup", conflicts_with_all = ["dry_run", "replay", "undo"])]
    apply: bool,

    /// Run no command, which is the default; for scripts that call mlx.distributed_config
    #[arg(long, hide = true, conflicts_with_all = ["apply", "undo"])]
    no_auto_setup: bool,

    /// Print all that is known, which is the default; for scripts that call mlx.distributed_config
    #[arg(long, hide = true)]
    verbose: bool,

    /// Leave out hosts that do not answer, with a warning
    #[arg(long, conflicts_with = "undo")]
    ignore_unreachable: bool,

    /// Do not ping after --apply
    #[arg(long, requires = "apply")]
    no_ping: bool,

    /// Take back what --apply has done, on all hosts or on those named
    #[arg(long, conflicts_with_all = ["dry_run", "replay", "output", "mlx", "over", "json", "svg"])]
    undo: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Make changes on this host; other hosts ask for it
    #[arg(long, hide = true, value_name = "CHANGES", value_delimiter = ',', value_parser = Change::from_str)]
    make: Vec<Change>,
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
    if !args.make.is_empty() {
        print(&apply::make_here(&args.make).answer());
        return Ok(ExitCode::SUCCESS);
    }
    if args.undo {
        return undo(args);
    }
    let survey = args.look()?;
    let plan = args.plan(&survey)?;
    if args.dot {
        print(&report::dot(&plan));
        return Ok(ExitCode::SUCCESS);
    }
    let problem = args.problem(&plan);
    if args.json {
        print(&report::json(&plan, &args.native(&plan), problem.as_deref()));
    } else {
        print(&report::text(&plan, problem.as_deref()));
    }
    if let Some(path) = &args.svg {
        write(path, &report::svg(&plan))?;
        args.say(&format!("wrote {}\n", path.display()));
    }
    if problem.is_some() {
        return Ok(ExitCode::from(WRONG));
    }
    if args.apply {
        return apply_and_prove(args, survey);
    }
    if args.dry_run || (args.output.is_none() && args.mlx.is_none()) {
        if !args.json {
            print(&format!("\n{}", args.native(&plan)));
        }
        return Ok(ExitCode::SUCCESS);
    }
    args.write_files(&plan)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes changes until no host needs one, writes the hostfiles, and pings all hosts.
fn apply_and_prove(args: &Args, mut survey: Survey) -> Result<ExitCode, CommandError> {
    let mut file = UndoFile::open()?;
    for round in 0..ROUNDS {
        let plan = args.plan(&survey)?;
        if !plan.has_changes() {
            break;
        }
        if round > 0 {
            args.say(&report::commands(&plan));
        }
        let errors = apply::apply(&plan, &args.survey, &mut file)?;
        if !errors.is_empty() {
            let undo = file.hosts().next().map(|_| "what was done is taken back by `tbccl config --undo`");
            return Ok(wrong(errors.into_iter().chain(undo.map(str::to_owned))));
        }
        survey = args.look()?;
    }
    let plan = args.plan(&survey)?;
    if plan.has_changes() {
        let lines = report::commands(&plan);
        let said =
            "the commands have succeeded, and yet hosts need commands: run them there, and see what they say";
        return Ok(wrong([format!("{said}\n{}", lines.trim())]));
    }
    args.say("all hosts are as planned\n");
    args.write_files(&plan)?;
    if args.no_ping {
        return Ok(ExitCode::SUCCESS);
    }
    let transport = if args.with_rdma() { "auto" } else { "tcp" };
    let status = apply::ping(&args.survey, &args.native(&plan), transport, args.json)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { wrong([format!("tbccl ping has failed: {status}")]) })
}

/// Takes back what `--apply` has done.
fn undo(args: &Args) -> Result<ExitCode, CommandError> {
    let mut file = UndoFile::open()?;
    let named = args.survey.host_names()?;
    let is_wanted = |host: &str| named.as_ref().is_none_or(|named| named.iter().any(|name| name == host));
    if !file.hosts().any(|(host, _)| is_wanted(host)) {
        print(&format!("nothing to take back is noted in {}\n", file.path().display()));
        return Ok(ExitCode::SUCCESS);
    }
    let (lines, errors) = apply::undo(&args.survey, &mut file, is_wanted)?;
    lines.iter().for_each(|line| print(&format!("{line}\n")));
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { wrong(errors) })
}

/// Prints problems; returns the status for them.
fn wrong(lines: impl IntoIterator<Item = String>) -> ExitCode {
    for line in lines {
        warn(line);
    }
    ExitCode::from(WRONG)
}

impl Args {
    /// Takes the inventories of all hosts.
    fn look(&self) -> Result<Survey, CommandError> {
        let mut survey = self.survey.survey()?;
        let silent = survey.hosts.iter().filter_map(|host| Some((host, host.inventory.as_ref().err()?)));
        let silent: Vec<String> = silent.map(|(host, why)| format!("host {}: {why}", host.name)).collect();
        if self.ignore_unreachable {
            silent.iter().for_each(|line| warn(format!("{line}; it is left out")));
            survey.hosts.retain(|host| host.inventory.is_ok());
        } else if !silent.is_empty() {
            return Err(CommandError::new(silent.join("\n")));
        }
        if survey.hosts.len() < 2 {
            return Err(CommandError::new(
                "cables are between hosts: name two or more, e.g. --hosts mac0,mac1",
            ));
        }
        Ok(survey)
    }

    fn plan<'a>(&self, survey: &'a Survey) -> Result<Plan<'a>, CommandError> {
        let hosts = survey.hosts.iter().filter_map(|host| {
            host.inventory.as_ref().ok().map(|inventory| Host { name: &host.name, inventory })
        });
        match self.over {
            Over::Lan => Ok(Plan::lan(hosts.collect())),
            _ => Plan::new(hosts.collect()).map_err(CommandError::new),
        }
    }

    fn with_rdma(&self) -> bool {
        matches!(self.over, Over::Thunderbolt | Over::Rdma)
    }

    /// Returns the reason why the cables are not as asked for.
    fn problem(&self, plan: &Plan<'_>) -> Option<String> {
        // The backend ring needs no cables where the LAN is asked for.
        let backend = self.backend.filter(|backend| (self.over, *backend) != (Over::Lan, Backend::Ring));
        self.over.problem(plan).or_else(|| backend?.problem(plan, self.with_rdma()))
    }

    fn settings(&self) -> Settings<'_> {
        Settings { backend: self.backend, env: &self.env }
    }

    /// Returns the text of tbccl's hostfile.
    fn native(&self, plan: &Plan<'_>) -> String {
        files::native(plan, self.with_rdma(), &self.settings())
    }

    fn write_files(&self, plan: &Plan<'_>) -> Result<(), CommandError> {
        let (native, mlx) = (self.native(plan), mlx::hostfile(plan, self.with_rdma(), &self.settings()));
        for (path, text) in [(&self.output, &native), (&self.mlx, &mlx)] {
            if let Some(path) = path {
                write(path, text)?;
                self.say(&format!("wrote {}\n", path.display()));
            }
        }
        Ok(())
    }

    /// Prints a text unless stdout is for JSON.
    fn say(&self, text: &str) {
        if !self.json {
            print(text);
        }
    }
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

/// Checks that a text is `KEY=VALUE`.
fn assignment(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Ok(text.to_owned())
        }
        _ => Err("a variable with its value is needed, as in --env TBCCL_TIMEOUT=60".to_owned()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    std::fs::write(path, text)
        .map_err(|e| CommandError::new(format_args!("the file {}: {e}", path.display())))
}
