//! `tbccl chaos`: a campaign of random work under random faults.
//!
//! A campaign is a sequence of rounds. In each round the driver, which is this process, starts a job of real
//! processes. All of them derive the same plan from the seed and the number of the round: communicators,
//! calls with checked results, and faults. The driver injects the faults from outside, and ranks inject those
//! that need them. After the round the oracle compares the reports of all processes with the rules.
//!
//! | module | purpose |
//! |---|---|
//! | `account` | reports of processes |
//! | `driver` | starts a round, injects faults, and looks for anything that is left |
//! | `fault` | the table of faults |
//! | `oracle` | the rules, and the verdict about a round |
//! | `plan` | the plan of a round |
//! | `report` | text and JSON about rounds, and the summary |
//! | `settings` | transports and fabrics |
//! | `worker` | a process of a round |

mod account;
mod driver;
mod fault;
mod oracle;
mod plan;
mod report;
mod settings;
mod worker;

use super::{CommandError, WRONG, arguments, fabric::Tool, print, progress::Progress};
use driver::Workplace;
use fault::Kind;
use plan::{Round, Wishes};
use report::{Report, Summary};
use settings::{FabricChoice, PROFILES, Setting};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tbccl::Transport;

/// Returns the text after the options.
fn after_help() -> String {
    format!("Faults:\n{}\n{EXAMPLES}", fault::help())
}

const EXAMPLES: &str = "\
Examples:
  tbccl chaos --minutes 10 --seed 3                      every transport and fault in turn
  tbccl chaos --minutes 1 --transport tcp --faults kill,reset
  tbccl chaos --minutes 2 --transport verbs --fabric usb4
  tbccl chaos --seed 3 --round 17 --transport shm        one round again
  tbccl chaos --minutes 5 --json - | jq .violations

Each round starts processes, which make random calls on random communicators, while faults are injected.
After it every result has been compared, every error names its cause and came in time, the remaining
processes have made another communicator, and nothing is left. A round that violates a rule prints the
command that runs it again. The plan of a round follows from its seed and number; the moments at which
processes meet a fault differ from run to run, so --times repeats it.

Exit status: 0; 1 if a rule is violated; 2 for bad usage or an unsuitable environment.";

/// Run random work under random faults, and check that results are right and errors say why
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Minutes after which no round begins
    #[arg(long, value_name = "MINUTES", default_value = "1", value_parser = minutes)]
    minutes: Duration,

    /// Seed of all random choices
    #[arg(long, value_name = "SEED", default_value = "1")]
    seed: u64,

    /// Transports, separated by commas: shm, tcp, shm+tcp, verbs, shm+verbs [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = settings::transport)]
    transport: Vec<Transport>,

    /// Profiles of software devices (ib, usb4, apple-tb5), separated by commas, or a fabric file [default:
    /// all profiles]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    fabric: Vec<String>,

    /// Kinds of faults, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    faults: Vec<Kind>,

    /// Run this round only
    #[arg(long, value_name = "NUMBER")]
    round: Option<u32>,

    /// Run each round this many times
    #[arg(
        long,
        value_name = "TIMES",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    times: u32,

    /// Time limit of calls in seconds
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = arguments::seconds)]
    timeout: Duration,

    /// Write one line of JSON per round to a file, and one for the summary; `-` for stdout without text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Keep the reports, the output and the latest calls of failing rounds in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Set by the driver for processes of a round: the folder that they share
    #[arg(long, value_name = "DIR", hide = true)]
    worker: Option<PathBuf>,

    /// Set by the driver for processes without a launcher: their number
    #[arg(long, value_name = "NUMBER", hide = true)]
    process: Option<u32>,
}

/// Parses a time in minutes.
fn minutes(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().map(|minutes| minutes * 60.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a time in minutes was expected, e.g. 10 or 0.5".to_owned())
}

/// Runs `tbccl chaos`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let wishes = args.wishes()?;
    match &args.worker {
        Some(folder) => args.work(&wishes, folder),
        None => args.drive(&wishes),
    }
}

impl Args {
    fn wishes(&self) -> Result<Wishes, CommandError> {
        let settings = match self.fabric.as_slice() {
            [file] if !PROFILES.contains(&file.as_str()) => self.settings_on(file)?,
            names => {
                let profile = |name: &String| PROFILES.into_iter().find(|known| known == name);
                let unknown = names.iter().find(|name| profile(name).is_none());
                if let Some(name) = unknown {
                    return Err(CommandError::new(collectives::UnknownName::new("profile", name, PROFILES)));
                }
                Setting::all(&self.transport, &names.iter().filter_map(profile).collect::<Vec<_>>())
            }
        };
        Ok(Wishes { settings, faults: self.faults.clone(), timeout: self.timeout })
    }

    /// Returns the settings on a fabric file.
    fn settings_on(&self, file: &str) -> Result<Vec<Setting>, CommandError> {
        let nodes = Tool::find()?.nodes(Path::new(file))?;
        let (count, cables) = (nodes.count(), nodes.cables());
        let choice = FabricChoice::File { path: file.to_owned(), cables, nodes: count };
        let with_devices = |setting: &Setting| setting.has_devices();
        let all = Setting::all(&self.transport, &PROFILES[..1]).into_iter().filter(with_devices);
        Ok(all.map(|setting| Setting { fabric: Some(choice.clone()), ..setting }).collect())
    }

    /// Acts as a process of a round.
    fn work(&self, wishes: &Wishes, folder: &Path) -> Result<ExitCode, CommandError> {
        let rank = std::env::var("TBCCL_RANK").ok().and_then(|rank| rank.parse().ok());
        let (Some(number), Some(round)) = (self.process.or(rank), self.round) else {
            return Err(CommandError::new("--worker: `tbccl chaos` starts the processes of a round itself"));
        };
        driver::enter_fabric(folder, number)?;
        worker::run(&Round::new(self.seed, round, wishes), number, folder).map(|()| ExitCode::SUCCESS)
    }

    /// Runs the campaign.
    fn drive(&self, wishes: &Wishes) -> Result<ExitCode, CommandError> {
        if !cfg!(target_os = "linux") {
            return Err(CommandError::new(
                "`tbccl chaos` looks for leftovers in /proc, which only Linux has",
            ));
        }
        let is_interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&is_interrupted)).map_err(CommandError::new)?;
        }
        driver::adopt_orphans();
        let workplace = Workplace::create(self.keep.clone())?;
        let (began, mut summary) = (Instant::now(), Summary::default());
        let mut report = Report::open(self.json.as_deref())?;
        let progress = Progress::new(self.minutes.as_secs() as usize, "s");
        let numbers = self.round.unwrap_or(0)..self.round.map_or(u32::MAX, |round| round.saturating_add(1));
        let all = numbers.flat_map(|number| std::iter::repeat_n(number, self.times as usize));
        for number in all {
            if self.round.is_none() && began.elapsed() >= self.minutes {
                break;
            }
            let round = Round::new(self.seed, number, wishes);
            let Some(judged) = driver::run(round, wishes, &workplace, &is_interrupted)? else { break };
            progress.reach(began.elapsed().as_secs());
            progress.suspended(|| report.round(&judged, wishes))?;
            summary.add(&judged);
        }
        progress.finish();
        report.end(&summary, began.elapsed())?;
        Ok(if summary.violations() == 0 { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
    }
}
