//! `tbccl plan show`: prints a schedule as text or as TOML.

use super::variant::Variant;
use crate::commands::{CommandError, WRONG, arguments, print};
use collectives::{
    Codec, Collective, Schedule, Spec,
    plan::{algorithms, plan},
    schedule::InPlace,
    verify::{Credits, verify},
};
use std::{fmt::Write, process::ExitCode};
use topology::Rank;

const EXAMPLES: &str = "\
Examples:
  tbccl plan show all_reduce --algo ring --ranks 4
  tbccl plan show broadcast --algo chain --ranks 5 --root 2 --segments 3
  tbccl plan show all_gather --algo direct --ranks 3 --rank 0     what rank 0 does
  tbccl plan show all_reduce --algo hierarchical --ranks 8 --hosts 4,4
  tbccl plan show all_reduce --algo mesh --ranks 4 --toml >mesh.toml
  tbccl plan show all_reduce --algo ring --ranks 4 --codec int8   with packed messages

A step waits for the steps listed after `after`, and for earlier messages to the same rank on the same
lane, which keep their order. `input[2]` is chunk 2 of the input; its number of elements depends on the
call.";

/// Show the steps of every rank
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Collective, e.g. all_reduce
    #[arg(value_name = "OP")]
    collective: Collective,

    /// Algorithm, e.g. ring
    #[arg(long = "algo", value_name = "NAME")]
    algorithm: Option<String>,

    /// Number of ranks
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: u32,

    /// Root, for collectives that have one
    #[arg(short = 'r', long, value_name = "R", default_value = "0")]
    root: u32,

    /// Number of segments per chunk
    #[arg(long, value_name = "K", default_value = "1")]
    segments: u32,

    /// Plan an in-place call
    #[arg(long)]
    in_place: bool,

    /// Pack messages of an all_reduce: int8, int8/64, int8/256 or bf16
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,

    #[command(flatten)]
    variant: Variant,

    /// Show this rank only
    #[arg(long, value_name = "R")]
    rank: Option<u32>,

    /// Print TOML for `tbccl plan verify FILE.toml`
    #[arg(long, conflicts_with = "rank")]
    toml: bool,
}

/// Runs `tbccl plan show`.
pub(super) fn run(args: Args) -> Result<ExitCode, CommandError> {
    let Some(name) = args.algorithm else {
        let names: Vec<&str> = algorithms(args.collective).map(|algorithm| algorithm.name).collect();
        let names = names.join(", ");
        return Err(CommandError::new(format_args!(
            "choose one of {}'s algorithms with --algo: {names}",
            args.collective
        )));
    };
    if let Some(rank) = args.rank.filter(|rank| *rank >= args.ranks) {
        return Err(CommandError::new(format_args!(
            "there is no rank {rank}; the last one is {}",
            args.ranks - 1
        )));
    }
    let in_place = if args.in_place { InPlace::Yes } else { InPlace::No };
    let schedule = Spec::new(args.collective, args.ranks)
        .and_then(|spec| spec.with_root(Rank(args.root)))
        .and_then(|spec| spec.with_segments(args.segments))
        .and_then(|spec| args.variant.apply(spec.with_in_place(in_place).with_codec(args.codec)))
        .and_then(|spec| plan(&spec, &name))
        .map_err(CommandError::new)?;
    if args.toml {
        print(&schedule.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = match args.rank {
        Some(rank) => steps_of(&schedule, rank),
        None => schedule.to_string(),
    };
    let verdict = verify(&schedule, Credits(0));
    let summary = match &verdict {
        Ok(report) => format!("verified: {report}"),
        Err(fault) => format!("WRONG: {fault}"),
    };
    let _ = writeln!(text, "{summary}; hash {:016x}", schedule.stable_hash());
    print(&text);
    Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Returns the header and the steps of one rank.
fn steps_of(schedule: &Schedule, rank: u32) -> String {
    let text = schedule.to_string();
    let mut sections =
        text.split_inclusive('\n').skip(1).skip_while(|line| *line != format!("rank {rank}\n"));
    let header = text.split_inclusive('\n').take(1);
    let title = sections.by_ref().take(1);
    let title: Vec<&str> = title.collect();
    header.chain(title).chain(sections.take_while(|line| !line.starts_with("rank "))).collect()
}
