//! The comparison of one call's candidates at one size, by all ranks together.
//!
//! Every number that decides is the maximum over all ranks, so all ranks decide alike. The exchange of these
//! numbers, and the barrier before each sample, use the options' algorithms and not the measured ones.

use super::{
    super::bench::{
        buffers::Buffers,
        case::Case,
        measure::{self, Root},
        operation::Operation,
        work::Task,
    },
    field::{Candidate, candidates},
    halving::{Sample, Standing, compare, contest},
};
use collectives::{Collective, DType, Rank, ReduceOp};
use std::time::Instant;
use tbccl::{Communicator, Result};

/// Least duration of a sample in microseconds.
const SAMPLE_US: f64 = 100.0;
/// First runs that estimate the time of a run, unless they last longer than `SLOW_US`.
const FIRST_RUNS: usize = 3;
const SLOW_US: f64 = 20_000.0;
/// The elements that are moved and summed.
pub(super) const DTYPE: DType = DType::F32;

/// A collective at a size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) collective: Collective,
    /// Elements of one block.
    pub(super) count: u64,
}

impl Cell {
    pub(super) fn block_bytes(self) -> u64 {
        self.count * DTYPE.size() as u64
    }

    /// Returns the call as rank `rank` of `ranks`.
    pub(super) fn case(self, rank: u32, ranks: u32) -> Case {
        let operation = Operation::Collective(self.collective);
        let redop = operation.reduces().then_some(ReduceOp::Sum);
        Case {
            operation,
            redop,
            form: operation.forms()[0],
            count: self.count as usize,
            rank,
            ranks,
            packed: None,
        }
    }
}

/// The candidates of a cell in the ring.
pub(super) struct Bout<'a> {
    comm: &'a mut Communicator,
    task: Task<'a, f32>,
    root: Root,
    field: Vec<Candidate>,
    /// Runs of a sample, by candidate; 0 while that is not known.
    batches: Vec<u64>,
    /// End of the latest sample: the time between samples is part of their cost.
    since: Instant,
}

impl<'a> Bout<'a> {
    pub(super) fn new(
        comm: &'a mut Communicator,
        cell: Cell,
        buffers: &'a mut Buffers<f32>,
    ) -> Result<Bout<'a>> {
        let field = candidates(comm, cell.collective, cell.count, DTYPE)?;
        let task = Task::new(cell.case(comm.rank().0, comm.size()), buffers);
        let root = if cell.collective.has_root() { Root::Shifting } else { Root::Fixed(Rank(0)) };
        Ok(Bout { comm, task, root, batches: vec![0; field.len()], field, since: Instant::now() })
    }

    /// Returns the candidates; the first one is the automatic choice.
    pub(super) fn field(&self) -> &[Candidate] {
        &self.field
    }

    /// Returns the position of a candidate, which is added if its algorithm is among them. Otherwise it
    /// returns that of the automatic choice, which selection would take as well.
    pub(super) fn place_of(&mut self, wanted: Candidate) -> usize {
        if let Some(place) = self.field.iter().position(|candidate| *candidate == wanted) {
            return place;
        }
        if self.field.iter().all(|candidate| candidate.algorithm != wanted.algorithm) {
            return 0;
        }
        self.field.push(wanted);
        self.batches.push(0);
        self.field.len() - 1
    }

    pub(super) fn ranks(&self) -> u32 {
        self.comm.size()
    }

    /// Makes everyone's numbers those of rank 0.
    pub(super) fn tell(&mut self, numbers: &mut [f64]) -> Result<()> {
        measure::tell(self.comm, numbers)
    }

    /// Finds the best ones; the candidates to keep in are compared with the first of them.
    pub(super) fn contest(&mut self, kept: &[usize], budget_us: f64) -> Result<Vec<Standing>> {
        contest(self.field.len(), kept, budget_us, |candidate| self.sample(candidate))
    }

    /// Compares those that a contest has brought to the end once more.
    pub(super) fn again(&mut self, standings: &[Standing], budget_us: f64) -> Result<Vec<Standing>> {
        let field: Vec<usize> = standings.iter().map(|standing| standing.candidate).collect();
        let reference = if field.contains(&0) { 0 } else { field[0] };
        compare(&field, reference, budget_us, |candidate| self.sample(candidate))
    }

    fn sample(&mut self, candidate: usize) -> Result<Sample> {
        let unit = match self.root {
            Root::Fixed(_) => 1,
            Root::Shifting => u64::from(self.comm.size()),
        };
        let mut cost_us = 0.0;
        if self.batches[candidate] == 0 {
            (self.batches[candidate], cost_us) = batch(unit, |runs| self.run(candidate, runs))?;
        }
        let sample = self.run(candidate, self.batches[candidate])?;
        Ok(Sample { cost_us: cost_us + sample.cost_us, ..sample })
    }

    /// Makes `runs` runs by a candidate, the same number on all ranks.
    fn run(&mut self, candidate: usize, runs: u64) -> Result<Sample> {
        let Candidate { algorithm, segments } = self.field[candidate];
        self.comm.barrier()?;
        self.comm.set_algorithm(Some(algorithm), segments)?;
        let own = measure::sample(self.comm, &mut self.task, self.root, runs)?;
        self.comm.set_algorithm(None, 0)?;
        let since = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        let mut slowest = [own, since.as_secs_f64() * 1e6];
        measure::all_max(self.comm, &mut slowest)?;
        Ok(Sample { us: slowest[0], cost_us: slowest[1] })
    }
}

/// Returns the runs of a sample, a multiple of `unit`, and the cost of estimating them. The first runs are
/// slow, and an interrupted run looks slow: taken for the time of a run, it would make every sample a single
/// run.
fn batch<E>(unit: u64, mut run: impl FnMut(u64) -> Result<Sample, E>) -> Result<(u64, f64), E> {
    let (mut least, mut cost_us) = (f64::INFINITY, 0.0);
    for _ in 0..FIRST_RUNS {
        let sample = run(unit)?;
        cost_us += sample.cost_us;
        least = least.min(sample.us);
        if sample.us * unit as f64 > SLOW_US {
            break;
        }
    }
    let runs = (SAMPLE_US / least.max(0.01)).ceil() as u64;
    Ok((runs.clamp(1, 100_000).next_multiple_of(unit), cost_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn a_first_run_that_is_interrupted_does_not_make_all_samples_short() {
        let mut times = [4000.0, 7.0, 5.0].into_iter();
        let next = |runs| {
            assert_eq!(runs, 1);
            let us = times.next().expect("three at most");
            Ok::<_, Infallible>(Sample { us, cost_us: us + 1.0 })
        };
        assert_eq!(batch(1, next), Ok((20, 4015.0)));
    }

    #[test]
    fn what_is_slow_is_tried_once() {
        let slow = |_| Ok::<_, Infallible>(Sample { us: 9000.0, cost_us: 36_000.0 });
        assert_eq!(batch(4, slow), Ok((4, 36_000.0)));
    }
}
