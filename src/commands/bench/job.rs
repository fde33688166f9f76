//! The job of a benchmark, validated as far as one process can before it starts others.

use super::{
    super::{CommandError, page::Folder, role::Role},
    args::{Args, Choice, Transport},
    operation::{Form, OpArg, Operation, OperationArg},
    sizes::{Sizes, Step},
    times::Average,
};
use collectives::{Codec, Collective, DType, Numerics, Rank, ReduceOp, plan, select::Names};
use std::{path::PathBuf, time::Duration};
use tbccl::Config;

/// A validated benchmark job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: OperationArg,
    pub(super) ranks: u32,
    pub(super) transport: Transport,
    pub(super) role: Role,
    pub(super) sizes: Sizes,
    pub(super) types: Vec<Elements>,
    /// The root; `None` lets all ranks take turns.
    pub(super) root: Option<Rank>,
    /// Forms to measure; JSON lines report the first one.
    pub(super) forms: Vec<Form>,
    /// Whether only the in-place form was requested.
    pub(super) in_place: bool,
    /// Measurements of a size, at most.
    pub(super) tries: u32,
    /// Checked runs of each size.
    pub(super) checks: u32,
    /// Calls of a run, which are made in a group if there are several.
    pub(super) calls: u32,
    pub(super) average: Average,
    pub(super) effort: Effort,
    pub(super) registered: bool,
    /// Whether the input is stored to before each run.
    pub(super) written: bool,
    /// Message packing.
    pub(super) codec: Option<Codec>,
    pub(super) pin: bool,
    pub(super) stats: bool,
    pub(super) columns: Columns,
    pub(super) output: Output,
    /// File that collects the rows of a report.
    pub(super) report_rows: Option<PathBuf>,
    /// Operations that `all` leaves out, with the reasons.
    pub(super) left_out: Vec<String>,
    /// Options of the communicator.
    pub(super) config: Config,
}

/// An element type, with its reductions.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    pub(super) dtype: DType,
    /// Reductions to measure; one `None` if the operation does not reduce.
    pub(super) redops: Vec<Option<ReduceOp>>,
}

/// Duration of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) time: Duration,
    /// Runs before, if it is not the time that decides.
    pub(super) warmup: Option<u32>,
    /// Runs to measure, if it is not the time that decides.
    pub(super) iterations: Option<u32>,
}

/// Destination of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Table,
    /// JSON lines on stdout, without a table.
    Json,
    TableAndJson(PathBuf),
}

/// Columns of the table that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// Standard deviation and 99th percentile of the times, in the place of other columns.
    pub(super) spread: bool,
    /// Processor time.
    pub(super) cpu: bool,
}

impl Job {
    /// Validates the arguments; returns a job for each operation.
    pub(super) fn all_of(args: &Args, op: &OpArg) -> Result<Vec<Job>, CommandError> {
        let OpArg::One(op) = op else { return Job::every(args) };
        Job::new(args, op.clone()).map(|job| vec![job])
    }

    /// Returns a job for each operation that can be measured with these arguments.
    fn every(args: &Args) -> Result<Vec<Job>, CommandError> {
        if args.algo.is_some() {
            return Err(CommandError::new(
                "--algo: each operation has its own algorithms; name one operation in the place of all",
            ));
        }
        let ranks = Role::detect(args.ranks)?.ranks(args.ranks, "bench all")?;
        let (mut jobs, mut left_out) = (Vec::new(), Vec::new());
        for operation in Operation::all() {
            match reason_to_leave_out(operation, args, ranks) {
                Some(why) => left_out.push(format!("{}: left out, {why}", operation.name())),
                None => jobs.push(Job::new(args, operation.into())?),
            }
        }
        // Totals are those of all operations together.
        let count = jobs.len();
        jobs.iter_mut().take(count.saturating_sub(1)).for_each(|job| job.stats = false);
        match jobs.first_mut() {
            Some(first) => first.left_out = left_out,
            None => return Err(CommandError::new(left_out.join("; "))),
        }
        Ok(jobs)
    }

    /// Validates the arguments for one operation.
    pub(super) fn new(args: &Args, op: OperationArg) -> Result<Job, CommandError> {
        let operation = op.operation;
        let config = config(args, operation)?;
        let transport = args.transport.unwrap_or(Transport::Between(config.transport));
        let role = if transport == Transport::Local { Role::Launcher } else { Role::detect(args.ranks)? };
        let ranks = role.ranks(args.ranks, "bench ...")?;
        let job = Job {
            sizes: Sizes {
                min: args.min_bytes,
                max: args.max_bytes,
                step: args.step_bytes.map_or(Step::Factor(args.factor), Step::Bytes),
            },
            types: types(operation, args.dtype, args.redop)?,
            root: root(operation, args.root, ranks)?,
            forms: forms(args, &op)?,
            in_place: args.in_place,
            tries: args.tries,
            checks: args.checks,
            calls: args.aggregate,
            average: args.average,
            effort: Effort { time: args.time, warmup: args.warmup, iterations: args.iterations },
            registered: args.registered,
            written: args.written,
            codec: args.codec,
            pin: !args.no_pin,
            stats: args.stats,
            config,
            role,
            columns: Columns { spread: args.spread, cpu: args.cpu },
            output: match &args.json {
                None => Output::Table,
                Some(path) if path.as_os_str() == "-" => Output::Json,
                Some(path) => Output::TableAndJson(path.clone()),
            },
            report_rows: args.report.as_deref().map(Folder::running_rows),
            left_out: Vec::new(),
            op,
            ranks,
            transport,
        };
        job.check_ranks()?;
        job.check_sizes()?;
        job.check_codec()?;
        job.check_calls()?;
        Ok(job)
    }

    /// Returns the element counts per block, ascending.
    pub(super) fn counts(&self, dtype: DType) -> Vec<u64> {
        if self.op.operation.has_data() {
            self.sizes.counts(dtype, self.op.operation.blocks(self.ranks))
        } else {
            vec![0]
        }
    }

    /// Returns the bytes of the largest buffer.
    pub(super) fn largest_bytes(&self) -> u64 {
        if self.op.operation.has_data() { self.sizes.max } else { 0 }
    }

    fn check_ranks(&self) -> Result<(), CommandError> {
        let (ranks, max) = (self.ranks, collectives::MAX_RANKS);
        if ranks > max {
            return Err(CommandError::new(format_args!("--ranks {ranks}: a job has up to {max} ranks")));
        }
        if self.op.operation == Operation::PingPong && ranks < 2 {
            return Err(CommandError::new("pingpong needs ranks 0 and 1; use --ranks 2 or more"));
        }
        let names = self
            .config
            .selection
            .algorithm
            .as_deref()
            .map(Names::parse)
            .transpose()
            .map_err(CommandError::new)?;
        let (Some(collective), Some(names)) = (self.op.operation.collective(), names) else { return Ok(()) };
        let mut requested =
            names.requested(collective).filter_map(|name| plan::algorithm(collective, name).ok());
        let checked: Vec<_> = requested.by_ref().map(|algorithm| algorithm.check_ranks(ranks)).collect();
        match checked.iter().any(Result::is_ok) {
            true => Ok(()),
            false => checked.into_iter().collect::<Result<(), _>>().map_err(CommandError::new),
        }
    }

    /// Checks that messages can be packed: only those of an `all_reduce` of `f32` that adds.
    fn check_codec(&self) -> Result<(), CommandError> {
        let Some(codec) = self.codec else { return Ok(()) };
        if self.op.operation != Operation::Collective(Collective::AllReduce) {
            return Err(CommandError::new(format_args!(
                "--codec {codec}: only messages of all_reduce can be packed, not those of {}",
                self.op.spelling
            )));
        }
        if self.config.numerics == Numerics::Reproducible {
            return Err(CommandError::new(format_args!(
                "--codec {codec}: packed results are not reproducible; leave out TBCCL_NUMERICS"
            )));
        }
        let adds = |op: &Option<ReduceOp>| matches!(op, Some(ReduceOp::Sum | ReduceOp::Avg));
        if self.types.iter().any(|e| e.dtype != DType::F32 || !e.redops.iter().all(adds)) {
            return Err(CommandError::new(format_args!(
                "--codec {codec}: only float32 elements are packed, for sum and avg; use -d float32 -o sum"
            )));
        }
        Ok(())
    }

    /// Checks that the calls of a run can be grouped.
    fn check_calls(&self) -> Result<(), CommandError> {
        let refused = |why| Err(CommandError::new(format_args!("-m {}: {why}", self.calls)));
        match self.calls {
            1 => Ok(()),
            _ if self.codec.is_some() => refused("messages of a group can't be packed; leave out --codec"),
            _ if !self.op.operation.can_be_grouped() => {
                refused(&format!("calls of {} can't be grouped; leave out -m", self.op.spelling))
            }
            _ => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), CommandError> {
        let Sizes { min, max, .. } = self.sizes;
        if min == 0 {
            return Err(CommandError::new("-b 0: sizes begin with 1 byte"));
        }
        if min > max {
            return Err(CommandError::new(format_args!(
                "-b {min} is larger than -e {max}; the smallest size comes first"
            )));
        }
        if self.types.iter().all(|elements| self.counts(elements.dtype).is_empty()) {
            let dtype = self.types.first().map_or(DType::U8, |elements| elements.dtype);
            let unit = dtype.size() as u64 * u64::from(self.op.operation.blocks(self.ranks));
            return Err(CommandError::new(format_args!(
                "no size from {min} to {max} holds {dtype} elements for {} on {} ranks, which takes {unit} \
                bytes; raise -e",
                self.op.spelling, self.ranks
            )));
        }
        Ok(())
    }
}

/// Returns the reason why an operation can't be measured with these arguments, though others can.
fn reason_to_leave_out(operation: Operation, args: &Args, ranks: u32) -> Option<&'static str> {
    let averages = operation.collective().is_some_and(Collective::averages);
    let is_average = args.redop == Choice::One(ReduceOp::Avg);
    match operation {
        Operation::PingPong if ranks < 2 => Some("it needs two ranks"),
        _ if args.in_place && !operation.forms().contains(&Form::InPlace) => Some("it has no in-place form"),
        _ if is_average && operation.reduces() && !averages => Some("it has no average"),
        _ if args.aggregate > 1 && !operation.can_be_grouped() => Some("its calls can't be grouped"),
        _ => None,
    }
}

fn types(
    operation: Operation,
    dtype: Choice<DType>,
    redop: Choice<ReduceOp>,
) -> Result<Vec<Elements>, CommandError> {
    let dtypes = match dtype {
        _ if !operation.has_data() => vec![DType::U8],
        Choice::One(dtype) => vec![dtype],
        Choice::All => DType::ALL.to_vec(),
    };
    if !operation.reduces() {
        return Ok(dtypes.into_iter().map(|dtype| Elements { dtype, redops: vec![None] }).collect());
    }
    if let (Choice::One(dtype), Choice::One(redop)) = (dtype, redop) {
        redop.check(dtype).map_err(CommandError::new)?;
    }
    let averages = operation.collective().is_some_and(Collective::averages);
    if !averages && redop == Choice::One(ReduceOp::Avg) {
        let name = operation.collective().map_or("", Collective::name);
        return Err(CommandError::new(format_args!("{name} has no average; choose another -o, e.g. sum")));
    }
    let legal = |dtype: DType| {
        let requested =
            ReduceOp::ALL.into_iter().filter(|op| redop == Choice::All || redop == Choice::One(*op));
        let defined = requested.filter(|op| averages || *op != ReduceOp::Avg);
        defined.filter(|op| op.is_legal_for(dtype)).map(Some).collect::<Vec<_>>()
    };
    let all = dtypes.into_iter().map(|dtype| Elements { dtype, redops: legal(dtype) });
    Ok(all.filter(|elements| !elements.redops.is_empty()).collect())
}

fn root(operation: Operation, root: Option<u32>, ranks: u32) -> Result<Option<Rank>, CommandError> {
    match root {
        Some(root) if root >= ranks => Err(CommandError::new(format_args!(
            "-r {root}: there are {ranks} ranks, so the root is one of 0..={}",
            ranks - 1
        ))),
        Some(root) => Ok(Some(Rank(root))),
        None if operation.has_root() => Ok(None),
        None => Ok(Some(Rank(0))),
    }
}

fn forms(args: &Args, op: &OperationArg) -> Result<Vec<Form>, CommandError> {
    let forms = op.operation.forms();
    if args.in_place {
        if !forms.contains(&Form::InPlace) {
            return Err(CommandError::new(format_args!(
                "{} has no in-place form; leave out --in-place",
                op.spelling
            )));
        }
        return Ok(vec![Form::InPlace]);
    }
    // JSON lines report one form only.
    let only_json = args.report.is_none() && args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    Ok(if only_json { forms[..1].to_vec() } else { forms.to_vec() })
}

/// Returns the options from the environment, overridden by the arguments.
fn config(args: &Args, operation: Operation) -> Result<Config, CommandError> {
    let mut config = Config::from_env().map_err(CommandError::new)?;
    if let Some(Transport::Between(transport)) = args.transport {
        config.transport = transport;
    }
    if let Some(name) = &args.algo {
        let Some(collective) = operation.collective() else {
            return Err(CommandError::new(
                "--algo: pingpong sends messages, it has no algorithms to choose from",
            ));
        };
        let algorithm = plan::algorithm(collective, name).map_err(CommandError::new)?;
        config.selection.algorithm = Some(algorithm.name.to_owned());
    }
    if let Some(timeout) = args.timeout {
        config.timeout = timeout;
    }
    if let Some(segments) = args.segments {
        config.selection.segments = segments;
    }
    if args.registered {
        // Two buffers, and the same again for the algorithms' own memory.
        let buffers = u64::from(args.aggregate).saturating_add(3);
        let requested = args.max_bytes.saturating_mul(buffers).saturating_add(1 << 30).min(1 << 40);
        // Devices without late registration must register all of it up front, so the size stays limited.
        config.slab_bytes = config.slab_bytes.max(Some(requested));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_and_operations_are_the_legal_pairs() {
        let all_reduce = Operation::Collective(Collective::AllReduce);
        let types = types(all_reduce, Choice::All, Choice::All).expect("legal");
        assert_eq!(types.len(), 14);
        assert_eq!(types.iter().map(|elements| elements.redops.len()).sum::<usize>(), 5 * 5 + 8 * 8 + 7);
    }
}
