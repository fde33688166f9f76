//! The measurement of one operation at one size.
//!
//! Runs follow each other without a barrier. The clock is read once per sample. A sample is a *batch* of runs
//! that lasts at least 100 µs, since ranks with slow messages may alternate between early and late from run
//! to run. The time of a sample is that of the slowest rank. Samples come in up to eight groups with a
//! barrier before each, and the first sample of a group does not count. The root, if there is one, moves to
//! the next rank with every run, unless one was requested: a fixed root would run ahead, and its time would
//! be that of posting. The method is that of the IMB and nccl-tests families, and the same for every library
//! in comparisons.
//!
//! Ranks agree on the number of runs by collectives on the measured communicator, outside of the timed part.
//! The clock of processor time is read once per group, and includes the sample that does not count.

use super::{
    job::Effort,
    stats::processor_time,
    times::{Average, Times},
    work::Work,
};
use collectives::Rank;
use std::time::{Duration, Instant};
use tbccl::{Communicator, ReduceOp, Result};

/// Minimum duration of a sample.
const MIN_SAMPLE_TIME: Duration = Duration::from_micros(100);
/// Minimum number of samples for the statistics.
const MIN_SAMPLES: u64 = 8;
/// Maximum number of samples; more add no information.
const MAX_SAMPLES: u64 = 2000;
const GROUPS: u64 = 8;
const MIN_PER_GROUP: u64 = 4;
/// Multiple of the requested time after which the measurement ends.
const TIME_LIMIT_FACTOR: u32 = 3;
const DEFAULT_WARMUP: u32 = 5;

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) effort: Effort,
    /// The root of each run.
    pub(super) root: Root,
    /// How the ranks' times of a sample make one.
    pub(super) average: Average,
}

/// Choice of the root of each run.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum Root {
    Fixed(Rank),
    Rotating,
}

/// Runs per sample, and number of samples.
#[derive(Clone, Copy, Debug)]
struct Quota {
    batch: u64,
    samples: u64,
}

/// The samples of one rank, in microseconds per run.
struct Sampled {
    samples: Vec<f64>,
    /// Processor time of this rank, in microseconds per run.
    cpu_us: f64,
}

/// The state of a running measurement.
struct Sampler<'a> {
    comm: &'a mut Communicator,
    work: &'a mut dyn Work,
    method: Method,
    /// Runs since the last barrier; the same on all ranks.
    next: u64,
}

/// Measures an operation; all ranks return the same times, but for the processor time, which is their own.
pub(super) fn measure(comm: &mut Communicator, work: &mut dyn Work, method: Method) -> Result<Times> {
    let mut sampler = Sampler { comm, work, method, next: 0 };
    let quota = match method.effort.iterations {
        Some(iterations) => sampler.warm_up_by_count(iterations)?,
        None => sampler.warm_up_by_time()?,
    };
    let Sampled { mut samples, cpu_us } = sampler.sample(quota)?;
    method.average.combine(sampler.comm, &mut samples)?;
    Ok(Times::new(samples, quota.batch, cpu_us))
}

impl Sampler<'_> {
    fn burst(&mut self, runs: u64) -> Result<()> {
        for _ in 0..runs {
            let root = match self.method.root {
                Root::Fixed(root) => root,
                Root::Rotating => Rank((self.next % u64::from(self.comm.size())) as u32),
            };
            self.next += 1;
            self.work.run(self.comm, root)?;
        }
        Ok(())
    }

    /// Runs a burst after a barrier; returns the seconds per run.
    fn timed_burst(&mut self, runs: u64) -> Result<f64> {
        self.comm.barrier()?;
        let start = Instant::now();
        self.burst(runs)?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    }

    /// Runs bursts, each twice as long as the one before, until an eighth of the time or the requested number
    /// of runs is reached. The fastest burst determines the batch, so that noise does not.
    fn warm_up_by_time(&mut self) -> Result<Quota> {
        let Effort { time, warmup, .. } = self.method.effort;
        let start = Instant::now();
        let (mut length, mut done, mut fastest) = (2, 0, f64::INFINITY);
        loop {
            fastest = self.timed_burst(length)?.min(fastest);
            done += length;
            let enough = match warmup {
                Some(runs) => done >= u64::from(runs),
                None => (done >= 4 && start.elapsed() >= time / 8) || length > 1 << 20,
            };
            let mut shared = [fastest, f64::from(u8::from(enough))];
            broadcast_from_0(self.comm, &mut shared)?;
            fastest = shared[0];
            if shared[1] > 0.0 {
                break;
            }
            length *= 2;
        }
        let fastest = fastest.max(1e-8);
        let batch = self.batch(fastest);
        let affordable = (time.as_secs_f64() / (fastest * batch as f64)) as u64;
        Ok(Quota { batch, samples: affordable.clamp(MIN_SAMPLES, MAX_SAMPLES) })
    }

    /// Runs the requested warm-up, and divides the requested iterations into samples.
    fn warm_up_by_count(&mut self, iterations: u32) -> Result<Quota> {
        let warmup = self.method.effort.warmup.unwrap_or(DEFAULT_WARMUP);
        let mut fastest = [MIN_SAMPLE_TIME.as_secs_f64()];
        if warmup > 0 {
            fastest[0] = self.timed_burst(warmup.into())?;
        }
        broadcast_from_0(self.comm, &mut fastest)?;
        let iterations = u64::from(iterations);
        let batch = self.batch(fastest[0].max(1e-8)).min(iterations);
        Ok(Quota { batch, samples: iterations.div_ceil(batch) })
    }

    /// Returns the number of runs per sample. A rotating root visits all ranks in each sample.
    fn batch(&self, seconds: f64) -> u64 {
        let batch = (MIN_SAMPLE_TIME.as_secs_f64() / seconds).ceil().max(1.0) as u64;
        match self.method.root {
            Root::Fixed(_) => batch,
            Root::Rotating => batch.next_multiple_of(self.comm.size().into()),
        }
    }

    /// Takes this rank's samples.
    fn sample(&mut self, quota: Quota) -> Result<Sampled> {
        let Quota { batch, samples } = quota;
        let per_group = samples.div_ceil(GROUPS).max(MIN_PER_GROUP);
        let limit =
            self.method.effort.iterations.is_none().then_some(self.method.effort.time * TIME_LIMIT_FACTOR);
        let start = Instant::now();
        let (mut cpu, mut runs) = (Duration::ZERO, 0);
        let mut taken = Vec::with_capacity(samples as usize);
        let mut clock = Vec::with_capacity(per_group as usize + 2);
        while (taken.len() as u64) < samples {
            let group = per_group.min(samples - taken.len() as u64);
            self.next = 0;
            clock.clear();
            self.comm.barrier()?;
            let cpu_before = processor_time(self.comm.transport());
            for _ in 0..=group {
                clock.push(Instant::now());
                self.burst(batch)?;
            }
            clock.push(Instant::now());
            cpu += processor_time(self.comm.transport()).saturating_sub(cpu_before);
            runs += (group + 1) * batch;
            let counted = clock[1..].windows(2).map(|ends| ends[1] - ends[0]);
            taken.extend(counted.map(|time| time.as_secs_f64() * 1e6 / batch as f64));
            let mut is_over = [f64::from(u8::from(limit.is_some_and(|limit| start.elapsed() > limit)))];
            broadcast_from_0(self.comm, &mut is_over)?;
            if is_over[0] > 0.0 {
                break;
            }
        }
        Ok(Sampled { samples: taken, cpu_us: cpu.as_secs_f64() * 1e6 / runs.max(1) as f64 })
    }
}

/// Takes one sample outside of a measurement, of `runs` runs after as many uncounted ones.
///
/// Returns this rank's microseconds per run. If `runs` is a multiple of the number of ranks, every rank is
/// the root equally often.
pub(in crate::commands) fn sample(
    comm: &mut Communicator,
    work: &mut dyn Work,
    root: Root,
    runs: u64,
) -> Result<f64> {
    let effort = Effort { time: Duration::ZERO, warmup: None, iterations: None };
    let method = Method { effort, root, average: Average::Max };
    let mut sampler = Sampler { comm, work, method, next: 0 };
    sampler.burst(runs)?;
    let start = Instant::now();
    sampler.burst(runs)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / runs as f64)
}

/// Broadcasts the numbers of rank 0.
pub(in crate::commands) fn broadcast_from_0(comm: &mut Communicator, numbers: &mut [f64]) -> Result<()> {
    comm.broadcast(numbers, Rank(0))
}

/// Replaces each number by its maximum over all ranks.
pub(in crate::commands) fn all_max(comm: &mut Communicator, numbers: &mut [f64]) -> Result<()> {
    comm.all_reduce_in_place(numbers, ReduceOp::Max)
}

/// Returns the sum over all ranks.
pub(super) fn all_sum(comm: &mut Communicator, number: u64) -> Result<u64> {
    let mut number = [number];
    comm.all_reduce_in_place(&mut number, ReduceOp::Sum)?;
    Ok(number[0])
}
