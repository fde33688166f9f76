//! Command-line arguments of `tbccl bench`.

use super::{
    super::arguments,
    compare,
    operation::{OpArg, Operation},
    times::Average,
    transports::TransportArgs,
};
use collectives::{Codec, DType, ReduceOp, UnknownName};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// Returns the text after the options: operations, examples, and an explanation of the output.
fn after_help() -> String {
    let names: Vec<_> = Operation::names().collect();
    let mut text = String::from("Operations:");
    let mut column = text.len();
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 < names.len() { "," } else { "" };
        let start = if column + name.len() + 2 > 100 { '\n' } else { ' ' };
        column = if start == '\n' { 0 } else { column + 1 } + name.len() + end.len();
        text.extend([start]);
        text.extend([*name, end]);
    }
    text + "\nor all of them (pingpong: half a round trip between ranks 0 and 1; ..._v: blocks of unequal \
    lengths, from\nlittle to twice the average). Other spellings, such as allreduce or bcast, are \
    accepted.\n\n"
        + EXAMPLES
}

const EXAMPLES: &str = "\
Examples:
  tbccl bench all_reduce --ranks 4                     4 B to 64 MiB between four processes
  tbccl bench all_reduce --ranks 4 --algo ring         by one algorithm (tbccl plan show names them)
  tbccl bench bcast --ranks 4 -r 2 -d bfloat16         from rank 2 only, not from all in turn
  tbccl bench all_gather --ranks 2 --registered        from memory that peers read in place
  tbccl bench pingpong --ranks 2 --written             of messages that were just written
  tbccl bench all_reduce --ranks 3 -d all -o all       every type with every operation it has
  tbccl bench all_reduce --ranks 4 --codec int8        with every message packed into a quarter
  tbccl bench pingpong --ranks 2 --json - | jq .us_median
  tbccl bench all --ranks 2 -e 1M                      every operation, each with its table
  tbccl bench all_reduce --ranks 2 -i 64K -b 64K -e 1M sizes at equal distances
  tbccl bench all_reduce --ranks 2 -m 8 --spread -C    in groups of 8; deviation and processor time
  tbccl run -n 4 -- tbccl bench all_reduce             as ranks of an existing job
  tbccl bench all_reduce --ranks 4 --report out        with charts, in out/index.html
  tbccl bench --report out --from a.jsonl b.jsonl      charts of earlier runs, also of other libraries
  tbccl bench --compare a.jsonl b.jsonl                ratios with their noise, and what has changed
  tbccl bench --compare a.jsonl b.jsonl --fail-above 5%    for CI
  tbccl bench --compare-transports                     RDMA beside TCP over a modelled cable

Sizes are those of the larger of input and output, per rank. Times are the maximum over the ranks, medians
over samples; busbw is the bandwidth on the wires, as in nccl-tests. Results have the same bits under any
order of combination, so #wrong counts the elements of all ranks that differ from the exact result, before
and after the measurement. With --codec it counts elements beyond the codec's error bound, and differences
between ranks; busbw is then that of the elements, not of the packed bytes.

Options of nccl-tests have its letters: -b, -e, -f, -i, -w, -n, -m, -d, -o, -r, -c, -a, -C and -T.

Between processes of one host, the header says how long 8 bytes take from rank 0 to rank 1. Where that takes
much longer while a size is measured, as in virtual machines whose cores move apart, the size is measured
again; a `*` marks a line for which that did not help.

Rows to compare are lines of --json; several rows of a cell are repeats, whose range is the noise (append
the files of several runs). A single row has the noise of its samples. Files of the benchmarks of other
libraries are read, too.

Exit status: 0; 1 if any element is wrong, or with --fail-above if a cell is slower beyond the noise; 2 for
bad usage, files that can't be read, or an unsuitable environment.";

/// Measure an operation between ranks on this machine, every element checked
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Operation to measure, e.g. all_reduce, or all; with --compare, the one to compare
    #[arg(
        value_name = "OP",
        value_parser = OpArg::from_str,
        required_unless_present_any = ["compare", "from", "compare_transports"],
    )]
    pub(super) op: Option<OpArg>,

    /// Number of ranks, which may exceed the number of cores; within a job, the job's ranks are used
    #[arg(long, value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    pub(super) ranks: Option<u32>,

    #[arg(
        long,
        value_name = "NAME",
        value_parser = Transport::from_str,
        help = arguments::transport_help("; local, between threads [default: TBCCL_TRANSPORT, or auto]")
    )]
    pub(super) transport: Option<Transport>,

    /// Smallest size in bytes; K, M, G and T are understood
    #[arg(
        short = 'b',
        long = "min",
        value_name = "SIZE",
        default_value = "4",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    pub(super) min_bytes: u64,

    /// Largest size in bytes
    #[arg(
        short = 'e',
        long = "max",
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    pub(super) max_bytes: u64,

    /// Factor from each size to the next
    #[arg(
        short = 'f',
        long,
        value_name = "FACTOR",
        default_value = "4",
        value_parser = clap::value_parser!(u64).range(2..),
        allow_negative_numbers = true,
    )]
    pub(super) factor: u64,

    /// Bytes from each size to the next, in the place of a factor
    #[arg(
        short = 'i',
        long,
        value_name = "SIZE",
        conflicts_with = "factor",
        value_parser = positive_bytes,
        allow_negative_numbers = true,
    )]
    pub(super) step_bytes: Option<u64>,

    /// Runs before the measurement starts [default: as many as take an eighth of --time; 5 with -n]
    #[arg(short = 'w', long, value_name = "RUNS", allow_negative_numbers = true)]
    pub(super) warmup: Option<u32>,

    /// Runs to measure per size [default: as many as fit in --time]
    #[arg(
        short = 'n',
        long,
        value_name = "RUNS",
        conflicts_with = "time",
        value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true,
    )]
    pub(super) iterations: Option<u32>,

    /// Calls of a run, made in one group; times are those of one call
    #[arg(
        short = 'm',
        long,
        value_name = "CALLS",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=1024),
        allow_negative_numbers = true,
    )]
    pub(super) aggregate: u32,

    /// Seconds of measurement per size
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = arguments::positive_seconds)]
    pub(super) time: Duration,

    /// Measurements of a size, at most, where the cores of ranks 0 and 1 were farther apart than before, as
    /// happens in virtual machines
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true,
    )]
    pub(super) tries: u32,

    /// Element type, or all
    #[arg(
        short = 'd',
        long,
        value_name = "TYPE",
        default_value = "float32",
        value_parser = Choice::<DType>::from_str,
    )]
    pub(super) dtype: Choice<DType>,

    /// Reduction (sum, prod, min, max, avg, band, bor, bxor), or all that the type supports
    #[arg(
        short = 'o',
        long = "redop",
        value_name = "REDOP",
        default_value = "sum",
        value_parser = Choice::<ReduceOp>::from_str,
    )]
    pub(super) redop: Choice<ReduceOp>,

    /// Root of a broadcast [default: all ranks in turn, so that no rank runs ahead]
    #[arg(short = 'r', long, value_name = "RANK", allow_negative_numbers = true)]
    pub(super) root: Option<u32>,

    /// Checked runs of each size: the last one after the measurement, the others before; 0 checks nothing
    #[arg(
        short = 'c',
        long = "check",
        value_name = "RUNS",
        default_value = "3",
        value_parser = clap::value_parser!(u32).range(..=1000),
        allow_negative_numbers = true,
    )]
    pub(super) checks: u32,

    /// Time of a sample, made of those of the ranks: 0 (rank 0), 1 (avg), 2 (min) or 3 (max)
    #[arg(short = 'a', long, value_name = "0..3", default_value = "3", value_parser = Average::from_str)]
    pub(super) average: Average,

    /// Seconds that a call may wait without progress [default: TBCCL_TIMEOUT, or 30]
    #[arg(short = 'T', long, value_name = "SECONDS", value_parser = arguments::positive_seconds)]
    pub(super) timeout: Option<Duration>,

    /// Algorithm, instead of the automatic choice
    #[arg(long, value_name = "NAME")]
    pub(super) algo: Option<String>,

    /// Segments per chunk, instead of the automatic choice
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(collectives::MAX_SEGMENTS)),
        allow_negative_numbers = true,
    )]
    pub(super) segments: Option<u32>,

    /// Pack the messages of an all_reduce of float32: int8, int8/64, int8/256 or bf16
    #[arg(long, value_name = "CODEC", value_parser = Codec::from_str)]
    pub(super) codec: Option<Codec>,

    /// Measure the in-place form only, with the input in the output buffer
    #[arg(long)]
    pub(super) in_place: bool,

    /// Use buffers of the library's allocator, which peers read in place
    #[arg(long)]
    pub(super) registered: bool,

    /// Store to the input before each run, as programs do that compute it; this is part of the times
    #[arg(long)]
    pub(super) written: bool,

    /// Let the system move ranks between cores, instead of binding each to its share
    #[arg(long)]
    pub(super) no_pin: bool,

    /// Show the standard deviation and the 99th percentile of the times, in the place of count, root and
    /// algbw
    #[arg(long)]
    pub(super) spread: bool,

    /// Show the processor time of a call, that of the busiest rank; with --json of each rank
    #[arg(short = 'C', long)]
    pub(super) cpu: bool,

    /// Report at the end each rank's sent, received and copied bytes, processor time and polls; with --json
    /// as lines with the one key `stats`
    #[arg(long)]
    pub(super) stats: bool,

    /// Write one line of JSON per size to a file, besides the table; `-` for stdout without a table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write the results as a page of charts and tables: DIR/index.html, and the rows as DIR/rows.jsonl
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,

    /// Files of rows to show in the report, too; without OP nothing is measured
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "report")]
    pub(super) from: Vec<PathBuf>,

    /// Compare the rows of two files, and measure nothing
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["report", "json", "ranks"])]
    pub(super) compare: Vec<PathBuf>,

    /// Exit with status 1 if a time of B is longer than that of A by more than this, and beyond the noise
    #[arg(long, value_name = "PERCENT", requires = "compare", value_parser = compare::percentage)]
    pub(super) fail_above: Option<f64>,

    /// Library to compare, of a file that has rows of several; best: the fastest of each cell
    #[arg(long, value_name = "NAME", requires = "compare")]
    pub(super) peer: Option<String>,

    #[command(flatten)]
    pub(super) transports: TransportArgs,

    /// Set by the launcher for the ranks that it starts
    #[arg(long, hide = true)]
    pub(super) worker: bool,
}

/// The transport between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Ranks are processes, with this transport.
    Between(tbccl::Transport),
    /// Ranks are threads.
    Local,
}

impl FromStr for Transport {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Transport, UnknownName> {
        match text {
            "local" => Ok(Transport::Local),
            _ => text.parse().map(Transport::Between).map_err(|_: UnknownName| {
                UnknownName::new("transport", text, tbccl::Transport::names().chain(["local"]))
            }),
        }
    }
}

/// One value, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice<T> {
    One(T),
    All,
}

impl<T: FromStr> FromStr for Choice<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Choice<T>, T::Err> {
        if text == "all" { Ok(Choice::All) } else { text.parse().map(Choice::One) }
    }
}

/// Parses a size of at least one byte.
fn positive_bytes(text: &str) -> Result<u64, String> {
    match tbccl::parse_bytes(text)? {
        0 => Err("a size of more than 0 was expected, e.g. 64K".to_owned()),
        bytes => Ok(bytes),
    }
}
