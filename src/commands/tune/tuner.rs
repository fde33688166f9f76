//! One rank's way through everything that is to be tuned, or judged.

use super::{
    super::{
        Failed,
        bench::{buffers::Buffers, measure::tell, operation::Operation},
        print,
        progress::Progress,
    },
    Args,
    bout::{Bout, Cell, DTYPE},
    field::Candidate,
    file,
    halving::Standing,
    judge::{name, regret, winner},
    links,
};
use collectives::{
    plan,
    select::{Call, Fingerprint, Tuned, TunedChoice},
};
use std::path::Path;
use tbccl::{Communicator, Rank, Result};

/// Regrets above this are measured again, as often as this.
const SUSPICIOUS: (f64, usize) = (1.1, 2);

/// Tunes or judges, as one of the ranks.
pub(super) fn go(comm: &mut Communicator, args: &Args) -> Result<(), Failed> {
    let rank = comm.rank();
    match &args.check {
        Some(path) => judge(comm, args, path.as_deref()),
        None => tune(comm, args),
    }
    .map_err(|error| match error {
        Stop::Comm(error) => Failed::new(format_args!("rank {rank}: {error}")),
        Stop::Failed(failed) => failed,
    })
}

/// Why it went no further.
enum Stop {
    Comm(tbccl::Error),
    Failed(Failed),
}

impl From<tbccl::Error> for Stop {
    fn from(error: tbccl::Error) -> Stop {
        Stop::Comm(error)
    }
}

impl From<Failed> for Stop {
    fn from(failed: Failed) -> Stop {
        Stop::Failed(failed)
    }
}

/// Measures everything; rank 0 writes the file.
fn tune(comm: &mut Communicator, args: &Args) -> Result<(), Stop> {
    let (cells, mut buffers) = arena(comm, args)?;
    let report = Report::new(comm, cells.len());
    let mut tuned = Tuned::new(comm.fingerprint());
    let links = links::measure(comm, args.time)?;
    tuned.links = Some(links);
    report.line(|| {
        format!(
            "# tuning {} ranks over {}: {:.2} us, {:.2} GB/s between ranks 0 and 1; sums {:.1} GB/s, copies {:.1} GB/s\n\
             # {:<14} {:>10}  {:<26} {:>11}  {:<26} {:>11} {:>6}\n",
            tuned.fingerprint.ranks, tuned.fingerprint.transport, links.latency_us, links.gbs, links.reduce_gbs,
            links.copy_gbs, "collective", "block (B)", "automatic", "us", "best", "us", "gain"
        )
    });
    for cell in cells {
        let mut bout = Bout::new(comm, cell, &mut buffers)?;
        let standings = bout.contest(&[0], args.time.as_secs_f64() * 1e6)?;
        let field = bout.field().to_vec();
        let best = standings[winner(&standings)];
        tuned.choices.push(noted(cell, field[best.candidate], best));
        report.done(|| tuned_line(cell, &field, &standings, best));
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

fn noted(cell: Cell, chosen: Candidate, standing: Standing) -> TunedChoice {
    TunedChoice {
        collective: cell.collective,
        bytes: cell.block_bytes(),
        algorithm: chosen.algorithm.to_owned(),
        segments: chosen.segments,
        us: (standing.us * 1000.0).round() / 1000.0,
    }
}

fn tuned_line(cell: Cell, field: &[Candidate], standings: &[Standing], best: Standing) -> String {
    let automatic = standings.iter().find(|standing| standing.candidate == 0).copied().unwrap_or(best);
    let gain = 100.0 * (1.0 - best.ratio);
    let gain = if best.candidate == 0 { "-".to_owned() } else { format!("{gain:.0} %") };
    format!(
        "  {:<14} {:>10}  {:<26} {:>11.2}  {:<26} {:>11.2} {gain:>6}\n",
        cell.collective.name(),
        cell.block_bytes(),
        name(field[0]),
        automatic.us,
        name(field[best.candidate]),
        best.us
    )
}

/// Measures how far from the best the choices are that are made without a file, and with this one.
fn judge(comm: &mut Communicator, args: &Args, path: Option<&Path>) -> Result<(), Stop> {
    let (cells, mut buffers) = arena(comm, args)?;
    let tuned = read(comm, path)?;
    let report = Report::new(comm, cells.len());
    report.line(|| {
        format!(
            "# times as long as the best of all algorithms, {} ranks over {}\n# {:<14} {:>10}  {:<26} {:>7}  {:<26} {:>7}  {:<26} {:>11}\n",
            comm.size(), comm.transport(), "collective", "block (B)", "automatic", "ratio", "by the file", "ratio", "best", "us"
        )
    });
    let mut all: [Vec<f64>; 2] = Default::default();
    for cell in cells {
        let mut bout = Bout::new(comm, cell, &mut buffers)?;
        let choices = [0, place_of(tuned.as_ref(), cell, &mut bout)?];
        let kept = if choices[1] == 0 { &choices[..1] } else { &choices };
        let budget_us = args.time.as_secs_f64() * 1e6;
        let mut standings = bout.contest(kept, budget_us)?;
        let (limit, times) = SUSPICIOUS;
        for _ in 0..times {
            if choices.iter().all(|choice| regret(&standings, *choice) <= limit) {
                break;
            }
            standings = bout.again(&standings, 2.0 * budget_us)?;
        }
        let regrets = choices.map(|choice| regret(&standings, choice));
        all.iter_mut().zip(regrets).for_each(|(all, regret)| all.push(regret));
        let field = bout.field().to_vec();
        report.done(|| judged_line(cell, &field, &standings, choices, regrets, tuned.is_some()));
    }
    comm.barrier()?;
    report.line(|| summary("automatic", &all[0]));
    if tuned.is_some() {
        report.line(|| summary("by the file", &all[1]));
    }
    report.end();
    Ok(())
}

/// The file to be judged, on rank 0 if it is one of this job; the other ranks learn whether it is.
fn read(comm: &mut Communicator, path: Option<&Path>) -> Result<Option<Tuned>, Stop> {
    let own = match path {
        Some(path) if comm.rank() == Rank(0) => {
            let here = comm.fingerprint();
            file::read(path).and_then(|tuned| fitting(tuned, path, &here)).map(Some)
        }
        _ => Ok(None),
    };
    let mut told = [f64::from(u8::from(own.is_err()))];
    tell(comm, &mut told)?;
    match own {
        Ok(_) if told[0] > 0.0 => {
            Err(Stop::Failed(Failed::new("rank 0 can't use the file that is to be judged")))
        }
        own => Ok(own?),
    }
}

fn fitting(tuned: Tuned, path: &Path, here: &Fingerprint) -> Result<Tuned, Failed> {
    match tuned.fingerprint.difference(here) {
        None => Ok(tuned),
        Some((what, there, here)) => Err(Failed::new(format_args!(
            "{}: it was measured with {what} {there}, and this job has {here}; measure anew with `tbccl tune`",
            path.display()
        ))),
    }
}

/// Returns the position of the file's choice, or of the automatic choice if the file has none that can carry
/// out the call. Rank 0 has the file.
fn place_of(tuned: Option<&Tuned>, cell: Cell, bout: &mut Bout<'_>) -> Result<usize> {
    let call = Call { collective: cell.collective, ranks: bout.ranks(), block_bytes: cell.block_bytes() };
    let mut names = plan::algorithms(cell.collective).map(|algorithm| algorithm.name);
    let chosen = tuned.and_then(|tuned| tuned.choose(call));
    let number = chosen.and_then(|choice| names.position(|name| name == choice.algorithm));
    let mut told = match (number, chosen) {
        (Some(number), Some(choice)) => [number as f64, f64::from(choice.segments)],
        _ => [-1.0, 0.0],
    };
    bout.tell(&mut told)?;
    let mut all = plan::algorithms(cell.collective);
    let algorithm = if told[0] < 0.0 { None } else { all.nth(told[0] as usize) };
    Ok(algorithm
        .map_or(0, |found| bout.place_of(Candidate { algorithm: found.name, segments: told[1] as u32 })))
}

fn judged_line(
    cell: Cell,
    field: &[Candidate],
    standings: &[Standing],
    choices: [usize; 2],
    regrets: [f64; 2],
    has_file: bool,
) -> String {
    let by_file = if has_file {
        (name(field[choices[1]]), format!("{:.3}", regrets[1]))
    } else {
        ("-".to_owned(), "-".to_owned())
    };
    format!(
        "  {:<14} {:>10}  {:<26} {:>7.3}  {:<26} {:>7}  {:<26} {:>11.2}\n",
        cell.collective.name(),
        cell.block_bytes(),
        name(field[choices[0]]),
        regrets[0],
        by_file.0,
        by_file.1,
        name(field[standings[0].candidate]),
        standings[0].us
    )
}

fn summary(what: &str, regrets: &[f64]) -> String {
    let worst = regrets.iter().copied().fold(1.0, f64::max);
    let within = regrets.iter().filter(|regret| **regret <= SUSPICIOUS.0).count();
    format!("# {what}: {within} of {} within 10 % of the best; worst {worst:.3}\n", regrets.len())
}

/// Returns the cells to measure: each collective at each size, in the order of tables.
pub(super) fn cells(args: &Args, ranks: u32) -> Vec<Cell> {
    let cells = |collective| {
        let operation = Operation::Collective(collective);
        let counts =
            if operation.has_data() { args.sizes().counts(DTYPE, operation.blocks(ranks)) } else { vec![0] };
        counts.into_iter().map(move |count| Cell { collective, count })
    };
    args.collectives().into_iter().flat_map(cells).collect()
}

/// Returns the cells to measure, and memory for all of them. Every element is 0, whose sums are 0.
fn arena(comm: &Communicator, args: &Args) -> Result<(Vec<Cell>, Buffers<f32>)> {
    let (rank, ranks) = (comm.rank().0, comm.size());
    let cells = cells(args, ranks);
    let lengths = cells.iter().map(|cell| cell.case(rank, ranks).lengths());
    let (input, output) = lengths.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    Ok((cells, Buffers::new(comm, input, output, false)?))
}

/// Rank 0's report; other ranks have none.
struct Report {
    progress: Option<Progress>,
}

impl Report {
    fn new(comm: &Communicator, cells: usize) -> Report {
        Report { progress: (comm.rank() == Rank(0)).then(|| Progress::new(cells, "sizes")) }
    }

    fn line(&self, text: impl FnOnce() -> String) {
        if let Some(progress) = &self.progress {
            progress.aside(|| print(&text()));
        }
    }

    /// A line about one more cell.
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
