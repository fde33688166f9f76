//! `tbccl plan explain`: explains the choice of an algorithm for a call.

use super::machine;
use crate::commands::{
    CommandError, arguments,
    calibrate::{effect, json as calibration_json},
    print,
};
use collectives::{
    Collective, Hosts, Numerics, PlanError, Spec,
    schedule::InPlace,
    select::{
        Call, Choice, Names, Overrides, Policy, Requirements, Tuning, choose,
        price::{CallShape, Candidates, Effort, Model, Verdict},
        survey::block_bytes,
    },
    uneven::has_vector_form,
};
use serde_json::json;
use std::{fmt::Write, process::ExitCode};
use tbccl::{Communicator, Config, calibration::Calibration};
use topology::{Cluster, Rank, Reach};

const EXAMPLES: &str = "\
Examples:
  tbccl plan explain all_reduce --ranks 4 --bytes 64K
  tbccl plan explain all_reduce --ranks 5 --bytes 64M --cluster ring
  tbccl plan explain broadcast --ranks 4 --root 2 --cluster configs/clusters/mac-mesh4.toml --exhaustive
  tbccl plan explain all_reduce --ranks 8 --cluster configs/clusters/two-tiers.toml --hosts 4,4
  tbccl plan explain all_to_all --ranks 4 --uneven
  TBCCL_ALGO=^rsag_mesh tbccl plan explain all_reduce --ranks 4 --bytes 64M

Each algorithm that can run the call first gets a lower bound: the time of its plan with empty messages,
or the time of its busiest link, whichever is longer. The plans are simulated in the order of their bounds,
whole and in several numbers of segments. Plans whose bound exceeds the best time so far are not simulated
(`-`), unless --exhaustive is given. busbw is the bandwidth on the wires, as in `tbccl bench`. The last two
lines are the lower bound of any plan, and the choice of a job by TBCCL_RULES, TBCCL_ALGO, TBCCL_TUNING,
TBCCL_MODEL or thresholds, in this order (docs/selection.md). With --uneven, blocks are priced at their mean
length, and only with algorithms whose plans are correct for any lengths. A named cluster has one rank per
host and cables of 75 Gb/s and 5 us; shm has all ranks on one host.";

/// Explain which algorithm is the fastest for a call
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Collective, e.g. all_reduce
    #[arg(value_name = "OP")]
    collective: Collective,

    /// Number of ranks
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: u32,

    /// Bytes of the larger of input and output; K, M, G and T are understood
    #[arg(
        short = 'b',
        long,
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    bytes: u64,

    /// Root, for collectives that have one
    #[arg(short = 'r', long, value_name = "R", default_value = "0")]
    root: u32,

    /// Connection of the ranks: mesh, ring, hypercube or shm, or the file of a cluster or a fabric
    #[arg(long, value_name = "NAME|FILE", default_value = "mesh")]
    cluster: String,

    /// Costs of messages and work: ideal, rdma, rdma-held or jaccl, or a file [default: the cluster's]
    #[arg(long, value_name = "NAME|FILE")]
    costs: Option<String>,

    /// Order of contributions: fast or reproducible [default: TBCCL_NUMERICS]
    #[arg(long, value_name = "HOW")]
    numerics: Option<Numerics>,

    /// Price an in-place call
    #[arg(long)]
    in_place: bool,

    /// Price a call whose blocks may differ in length, such as all_gather_v; --bytes is their sum
    #[arg(long)]
    uneven: bool,

    /// Ranks on each host, for hierarchical plans: 4 (on each), 3,1 or turns:2 [default: the cluster's]
    #[arg(long, value_name = "RANKS,...", allow_hyphen_values = true)]
    hosts: Option<Hosts>,

    /// Simulate also the plans that the bounds rule out
    #[arg(long)]
    exhaustive: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A call, its prices, and the choice of a running job.
struct Case {
    model: Model,
    shape: CallShape,
    bytes: u64,
    verdict: Verdict,
    /// The choice of a job with its simulated seconds, or the reason why it fails.
    job_choice: Result<(Choice, Option<f64>), String>,
    /// The calibration of this machine, for ranks that share a host.
    calibration: Option<Calibration>,
}

/// Runs `tbccl plan explain`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let config = Config::from_env().map_err(CommandError::new)?;
    let mut model = machine::model(&args.cluster, args.ranks)?;
    if let Some(name) = &args.costs {
        model.costs = machine::costs(name)?;
    }
    let numerics = args.numerics.unwrap_or(config.numerics);
    if args.uneven && !has_vector_form(args.collective) {
        return Err(CommandError::new(format_args!(
            "blocks of {} don't differ in length; leave --uneven out",
            args.collective
        )));
    }
    Spec::new(args.collective, args.ranks)
        .and_then(|spec| spec.with_root(Rank(args.root)))
        .map_err(CommandError::new)?;
    let hosts = args.hosts.unwrap_or_else(|| hosts_of(&model.cluster, args.ranks));
    if !hosts.fits(args.ranks) {
        return Err(CommandError::new(PlanError::Hosts { hosts, ranks: args.ranks }));
    }
    let reach = Reach::new(args.ranks, |a, b| model.cluster.route(a, b).is_some());
    let requirements = Requirements { uneven: args.uneven, numerics, hosts, ..Requirements::default() };
    let requirements = requirements.within(args.ranks, &reach);
    let shape = CallShape {
        collective: args.collective,
        ranks: args.ranks,
        root: Rank(args.root),
        in_place: if args.in_place { InPlace::Yes } else { InPlace::No },
        requirements,
    };
    let case = Case::new(model, shape, args, &config)?;
    print(&if args.json { case.json() } else { case.text() });
    Ok(ExitCode::SUCCESS)
}

/// Returns how the first ranks of a cluster are distributed over its hosts.
fn hosts_of(cluster: &Cluster, ranks: u32) -> Hosts {
    let hosts = Hosts::of_cluster(cluster);
    if hosts.count(ranks) > 1 { hosts } else { Hosts::One }
}

impl Case {
    fn new(model: Model, shape: CallShape, args: &Args, config: &Config) -> Result<Case, CommandError> {
        let is_apart = model.cluster.hosts() > 1 && model.cluster.ranks_per_host() == 1;
        let tuning = if is_apart { Tuning::rdma() } else { Tuning::default() };
        let policy = policy(config, tuning)?;
        let block_bytes = block_bytes(shape.collective, shape.ranks, args.bytes);
        let reach = Reach::new(shape.ranks, |a, b| model.cluster.route(a, b).is_some());
        let candidates =
            Candidates::new(&model, shape, &reach, &policy.overrides.names).map_err(CommandError::new)?;
        let effort = if args.exhaustive { Effort::Exhaustive } else { Effort::Pruned };
        let verdict = candidates.price(block_bytes, &policy.tuning, effort).map_err(CommandError::new)?;
        let call = Call { collective: shape.collective, ranks: shape.ranks, block_bytes };
        let job_choice = choose(call, shape.root, &reach, &policy, shape.requirements).map(|mut choice| {
            if config.selection.segments > 0 && shape.collective != Collective::Barrier {
                choice.segments = config.selection.segments;
            }
            let seconds = candidates.seconds(choice.algorithm, choice.segments, block_bytes);
            (choice, seconds)
        });
        let (bytes, job_choice) = (args.bytes, job_choice.map_err(|error| error.to_string()));
        let calibration = (model.cluster.hosts() == 1).then(|| {
            let found = Communicator::calibration(config);
            found.unwrap_or_else(|error| Calibration::Missing(error.to_string()))
        });
        Ok(Case { shape, bytes, verdict, job_choice, model, calibration })
    }

    /// Whether the call moves any bytes.
    fn moves_bytes(&self) -> bool {
        self.shape.collective != Collective::Barrier
    }

    /// Returns the bus bandwidth in GB/s.
    fn busbw(&self, seconds: f64) -> f64 {
        self.bytes as f64 / seconds * self.shape.collective.busbw_factor(self.shape.ranks) * 1e-9
    }

    /// Returns the distribution of ranks over hosts if several ranks share a host and there is more than one
    /// host.
    fn host_layout(&self) -> Option<Hosts> {
        Some(self.shape.requirements.hosts).filter(|hosts| *hosts != Hosts::One)
    }

    fn text(&self) -> String {
        let Verdict { choice, seconds, candidates, excluded, bounds } = &self.verdict;
        let mut text = format!(
            "{}{}{} on {} ranks{} of: {}\nfastest: {} in {}, {:.2} us\n\n",
            self.shape.collective,
            if self.shape.requirements.uneven { "_v" } else { "" },
            if self.moves_bytes() { format!(" of {} bytes", self.bytes) } else { String::new() },
            self.shape.ranks,
            self.host_layout().map_or_else(String::new, |hosts| format!(", {hosts},")),
            self.model.cluster.name(),
            choice.algorithm,
            segments_text(choice.segments),
            seconds * 1e6
        );
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:<22} {:>8} {:>12} {:>13} {:>12}",
            "algorithm", "segments", "time (us)", "busbw (GB/s)", "bound (us)"
        );
        for priced in candidates {
            let [segments, time, busbw] = match priced.best {
                Some((segments, seconds)) => [
                    segments.to_string(),
                    format!("{:.2}", seconds * 1e6),
                    format!("{:.3}", self.busbw(seconds)),
                ],
                None => ["-", "-", "-"].map(str::to_owned),
            };
            let bound = priced.bound * 1e6;
            let _ =
                writeln!(text, "{:<22} {segments:>8} {time:>12} {busbw:>13} {bound:>12.2}", priced.algorithm);
        }
        if !excluded.is_empty() {
            text.push_str("\nout:\n");
        }
        for exclusion in excluded {
            let _ = writeln!(text, "  {}: {}", exclusion.algorithm, exclusion.why);
        }
        let excess_percent = excess_percent(*seconds, bounds.seconds()).map_or_else(String::new, |percent| {
            format!("; the fastest takes {percent:.1} % more than the larger one")
        });
        let _ = writeln!(
            text,
            "\nno plan takes less than: latency {:.2} us, bandwidth {:.2} us{excess_percent}",
            bounds.latency * 1e6,
            bounds.bandwidth * 1e6
        );
        text.push_str(&self.job_choice_text());
        match &self.calibration {
            None => {}
            Some(Calibration::Measured(record)) => {
                let _ = write!(text, "\nby the calibration of this machine:\n{}", effect(record));
            }
            Some(Calibration::Missing(why)) => {
                let _ = writeln!(text, "\nthis machine is not calibrated: {why}");
            }
        }
        text
    }

    /// Returns the choice of a job as text.
    fn job_choice_text(&self) -> String {
        match &self.job_choice {
            Ok((job_choice, _)) if self.is_fastest(job_choice) => {
                format!("a job makes the same choice: {}\n", job_choice.why)
            }
            Ok((job_choice, seconds)) => format!(
                "a job takes {} in {}{}: {}\n",
                job_choice.algorithm,
                segments_text(job_choice.segments),
                seconds.map_or_else(String::new, |seconds| format!(", {:.2} us", seconds * 1e6)),
                job_choice.why
            ),
            Err(why) => format!("a job fails: {why}\n"),
        }
    }

    fn is_fastest(&self, job_choice: &Choice) -> bool {
        let fastest = &self.verdict.choice;
        (job_choice.algorithm, job_choice.segments) == (fastest.algorithm, fastest.segments)
    }

    fn json(&self) -> String {
        let Verdict { choice, seconds, candidates, excluded, bounds } = &self.verdict;
        let candidates = candidates.iter().map(|priced| {
            let tried = priced.tried.iter().map(|(segments, seconds)| json!([segments, seconds * 1e6]));
            json!({
                "algorithm": priced.algorithm,
                "bound_us": priced.bound * 1e6,
                "segments": priced.best.map(|(segments, _)| segments),
                "us": priced.best.map(|(_, seconds)| seconds * 1e6),
                "busbw_gbs": priced.best.map(|(_, seconds)| self.busbw(seconds)),
                "tried": tried.collect::<Vec<_>>(),
            })
        });
        let excluded = excluded
            .iter()
            .map(|exclusion| json!({ "algorithm": exclusion.algorithm, "why": exclusion.why }));
        let job_choice = match &self.job_choice {
            Ok((job_choice, seconds)) => json!({
                "algorithm": job_choice.algorithm,
                "segments": job_choice.segments,
                "us": seconds.map(|seconds| seconds * 1e6),
                "why": job_choice.why,
            }),
            Err(why) => json!({ "error": why }),
        };
        let output = json!({
            "collective": self.shape.collective.name(),
            "ranks": self.shape.ranks,
            "hosts": self.host_layout().map(|hosts| hosts.to_string()),
            "uneven": self.shape.requirements.uneven,
            "bytes": self.bytes,
            "cluster": self.model.cluster.name(),
            "fastest": { "algorithm": choice.algorithm, "segments": choice.segments, "us": seconds * 1e6 },
            "candidates": candidates.collect::<Vec<_>>(),
            "excluded": excluded.collect::<Vec<_>>(),
            "latency_bound_us": bounds.latency * 1e6,
            "bandwidth_bound_us": bounds.bandwidth * 1e6,
            "above_bound_percent": excess_percent(*seconds, bounds.seconds()),
            "taken": job_choice,
            "calibration": match &self.calibration {
                Some(Calibration::Measured(record)) => calibration_json(record),
                _ => serde_json::Value::Null,
            },
        });
        format!("{output:#}\n")
    }
}

/// Returns the selection policy of the environment's options. A named tuning file applies to any links here.
fn policy(config: &Config, tuning: Tuning) -> Result<Policy, CommandError> {
    let names =
        Names::parse(config.selection.algorithm.as_deref().unwrap_or_default()).map_err(CommandError::new)?;
    let overrides = Overrides { names, rules: config.selection.rules.clone() };
    let (tuned, model) = (config.selection.tuned.clone(), config.selection.model.clone());
    Ok(Policy { overrides, tuned, model, tuning, ..Policy::default() })
}

/// Returns by how many percent a time exceeds its lower bound.
fn excess_percent(seconds: f64, bound: f64) -> Option<f64> {
    (bound > 0.0).then(|| 100.0 * (seconds / bound - 1.0))
}

fn segments_text(segments: u32) -> String {
    if segments == 1 { "one piece".to_owned() } else { format!("{segments} segments") }
}
