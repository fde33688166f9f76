//! One rank's loop over all cells to tune or evaluate.

use super::{
    super::{
        CommandError,
        bench::{buffers::Buffers, measure::broadcast_from_0, operation::Operation},
        print,
        progress::Progress,
    },
    Args,
    candidates::Candidate,
    comparison::{Cell, Comparison, DTYPE},
    evaluation::{candidate_name, regret, winner},
    file, links,
    successive_halving::Score,
};
use collectives::{
    plan,
    select::{Call, Fingerprint, Tuned, TunedChoice},
};
use std::path::Path;
use tbccl::{Communicator, Rank, Result};

/// Regret above which a comparison is repeated, and the maximum number of repetitions.
const RETEST: (f64, usize) = (1.1, 2);

/// Tunes or evaluates, as one of the ranks.
pub(super) fn run_rank(comm: &mut Communicator, args: &Args) -> Result<(), CommandError> {
    let rank = comm.rank();
    match &args.check {
        Some(path) => evaluate(comm, args, path.as_deref()),
        None => tune(comm, args),
    }
    .map_err(|error| match error {
        Stop::Comm(error) => CommandError::new(format_args!("rank {rank}: {error}")),
        Stop::Failed(failed) => failed,
    })
}

/// Reason why tuning stopped.
enum Stop {
    Comm(tbccl::Error),
    Failed(CommandError),
}

impl From<tbccl::Error> for Stop {
    fn from(error: tbccl::Error) -> Stop {
        Stop::Comm(error)
    }
}

impl From<CommandError> for Stop {
    fn from(failed: CommandError) -> Stop {
        Stop::Failed(failed)
    }
}

/// Measures all cells; rank 0 writes the file.
fn tune(comm: &mut Communicator, args: &Args) -> Result<(), Stop> {
    let (cells, mut buffers) = allocate(comm, args)?;
    let report = Report::new(comm, cells.len());
    let mut tuned = Tuned::new(comm.fingerprint());
    let links = links::measure(comm, args.time)?;
    tuned.links = Some(links);
    report.line(|| {
        format!(
            "# tuning {} ranks over {}: {:.2} us, {:.2} GB/s between ranks 0 and 1; sums {:.1} GB/s, copies \
             {:.1} GB/s\n# {:<14} {:>10}  {:<26} {:>11}  {:<26} {:>11} {:>6}\n",
            tuned.fingerprint.ranks,
            tuned.fingerprint.transport,
            links.latency_us,
            links.gbs,
            links.reduce_gbs,
            links.copy_gbs,
            "collective",
            "block (B)",
            "automatic",
            "us",
            "best",
            "us",
            "gain"
        )
    });
    for cell in cells {
        let mut comparison = Comparison::new(comm, cell, &mut buffers)?;
        let scores = comparison.find_fastest(&[0], args.time.as_secs_f64() * 1e6)?;
        let candidates = comparison.candidates().to_vec();
        let best = scores[winner(&scores)];
        tuned.choices.push(tuned_choice(cell, candidates[best.candidate], best));
        report.done(|| tuned_line(cell, &candidates, &scores, best));
    }
    comm.barrier()?;
    if comm.rank() == Rank(0) {
        file::write(&args.output, &tuned)?;
        let path = args.output.display();
        report.line(|| format!("# written to {path}; jobs use it with TBCCL_TUNING={path}\n"));
    }
    report.end();
    Ok(())
}

fn tuned_choice(cell: Cell, chosen: Candidate, score: Score) -> TunedChoice {
    TunedChoice {
        collective: cell.collective,
        bytes: cell.block_bytes(),
        algorithm: chosen.algorithm.to_owned(),
        segments: chosen.segments,
        us: (score.us * 1000.0).round() / 1000.0,
    }
}

fn tuned_line(cell: Cell, candidates: &[Candidate], scores: &[Score], best: Score) -> String {
    let automatic = scores.iter().find(|score| score.candidate == 0).copied().unwrap_or(best);
    let gain = 100.0 * (1.0 - best.ratio);
    let gain = if best.candidate == 0 { "-".to_owned() } else { format!("{gain:.0} %") };
    format!(
        "  {:<14} {:>10}  {:<26} {:>11.2}  {:<26} {:>11.2} {gain:>6}\n",
        cell.collective.name(),
        cell.block_bytes(),
        candidate_name(candidates[0]),
        automatic.us,
        candidate_name(candidates[best.candidate]),
        best.us
    )
}

/// Measures the regret of the choices made without a file, and with the given one.
fn evaluate(comm: &mut Communicator, args: &Args, path: Option<&Path>) -> Result<(), Stop> {
    let (cells, mut buffers) = allocate(comm, args)?;
    let tuned = read(comm, path)?;
    let report = Report::new(comm, cells.len());
    report.line(|| {
        format!(
            "# times as long as the best of all algorithms, {} ranks over {}\n\
             # {:<14} {:>10}  {:<26} {:>7}  {:<26} {:>7}  {:<26} {:>11}\n",
            comm.size(),
            comm.transport(),
            "collective",
            "block (B)",
            "automatic",
            "ratio",
            "by the file",
            "ratio",
            "best",
            "us"
        )
    });
    let mut all: [Vec<f64>; 2] = Default::default();
    for cell in cells {
        let mut comparison = Comparison::new(comm, cell, &mut buffers)?;
        let choices = [0, index_of(tuned.as_ref(), cell, &mut comparison)?];
        let pinned = if choices[1] == 0 { &choices[..1] } else { &choices };
        let budget_us = args.time.as_secs_f64() * 1e6;
        let mut scores = comparison.find_fastest(pinned, budget_us)?;
        let (limit, times) = RETEST;
        for _ in 0..times {
            if choices.iter().all(|choice| regret(&scores, *choice) <= limit) {
                break;
            }
            scores = comparison.repeat(&scores, 2.0 * budget_us)?;
        }
        let regrets = choices.map(|choice| regret(&scores, choice));
        all.iter_mut().zip(regrets).for_each(|(all, regret)| all.push(regret));
        let candidates = comparison.candidates().to_vec();
        report.done(|| evaluation_line(cell, &candidates, &scores, choices, regrets, tuned.is_some()));
    }
    comm.barrier()?;
    report.line(|| summary("automatic", &all[0]));
    if tuned.is_some() {
        report.line(|| summary("by the file", &all[1]));
    }
    report.end();
    Ok(())
}

/// Reads the file to evaluate on rank 0, and checks its fingerprint; other ranks learn whether that
/// succeeded.
fn read(comm: &mut Communicator, path: Option<&Path>) -> Result<Option<Tuned>, Stop> {
    let local = match path {
        Some(path) if comm.rank() == Rank(0) => {
            let here = comm.fingerprint();
            file::read(path).and_then(|tuned| check_fingerprint(tuned, path, &here)).map(Some)
        }
        _ => Ok(None),
    };
    let mut shared = [f64::from(u8::from(local.is_err()))];
    broadcast_from_0(comm, &mut shared)?;
    match local {
        Ok(_) if shared[0] > 0.0 => {
            Err(Stop::Failed(CommandError::new("rank 0 can't use the file to evaluate")))
        }
        local => Ok(local?),
    }
}

fn check_fingerprint(tuned: Tuned, path: &Path, here: &Fingerprint) -> Result<Tuned, CommandError> {
    match tuned.fingerprint.difference(here) {
        None => Ok(tuned),
        Some((what, there, here)) => Err(CommandError::new(format_args!(
            "{}: it was measured with {what} {there}, and this job has {here}; measure anew with `tbccl \
            tune`",
            path.display()
        ))),
    }
}

/// Returns the index of the file's choice, or of the automatic choice if the file has none that can run the
/// call. Rank 0 has the file.
fn index_of(tuned: Option<&Tuned>, cell: Cell, comparison: &mut Comparison<'_>) -> Result<usize> {
    let call =
        Call { collective: cell.collective, ranks: comparison.ranks(), block_bytes: cell.block_bytes() };
    let mut names = plan::algorithms(cell.collective).map(|algorithm| algorithm.name);
    let chosen = tuned.and_then(|tuned| tuned.choose(call));
    let number =
        chosen.and_then(|choice| names.position(|candidate_name| candidate_name == choice.algorithm));
    let mut shared = match (number, chosen) {
        (Some(number), Some(choice)) => [number as f64, f64::from(choice.segments)],
        _ => [-1.0, 0.0],
    };
    comparison.broadcast_from_0(&mut shared)?;
    let mut all = plan::algorithms(cell.collective);
    let algorithm = if shared[0] < 0.0 { None } else { all.nth(shared[0] as usize) };
    Ok(algorithm.map_or(0, |found| {
        comparison.index_of(Candidate { algorithm: found.name, segments: shared[1] as u32 })
    }))
}

fn evaluation_line(
    cell: Cell,
    candidates: &[Candidate],
    scores: &[Score],
    choices: [usize; 2],
    regrets: [f64; 2],
    has_file: bool,
) -> String {
    let by_file = if has_file {
        (candidate_name(candidates[choices[1]]), format!("{:.3}", regrets[1]))
    } else {
        ("-".to_owned(), "-".to_owned())
    };
    format!(
        "  {:<14} {:>10}  {:<26} {:>7.3}  {:<26} {:>7}  {:<26} {:>11.2}\n",
        cell.collective.name(),
        cell.block_bytes(),
        candidate_name(candidates[choices[0]]),
        regrets[0],
        by_file.0,
        by_file.1,
        candidate_name(candidates[scores[0].candidate]),
        scores[0].us
    )
}

fn summary(what: &str, regrets: &[f64]) -> String {
    let worst = regrets.iter().copied().fold(1.0, f64::max);
    let within = regrets.iter().filter(|regret| **regret <= RETEST.0).count();
    format!("# {what}: {within} of {} within 10 % of the best; worst {worst:.3}\n", regrets.len())
}

/// Returns the cells to measure: each collective at each size, in the order of the table.
pub(super) fn cells(args: &Args, ranks: u32) -> Vec<Cell> {
    let cells = |collective| {
        let operation = Operation::Collective(collective);
        let counts =
            if operation.has_data() { args.sizes().counts(DTYPE, operation.blocks(ranks)) } else { vec![0] };
        counts.into_iter().map(move |count| Cell { collective, count })
    };
    args.collectives().into_iter().flat_map(cells).collect()
}

/// Returns the cells to measure, and buffers for all of them. All elements are 0, and so are their sums.
fn allocate(comm: &Communicator, args: &Args) -> Result<(Vec<Cell>, Buffers<f32>)> {
    let (rank, ranks) = (comm.rank().0, comm.size());
    let cells = cells(args, ranks);
    let lengths = cells.iter().map(|cell| cell.case(rank, ranks).lengths());
    let (input, output) = lengths.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    Ok((cells, Buffers::new(comm, input, output, false)?))
}

/// Rank 0's report; other ranks print nothing.
struct Report {
    progress: Option<Progress>,
}

impl Report {
    fn new(comm: &Communicator, cells: usize) -> Report {
        Report { progress: (comm.rank() == Rank(0)).then(|| Progress::new(cells, "sizes")) }
    }

    fn line(&self, text: impl FnOnce() -> String) {
        if let Some(progress) = &self.progress {
            progress.suspended(|| print(&text()));
        }
    }

    /// Prints the line of a finished cell.
    fn done(&self, text: impl FnOnce() -> String) {
        self.line(text);
        if let Some(progress) = &self.progress {
            progress.advance();
        }
    }

    fn end(&self) {
        if let Some(progress) = &self.progress {
            progress.finish();
        }
    }
}
