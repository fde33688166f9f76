//! One rank's loop over all types, reductions and sizes: each is measured and checked, and rank 0 reports.
//!
//! A check is a run on known input. All checks but the last come before the measurement, so that a wrong
//! result is found early, and the last one after it, on the memory that the measurement has used.

use super::{
    super::CommandError,
    buffers::Buffers,
    case::{Case, Packed},
    job::{Elements, Job},
    measure::{self, Method, Root, all_sum, broadcast_from_0},
    measured::Measured,
    operation::{Form, Operation},
    pattern::Value,
    regime::Regime,
    report::{Line, Reporter, Stop},
    stats,
    times::Times,
    work::{Task, Work, Written},
};
use collectives::{Rank, ReduceOp};
use tbccl::{Communicator, Result};

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every element was correct.
    Correct,
    /// Some elements were wrong.
    Wrong,
    /// The report ended early; rank 0 knows the reason.
    Stopped,
}

/// Runs a job as one of its ranks, in a process that might use `cores` cores before it was bound.
/// `follows` says whether the table of another job is above this one's.
pub(super) fn run_job(
    comm: &mut Communicator,
    job: &Job,
    cores: u32,
    follows: bool,
) -> Result<Outcome, CommandError> {
    let failed = |rank: Rank| move |error| CommandError::new(format_args!("rank {rank}: {error}"));
    let regime = Regime::new(comm, cores).map_err(failed(comm.rank()))?;
    let hop_us = regime.map(|regime| regime.best_us());
    let reporter = if comm.rank() == Rank(0) { Some(Reporter::new(comm, job, hop_us)) } else { None };
    let mut worker = Worker { comm, job, reporter, regime, is_new: true, wrong: 0, stopped: None };
    worker.run_all(follows).map_err(failed(worker.comm.rank()))?;
    match worker.stopped {
        Some(Some(Stop::Failed(why))) => Err(why),
        Some(_) => Ok(Outcome::Stopped),
        None if worker.wrong > 0 => Ok(Outcome::Wrong),
        None => Ok(Outcome::Correct),
    }
}

/// The results of runs on known input, summed over all ranks.
#[derive(Clone, Copy, Default)]
struct Verified {
    /// Wrong elements; `None` before the first check.
    wrong: Option<u64>,
    /// Bytes of the latest run.
    copied_bytes: u64,
    moved_bytes: u64,
    error: Option<f64>,
}

impl Verified {
    /// Returns the result of these and further runs. The bytes are those of the latest run before the
    /// measurement, or after it if there is none.
    fn and(self, next: Verified, is_last: bool) -> Verified {
        let bytes = if is_last && self.wrong.is_some() { self } else { next };
        let errors = [self.error, next.error].into_iter().flatten();
        Verified {
            wrong: Some(self.wrong.unwrap_or(0) + next.wrong.unwrap_or(0)),
            error: errors.reduce(f64::max),
            ..bytes
        }
    }
}

struct Worker<'a> {
    comm: &'a mut Communicator,
    job: &'a Job,
    /// The reporter, on rank 0.
    reporter: Option<Reporter>,
    /// Nearness of ranks 0 and 1, where they share memory.
    regime: Option<Regime>,
    /// Whether nothing has been measured.
    is_new: bool,
    /// Wrong elements so far.
    wrong: u64,
    /// Set once the report can't be written; rank 0 has the reason.
    stopped: Option<Option<Stop>>,
}

impl Worker<'_> {
    fn run_all(&mut self, follows: bool) -> Result<()> {
        self.report(|reporter| reporter.begin(follows))?;
        for Elements { dtype, redops } in &self.job.types {
            kernels::dispatch!(*dtype, T => self.sweep::<T>(redops)?);
        }
        self.report(Reporter::end)?;
        if self.job.stats && self.stopped.is_none() {
            let rows = stats::gather(self.comm)?;
            self.report(|reporter| reporter.stats(&rows))?;
        }
        self.comm.barrier()
    }

    /// Lets rank 0 report, and tells all ranks whether that failed.
    fn report(&mut self, report: impl FnOnce(&mut Reporter) -> Result<(), Stop>) -> Result<()> {
        if self.stopped.is_some() {
            return Ok(());
        }
        let failed = self.reporter.as_mut().and_then(|reporter| report(reporter).err());
        let mut shared = [f64::from(u8::from(failed.is_some()))];
        broadcast_from_0(self.comm, &mut shared)?;
        if shared[0] > 0.0 {
            self.stopped = Some(failed);
        }
        Ok(())
    }

    /// Measures all sizes with elements of one type.
    fn sweep<T: Value>(&mut self, redops: &[Option<ReduceOp>]) -> Result<()> {
        let counts = self.job.counts(T::DTYPE);
        let forms = &self.job.forms;
        let cases = counts.iter().flat_map(|count| forms.iter().map(|form| self.case(None, *form, *count)));
        // The largest count alone would not do: the last block of a vector form takes up what others leave.
        let lengths = cases.map(|case| case.lengths());
        let (input, output) = lengths.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let output = output * self.job.calls as usize;
        let mut buffers = Buffers::<T>::new(self.comm, input, output, self.job.registered)?;
        for redop in redops {
            for count in &counts {
                let mut measured = Vec::new();
                for form in &self.job.forms {
                    let case = Case { packed: self.packed(*count)?, ..self.case(*redop, *form, *count) };
                    measured.push(self.measure(case, &mut buffers)?);
                }
                self.wrong += measured.iter().filter_map(|m| m.wrong).sum::<u64>();
                let line = Line { dtype: T::DTYPE, redop: *redop, count: *count, measured };
                self.report(|reporter| reporter.line(&line))?;
                if self.stopped.is_some() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn case(&self, redop: Option<ReduceOp>, form: Form, count: u64) -> Case {
        let (rank, ranks) = (self.comm.rank().0, self.comm.size());
        let (operation, count, packed) = (self.job.op.operation, count as usize, None);
        Case { operation, redop, form, count, rank, ranks, packed }
    }

    fn packed(&self, count: u64) -> Result<Option<Packed>> {
        let packed =
            |codec| self.comm.encodings_of(count, codec).map(|encodings| Packed { codec, encodings });
        self.job.codec.map(packed).transpose()
    }

    fn measure<T: Value>(&mut self, case: Case, buffers: &mut Buffers<T>) -> Result<Measured> {
        let (algorithm, segments) = match case.operation.collective() {
            Some(c) => {
                let (root, count) = (self.job.root.unwrap_or(Rank(0)), case.count as u64);
                match case.operation {
                    Operation::Vector(_) => self.comm.plan_of_vector(c, count, T::DTYPE, root)?,
                    _ => self.comm.plan_of(c, count, T::DTYPE, root)?,
                }
            }
            None => ("message", 1),
        };
        let mut task = Task::new(case, buffers).with_calls(self.job.calls);
        let mut verified = self.verify_before(&mut task, case.ranks)?;
        if self.job.checks < 2 {
            // Zeros that nobody wrote may be faster to move than a program's values.
            task.fill(self.job.root.unwrap_or(Rank(0)), 1);
        }
        if case.form == Form::InPlace {
            task.clear();
        }
        let root = self.job.root.map_or(Root::Rotating, Root::Fixed);
        let method = Method { effort: self.job.effort, root, average: self.job.average };
        if std::mem::take(&mut self.is_new) {
            // Memory that was never touched, and processes that still start, would be measured instead.
            measure::measure(self.comm, &mut task, method)?;
        }
        let (times, hop_us) = match self.job.written {
            true => self.times(&mut Written(&mut task), method)?,
            false => self.times(&mut task, method)?,
        };
        verified = match self.job.checks {
            0 => self.count_bytes(&mut task)?,
            _ => verified.and(self.verify(&mut task, 2)?, true),
        };
        let per_run = case.operation.per_run() * self.job.calls;
        let times = times.per_operation(per_run);
        Ok(Measured {
            form: case.form,
            cpu_us: self.gather_from_all(times.cpu)?,
            times,
            wrong: verified.wrong,
            copied_bytes: verified.copied_bytes / u64::from(per_run),
            moved_bytes: verified.moved_bytes / u64::from(per_run),
            error: verified.error,
            hop_us,
            is_slow: self.regime.zip(hop_us).is_some_and(|(regime, hop_us)| regime.is_slow(hop_us)),
            algorithm,
            segments,
        })
    }

    /// Measures, and measures again while the cores are farther apart than before; returns the times of the
    /// measurement that had the shortest hop, and that hop.
    fn times(&mut self, work: &mut dyn Work, method: Method) -> Result<(Times, Option<f64>)> {
        let Some(regime) = &mut self.regime else {
            return Ok((measure::measure(self.comm, work, method)?, None));
        };
        let mut nearest: Option<(Times, f64)> = None;
        let mut before = regime.take(self.comm)?;
        for _ in 0..self.job.tries {
            let times = measure::measure(self.comm, work, method)?;
            let after = regime.take(self.comm)?;
            let hop_us = before.max(after);
            if nearest.is_none_or(|(_, shortest)| hop_us < shortest) {
                nearest = Some((times, hop_us));
            }
            if !regime.is_slow(hop_us) {
                break;
            }
            before = after;
        }
        let (times, hop_us) = nearest.expect("a measurement is tried once at least");
        Ok((times, Some(hop_us)))
    }

    /// Makes the checks that come before the measurement.
    fn verify_before(&mut self, work: &mut dyn Work, ranks: u32) -> Result<Verified> {
        // Seeds choose the root, too: rank 1, then rank 0, then the others in turn.
        let seeds = [1, u64::from(ranks)].into_iter().chain(3..);
        let mut verified = Verified::default();
        for seed in seeds.take(self.job.checks.saturating_sub(1) as usize) {
            verified = verified.and(self.verify(work, seed)?, false);
        }
        Ok(verified)
    }

    /// Runs the operation once, only to count its bytes.
    fn count_bytes(&mut self, work: &mut dyn Work) -> Result<Verified> {
        let before = self.comm.counters();
        work.run(self.comm, self.job.root.unwrap_or(Rank(0)))?;
        let done = self.comm.counters() - before;
        Ok(Verified {
            copied_bytes: all_sum(self.comm, done.copied_bytes)?,
            moved_bytes: all_sum(self.comm, done.moved_bytes)?,
            ..Verified::default()
        })
    }

    /// Returns a number of every rank, in rank order.
    fn gather_from_all(&mut self, own: f64) -> Result<Vec<f64>> {
        let mut all = vec![0.0; self.comm.size() as usize];
        self.comm.all_gather(&[own], &mut all)?;
        Ok(all)
    }

    /// Runs the operation once on known input, and checks the result.
    fn verify(&mut self, work: &mut dyn Work, seed: u64) -> Result<Verified> {
        let root = self.job.root.unwrap_or(Rank((seed % u64::from(self.comm.size())) as u32));
        work.fill(root, seed);
        self.comm.barrier()?;
        let before = self.comm.counters();
        work.run(self.comm, root)?;
        let done = self.comm.counters() - before;
        self.comm.barrier()?;
        let accuracy = work.evaluate(root, seed);
        let mut wrong = accuracy.map_or_else(|| work.count_wrong(root, seed), |accuracy| accuracy.wrong);
        let mut error = None;
        if let Some(accuracy) = accuracy {
            let bits = work.fingerprint();
            let mut extremes = [bits, !bits];
            self.comm.all_reduce_in_place(&mut extremes, ReduceOp::Max)?;
            if extremes[0] != !extremes[1] {
                wrong = wrong.max(1);
            }
            let mut worst = [accuracy.error];
            self.comm.all_reduce_in_place(&mut worst, ReduceOp::Max)?;
            error = Some(worst[0]);
        }
        Ok(Verified {
            wrong: Some(all_sum(self.comm, wrong)?),
            copied_bytes: all_sum(self.comm, done.copied_bytes)?,
            moved_bytes: all_sum(self.comm, done.moved_bytes)?,
            error,
        })
    }
}
