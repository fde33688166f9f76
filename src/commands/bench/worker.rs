//! One rank's loop over all types, reductions and sizes: each is measured and checked, and rank 0 reports.

use super::{
    super::CommandError,
    buffers::Buffers,
    case::{Case, Packed},
    job::{Elements, Job},
    measure::{self, Method, Root, Times, all_sum, broadcast_from_0},
    measured::Measured,
    operation::Form,
    pattern::Value,
    regime::Regime,
    report::{Line, Reporter, Stop},
    stats,
    work::{Task, Work},
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
pub(super) fn run_job(comm: &mut Communicator, job: &Job, cores: u32) -> Result<Outcome, CommandError> {
    let failed = |rank: Rank| move |error| CommandError::new(format_args!("rank {rank}: {error}"));
    let regime = Regime::new(comm, cores).map_err(failed(comm.rank()))?;
    let hop_us = regime.map(|regime| regime.best_us());
    let reporter = if comm.rank() == Rank(0) { Some(Reporter::new(comm, job, hop_us)) } else { None };
    let mut worker = Worker { comm, job, reporter, regime, is_new: true, wrong: 0, stopped: None };
    worker.run_all().map_err(failed(worker.comm.rank()))?;
    match worker.stopped {
        Some(Some(Stop::Failed(why))) => Err(why),
        Some(_) => Ok(Outcome::Stopped),
        None if worker.wrong > 0 => Ok(Outcome::Wrong),
        None => Ok(Outcome::Correct),
    }
}

/// The result of one run on known input, summed over all ranks.
struct Verified {
    wrong: u64,
    copied_bytes: u64,
    moved_bytes: u64,
    error: Option<f64>,
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
    fn run_all(&mut self) -> Result<()> {
        self.report(Reporter::begin)?;
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
        let Some(largest) = counts.last() else { return Ok(()) };
        let lengths = self.job.forms.iter().map(|form| self.case(None, *form, *largest).lengths());
        let (input, output) = lengths.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let mut buffers = Buffers::<T>::new(self.comm, input, output, self.job.registered)?;
        for redop in redops {
            for count in &counts {
                let mut measured = Vec::new();
                for form in &self.job.forms {
                    let case = Case { packed: self.packed(*count)?, ..self.case(*redop, *form, *count) };
                    measured.push(self.measure(case, &mut buffers)?);
                }
                self.wrong += measured.iter().map(|m| m.wrong).sum::<u64>();
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
                let root = self.job.root.unwrap_or(Rank(0));
                self.comm.plan_of(c, case.count as u64, T::DTYPE, root)?
            }
            None => ("message", 1),
        };
        let mut task = Task::new(case, buffers);
        let first = self.verify(&mut task, 1)?;
        let again = self.verify(&mut task, u64::from(case.ranks))?;
        if case.form == Form::InPlace {
            task.clear();
        }
        let root = self.job.root.map_or(Root::Rotating, Root::Fixed);
        let method = Method { effort: self.job.effort, root };
        if std::mem::take(&mut self.is_new) {
            // Memory that was never touched, and processes that still start, would be measured instead.
            measure::measure(self.comm, &mut task, method)?;
        }
        let (times, hop_us) = self.times(&mut task, method)?;
        let last = self.verify(&mut task, 2)?;
        Ok(Measured {
            form: case.form,
            times: times.per_operation(case.operation.per_run()),
            wrong: first.wrong + again.wrong + last.wrong,
            copied_bytes: again.copied_bytes / u64::from(case.operation.per_run()),
            moved_bytes: again.moved_bytes / u64::from(case.operation.per_run()),
            error: [first.error, again.error, last.error].into_iter().flatten().reduce(f64::max),
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
            wrong: all_sum(self.comm, wrong)?,
            copied_bytes: all_sum(self.comm, done.copied_bytes)?,
            moved_bytes: all_sum(self.comm, done.moved_bytes)?,
            error,
        })
    }
}
