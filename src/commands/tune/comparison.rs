//! The comparison of one call's candidates at one size, by all ranks together.
//!
//! Every number that decides is the maximum over all ranks, so all ranks decide alike. The exchange of these
//! numbers, and the barrier before each sample, use the configured algorithms, not the measured ones.

use super::{
    super::bench::{
        buffers::Buffers,
        case::Case,
        measure::{self, Root},
        operation::Operation,
        work::Task,
    },
    candidates::{Candidate, collect_candidates},
    successive_halving::{Sample, Score, compare, find_fastest},
};
use collectives::{Collective, DType, Rank, ReduceOp};
use std::time::Instant;
use tbccl::{Communicator, Result};

/// Minimum duration of a sample in microseconds.
const MIN_SAMPLE_US: f64 = 100.0;
/// First runs, which estimate the time of a run; estimation stops after one longer than `SLOW_US`.
const FIRST_RUNS: usize = 3;
const SLOW_US: f64 = 20_000.0;
/// Type of the elements that are moved and summed.
pub(super) const DTYPE: DType = DType::F32;

/// A collective at one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) collective: Collective,
    /// Elements per block.
    pub(super) count: u64,
}

impl Cell {
    pub(super) fn block_bytes(self) -> u64 {
        self.count * DTYPE.size() as u64
    }

    /// Returns the call of rank `rank` of `ranks`.
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

/// The comparison of a cell's candidates.
pub(super) struct Comparison<'a> {
    comm: &'a mut Communicator,
    task: Task<'a, f32>,
    root: Root,
    candidates: Vec<Candidate>,
    /// Runs per sample, by candidate; 0 while unknown.
    batches: Vec<u64>,
    /// End of the latest sample; the time between samples is part of their cost.
    last_end: Instant,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        comm: &'a mut Communicator,
        cell: Cell,
        buffers: &'a mut Buffers<f32>,
    ) -> Result<Comparison<'a>> {
        let candidates = collect_candidates(comm, cell.collective, cell.count, DTYPE)?;
        let task = Task::new(cell.case(comm.rank().0, comm.size()), buffers);
        let root = if cell.collective.has_root() { Root::Rotating } else { Root::Fixed(Rank(0)) };
        Ok(Comparison {
            comm,
            task,
            root,
            batches: vec![0; candidates.len()],
            candidates,
            last_end: Instant::now(),
        })
    }

    /// Returns the candidates; the first one is the automatic choice.
    pub(super) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Returns the index of a candidate, which is added if its algorithm is among the candidates. Otherwise
    /// returns that of the automatic choice, which selection would use too.
    pub(super) fn index_of(&mut self, requested: Candidate) -> usize {
        if let Some(index) = self.candidates.iter().position(|candidate| *candidate == requested) {
            return index;
        }
        if self.candidates.iter().all(|candidate| candidate.algorithm != requested.algorithm) {
            return 0;
        }
        self.candidates.push(requested);
        self.batches.push(0);
        self.candidates.len() - 1
    }

    pub(super) fn ranks(&self) -> u32 {
        self.comm.size()
    }

    /// Broadcasts the numbers of rank 0.
    pub(super) fn broadcast_from_0(&mut self, numbers: &mut [f64]) -> Result<()> {
        measure::broadcast_from_0(self.comm, numbers)
    }

    /// Finds the fastest candidates; `pinned` ones stay to the end, and the first of them is the reference.
    pub(super) fn find_fastest(&mut self, pinned: &[usize], budget_us: f64) -> Result<Vec<Score>> {
        find_fastest(self.candidates.len(), pinned, budget_us, |candidate| self.sample(candidate))
    }

    /// Compares the finalists of an earlier comparison again.
    pub(super) fn repeat(&mut self, scores: &[Score], budget_us: f64) -> Result<Vec<Score>> {
        let candidates: Vec<usize> = scores.iter().map(|score| score.candidate).collect();
        let reference = if candidates.contains(&0) { 0 } else { candidates[0] };
        compare(&candidates, reference, budget_us, |candidate| self.sample(candidate))
    }

    fn sample(&mut self, candidate: usize) -> Result<Sample> {
        let unit = match self.root {
            Root::Fixed(_) => 1,
            Root::Rotating => u64::from(self.comm.size()),
        };
        let mut cost_us = 0.0;
        if self.batches[candidate] == 0 {
            (self.batches[candidate], cost_us) = batch(unit, |runs| self.run(candidate, runs))?;
        }
        let sample = self.run(candidate, self.batches[candidate])?;
        Ok(Sample { cost_us: cost_us + sample.cost_us, ..sample })
    }

    /// Runs a candidate `runs` times, the same number on all ranks.
    fn run(&mut self, candidate: usize, runs: u64) -> Result<Sample> {
        let Candidate { algorithm, segments } = self.candidates[candidate];
        self.comm.barrier()?;
        self.comm.set_algorithm(Some(algorithm), segments)?;
        let local = measure::sample(self.comm, &mut self.task, self.root, runs)?;
        self.comm.set_algorithm(None, 0)?;
        let last_end = std::mem::replace(&mut self.last_end, Instant::now()).elapsed();
        let mut slowest = [local, last_end.as_secs_f64() * 1e6];
        measure::all_max(self.comm, &mut slowest)?;
        Ok(Sample { us: slowest[0], cost_us: slowest[1] })
    }
}

/// Returns the runs per sample, a multiple of `unit`, and the cost of estimating them.
///
/// The estimate is the fastest of several runs: the first run is slow, and an interrupted run looks slow, so
/// that a single one could make every sample a single run.
fn batch<E>(unit: u64, mut run: impl FnMut(u64) -> Result<Sample, E>) -> Result<(u64, f64), E> {
    let (mut fastest, mut cost_us) = (f64::INFINITY, 0.0);
    for _ in 0..FIRST_RUNS {
        let sample = run(unit)?;
        cost_us += sample.cost_us;
        fastest = fastest.min(sample.us);
        if sample.us * unit as f64 > SLOW_US {
            break;
        }
    }
    let runs = (MIN_SAMPLE_US / fastest.max(0.01)).ceil() as u64;
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
