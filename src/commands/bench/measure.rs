//! The measurement of one operation at one size.
//!
//! Runs follow each other without a barrier. The clock is read once per sample; a sample is a *batch* of runs
//! that lasts 100 µs, since ranks whose messages are slow may alternate between early and late from run to
//! run. A sample's time is that of the slowest rank. Samples come in up to eight groups with a barrier before
//! each, and the first sample of a group does not count. The root, where there is one, moves to the next rank
//! with every run, unless one was requested: a fixed root would run ahead, and its time would be that of
//! posting. The method is that of the IMB and nccl-tests families, and the same for every library in
//! comparisons.
//!
//! Ranks agree on the number of runs by collectives of the communicator that is measured, outside of the
//! timed part.

use super::{job::Effort, work::Work};
use collectives::Rank;
use std::time::{Duration, Instant};
use tbccl::{Communicator, ReduceOp, Result};

/// A sample lasts at least this long.
const SAMPLE: Duration = Duration::from_micros(100);
/// Fewer samples are no statistics.
const FEWEST_SAMPLES: u64 = 8;
/// More samples would not tell more.
const MOST_SAMPLES: u64 = 2000;
const GROUPS: u64 = 8;
const FEWEST_PER_GROUP: u64 = 4;
/// Measuring ends when this multiple of the requested time is spent.
const PATIENCE: u32 = 3;
const DEFAULT_WARMUP: u32 = 5;

/// How the runs are to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) effort: Effort,
    /// The root, which may move with every run.
    pub(super) root: Root,
}

/// Which rank is the root of the next run.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum Root {
    Fixed(Rank),
    Shifting,
}

/// Times of one run, in microseconds, and how they were found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) p99: f64,
    pub(super) samples: u64,
    pub(super) batch: u64,
}

impl Times {
    /// The times of one operation, where a run is several.
    pub(super) fn per_operation(self, per_run: u32) -> Times {
        let n = f64::from(per_run);
        Times { median: self.median / n, min: self.min / n, p99: self.p99 / n, ..self }
    }
}

/// How many make a sample, and how many samples.
#[derive(Clone, Copy, Debug)]
struct Quota {
    batch: u64,
    samples: u64,
}

/// A measurement in the making.
struct Runs<'a> {
    comm: &'a mut Communicator,
    work: &'a mut dyn Work,
    method: Method,
    /// Counts runs since the last barrier, the same on all ranks.
    next: u64,
}

/// Measures.
pub(super) fn measure(comm: &mut Communicator, work: &mut dyn Work, method: Method) -> Result<Times> {
    let mut runs = Runs { comm, work, method, next: 0 };
    let quota = match method.effort.iterations {
        Some(iterations) => runs.warm_up_by_count(iterations)?,
        None => runs.warm_up_by_time()?,
    };
    let mut samples = runs.sample(quota)?;
    all_max(runs.comm, &mut samples)?;
    samples.sort_unstable_by(f64::total_cmp);
    Ok(statistics(&samples, quota.batch))
}

fn statistics(sorted: &[f64], batch: u64) -> Times {
    let n = sorted.len();
    Times {
        median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
        min: sorted[0],
        p99: sorted[(n * 99).div_ceil(100) - 1],
        samples: n as u64,
        batch,
    }
}

impl Runs<'_> {
    fn burst(&mut self, runs: u64) -> Result<()> {
        for _ in 0..runs {
            let root = match self.method.root {
                Root::Fixed(root) => root,
                Root::Shifting => Rank((self.next % u64::from(self.comm.size())) as u32),
            };
            self.next += 1;
            self.work.run(self.comm, root)?;
        }
        Ok(())
    }

    /// Runs a burst together; the seconds of one run.
    fn timed_burst(&mut self, runs: u64) -> Result<f64> {
        self.comm.barrier()?;
        let start = Instant::now();
        self.burst(runs)?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }

    /// Runs bursts, each twice as long as the one before, until an eighth of the time is over or the
    /// requested runs are made. The quickest burst decides, so that noise does not.
    fn warm_up_by_time(&mut self) -> Result<Quota> {
        let Effort { time, warmup, .. } = self.method.effort;
        let start = Instant::now();
        let (mut length, mut done, mut quickest) = (2, 0, f64::INFINITY);
        loop {
            quickest = self.timed_burst(length)?.min(quickest);
            done += length;
            let enough = match warmup {
                Some(runs) => done >= u64::from(runs),
                None => (done >= 4 && start.elapsed() >= time / 8) || length > 1 << 20,
            };
            let mut told = [quickest, f64::from(u8::from(enough))];
            tell(self.comm, &mut told)?;
            quickest = told[0];
            if told[1] > 0.0 {
                break;
            }
            length *= 2;
        }
        let quickest = quickest.max(1e-8);
        let batch = self.batch(quickest);
        let fitting = (time.as_secs_f64() / (quickest * batch as f64)) as u64;
        Ok(Quota { batch, samples: fitting.clamp(FEWEST_SAMPLES, MOST_SAMPLES) })
    }

    /// As many runs as were asked for, and as many samples as their measured number makes.
    fn warm_up_by_count(&mut self, iterations: u32) -> Result<Quota> {
        let warmup = self.method.effort.warmup.unwrap_or(DEFAULT_WARMUP);
        let mut quickest = [SAMPLE.as_secs_f64()];
        if warmup > 0 {
            quickest[0] = self.timed_burst(warmup.into())?;
        }
        tell(self.comm, &mut quickest)?;
        let iterations = u64::from(iterations);
        let batch = self.batch(quickest[0].max(1e-8)).min(iterations);
        Ok(Quota { batch, samples: iterations.div_ceil(batch) })
    }

    /// How many runs make a sample. All roots have their turn in each.
    fn batch(&self, seconds: f64) -> u64 {
        let batch = (SAMPLE.as_secs_f64() / seconds).ceil().max(1.0) as u64;
        match self.method.root {
            Root::Fixed(_) => batch,
            Root::Shifting => batch.next_multiple_of(self.comm.size().into()),
        }
    }

    /// Takes the samples of this rank: microseconds per run.
    fn sample(&mut self, quota: Quota) -> Result<Vec<f64>> {
        let Quota { batch, samples } = quota;
        let per_group = samples.div_ceil(GROUPS).max(FEWEST_PER_GROUP);
        let limit = self.method.effort.iterations.is_none().then_some(self.method.effort.time * PATIENCE);
        let start = Instant::now();
        let mut taken = Vec::with_capacity(samples as usize);
        let mut clock = Vec::with_capacity(per_group as usize + 2);
        while (taken.len() as u64) < samples {
            let group = per_group.min(samples - taken.len() as u64);
            self.next = 0;
            clock.clear();
            self.comm.barrier()?;
            for _ in 0..=group {
                clock.push(Instant::now());
                self.burst(batch)?;
            }
            clock.push(Instant::now());
            let counted = clock[1..].windows(2).map(|ends| ends[1] - ends[0]);
            taken.extend(counted.map(|time| time.as_secs_f64() * 1e6 / batch as f64));
            let mut over = [f64::from(u8::from(limit.is_some_and(|limit| start.elapsed() > limit)))];
            tell(self.comm, &mut over)?;
            if over[0] > 0.0 {
                break;
            }
        }
        Ok(taken)
    }
}

/// Takes one sample outside of a measurement: microseconds per run, of `runs` runs after as many uncounted
/// ones. Each rank has its own result. A multiple of the number of ranks gives each root its turn.
pub(in crate::commands) fn sample(
    comm: &mut Communicator,
    work: &mut dyn Work,
    root: Root,
    runs: u64,
) -> Result<f64> {
    let effort = Effort { time: Duration::ZERO, warmup: None, iterations: None };
    let mut all = Runs { comm, work, method: Method { effort, root }, next: 0 };
    all.burst(runs)?;
    let start = Instant::now();
    all.burst(runs)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / runs as f64)
}

/// Makes everyone's numbers those of rank 0.
pub(in crate::commands) fn tell(comm: &mut Communicator, numbers: &mut [f64]) -> Result<()> {
    comm.broadcast(numbers, Rank(0))
}

/// Makes everyone's numbers the largest of all ranks.
pub(in crate::commands) fn all_max(comm: &mut Communicator, numbers: &mut [f64]) -> Result<()> {
    comm.all_reduce_in_place(numbers, ReduceOp::Max)
}

/// The sum over all ranks.
pub(super) fn all_sum(comm: &mut Communicator, number: u64) -> Result<u64> {
    let mut number = [number];
    comm.all_reduce_in_place(&mut number, ReduceOp::Sum)?;
    Ok(number[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_odd_and_even_numbers_of_samples() {
        let times = statistics(&[1.0, 2.0, 9.0], 1);
        assert_eq!((times.median, times.min, times.p99), (2.0, 1.0, 9.0));
        assert_eq!(statistics(&[1.0, 2.0, 4.0, 9.0], 1).median, 3.0);
        assert_eq!(statistics(&[5.0], 7).p99, 5.0);
        let many: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(statistics(&many, 1).p99, 198.0);
    }
}
