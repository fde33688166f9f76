//! Execution of one blocking call: from its checked arguments to its result.
//!
//! A call finds its plan (`plans`), binds it to memory, enters its record on the agreement board, and runs.
//! Groups prepare several calls here and run them together.

use super::{
    Communicator, announce,
    call::{Blocks, Call},
    confirmations::confirm,
    control::stats_of,
    diagnosis::explain,
    dumps,
    elements::SettleOnDrop,
    keys::PlanKey,
    plans::PlannedCall,
    request::{Request, RequestKind},
    traces,
    variant::{Prepared, Variant},
    watch::CallWatch,
};
use crate::{
    agreement::{Agreement, Failure},
    call::{CallRecord, Words},
    error::{Error, Place, Result},
    executor::{Binding, Done, Executor, Program, SizedStraight, Stop},
    forks,
    recorder::Outcome,
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    slice,
    sync::Arc,
    time::Duration,
};
use topology::Rank;
use transport::memory::{Registered, Span, SpanMut};

/// Work of a run: a plan or a message. A type parameter, so that each kind has code of its own.
pub(super) trait Work: Copy {
    /// Calls `visit` with all memory of the calls but scratch memory.
    fn for_each_span(self, visit: impl FnMut(Span<'_>));

    /// Returns the bytes of a call, by its place in the run.
    fn bytes(self, call: usize) -> usize;

    /// Calls `visit` with the words of the record of a call. They are passed by reference: a copy has to wait
    /// for the store of the call's number.
    #[inline]
    fn with_words(self, record: &CallRecord, visit: impl FnOnce(&Words)) {
        visit(&record.encode());
    }

    /// Enters the calls on this rank's board, unless that was done before.
    #[inline]
    fn enter(self, _agreement: &Agreement) {}

    /// Runs as far as brief messages go, and calls `meanwhile` once what comes first is on its way. Returns
    /// how far it has come; `None` if all is complete.
    #[inline(always)]
    fn run_brief(self, _executor: &mut Executor, meanwhile: impl FnOnce()) -> Option<Done> {
        meanwhile();
        Some(Done::default())
    }

    /// Runs from where `done` says, and makes sure that peers are in the same calls.
    fn run(
        self,
        executor: &mut Executor,
        records: &[CallRecord],
        done: Done,
        watch: &mut CallWatch<'_>,
    ) -> Result<(), Stop>;
}

/// A plan on the memory of its calls, in order.
#[derive(Clone, Copy)]
pub(super) struct PlannedWork<'w, 'm> {
    pub(super) program: &'w Program,
    pub(super) bindings: &'w [Binding<'m>],
    /// Whether a rank that only sends waits here for the boards of its receivers.
    pub(super) confirms: bool,
}

impl<'m> Work for PlannedWork<'_, 'm> {
    #[inline]
    fn for_each_span(self, visit: impl FnMut(Span<'_>)) {
        let spans = |binding: &Binding<'m>| [binding.input, binding.output.as_span()];
        self.bindings.iter().flat_map(spans).for_each(visit);
    }

    #[inline]
    fn bytes(self, call: usize) -> usize {
        self.bindings[call].input.len().max(self.bindings[call].output.len())
    }

    #[inline]
    fn run(
        self,
        executor: &mut Executor,
        records: &[CallRecord],
        _done: Done,
        watch: &mut CallWatch<'_>,
    ) -> Result<(), Stop> {
        let PlannedWork { program, bindings, confirms } = self;
        executor.run(program, bindings, watch)?;
        if confirms {
            confirm(executor, program, records, watch)?;
        }
        Ok(())
    }
}

/// The plan of one call on its memory.
#[derive(Clone, Copy)]
struct OneCall<'w, 'm> {
    program: &'w Program,
    binding: &'w Binding<'m>,
    /// The words of its record.
    words: &'w Words,
    /// As in [`PlannedWork`].
    confirms: bool,
}

impl Work for OneCall<'_, '_> {
    #[inline]
    fn for_each_span(self, visit: impl FnMut(Span<'_>)) {
        [self.binding.input, self.binding.output.as_span()].into_iter().for_each(visit);
    }

    #[inline]
    fn bytes(self, _call: usize) -> usize {
        self.binding.input.len().max(self.binding.output.len())
    }

    #[inline]
    fn with_words(self, _record: &CallRecord, visit: impl FnOnce(&Words)) {
        visit(self.words);
    }

    #[inline]
    fn enter(self, agreement: &Agreement) {
        agreement.enter(self.words);
    }

    #[inline(always)]
    fn run_brief(self, executor: &mut Executor, meanwhile: impl FnOnce()) -> Option<Done> {
        let left = executor.run_brief(self.program, self.binding, meanwhile);
        if self.confirms { left.or(Some(Done::all(self.binding))) } else { left }
    }

    #[inline]
    fn run(
        self,
        executor: &mut Executor,
        records: &[CallRecord],
        done: Done,
        watch: &mut CallWatch<'_>,
    ) -> Result<(), Stop> {
        executor.run_call(self.program, self.binding, done, watch)?;
        if self.confirms {
            confirm(executor, self.program, records, watch)?;
        }
        Ok(())
    }
}

impl Communicator {
    /// Carries out a call of checked arguments.
    // Always inlined: the kind of the call is mostly known there, and the match becomes a jump.
    #[inline(always)]
    pub(super) fn execute(&mut self, request: &Request<'_>) -> Result<()> {
        // The request is passed by reference, and nothing follows the call: moving a call or a result takes
        // longer than a small call itself.
        let _settle = SettleOnDrop { dtype: request.dtype(), output: request.output };
        match &request.kind {
            RequestKind::Collective(call) if request.lengths.is_none() => {
                self.collective(call, Blocks::Even, request.input, request.output)
            }
            RequestKind::Collective(call) => self.uneven_collective(call, request),
            RequestKind::Message { .. } => self.message(request),
        }
    }

    /// Runs a collective. `input` and `output` hold the blocks of the collective; in place, they overlap as
    /// its shape says.
    fn collective(
        &mut self,
        call: &Call,
        blocks: Blocks<'_>,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        self.check_alive()?;
        let (slot, mut planned) = self.plans.borrow(call, blocks, self.numerics)?;
        let done = match planned.is_variant {
            false => self.run_planned(&mut planned, None, (input, output)),
            true => self.run_variant(&mut planned, blocks, (input, output)),
        };
        self.plans.give_back(slot, planned);
        // Not `done`: a copy of a result waits for the store of its first word.
        match done {
            Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Runs a collective whose blocks have unequal lengths, or whose messages are packed.
    #[inline(never)]
    fn run_variant(
        &mut self,
        planned: &mut PlannedCall,
        blocks: Blocks<'_>,
        memory: (Span<'_>, SpanMut<'_>),
    ) -> Result<()> {
        let mut variant = Variant::of(planned);
        variant.bind(blocks, &planned.program, self.executor.protocols())?;
        let straight = SizedStraight::new(&planned.program, &variant.constants, self.executor.protocols());
        self.run_planned(planned, Some((&variant, straight.as_ref())), memory)
    }

    /// Runs a call with its plan, or with the constants and ranges of `variant` if that is given.
    #[inline(always)]
    fn run_planned(
        &mut self,
        planned: &mut PlannedCall,
        variant: Option<(&Variant, Option<&SizedStraight>)>,
        (input, output): (Span<'_>, SpanMut<'_>),
    ) -> Result<()> {
        let confirms = self.confirmations.is_due(&planned.program, planned.is_confirmed);
        let scratch_bytes = variant.map_or(planned.scratch_bytes, |(variant, _)| variant.scratch_bytes);
        // The other ranks are about to enter the call, so a failure fails them too.
        let mut scratch = match self.take_scratch(scratch_bytes) {
            Ok(scratch) => scratch,
            Err(error) => return self.fail(error),
        };
        self.seq += 1;
        let varied;
        let (record, words, digest) = match variant {
            // The call is the only one that uses what is kept of its kind.
            None => {
                planned.record.seq = self.seq;
                planned.words[0] = self.seq;
                (&planned.record, &planned.words, planned.digest)
            }
            Some((variant, _)) => {
                let record = CallRecord { seq: self.seq, ..variant.record };
                varied = (record, record.encode());
                (&varied.0, &varied.1, record.unnumbered_digest())
            }
        };
        let binding = Binding {
            constants: variant.map_or(&planned.constants, |(variant, _)| &variant.constants),
            straight: variant.map_or(planned.straight.as_ref(), |(_, straight)| straight),
            digest: digest.of_call(self.seq),
            input,
            output,
            scratch: scratch_of(&mut scratch, scratch_bytes),
            confirmed: confirms && !self.peers.agreement.is_mapped(),
        };
        let confirms_after = confirms && !binding.confirmed;
        let work = OneCall { program: &planned.program, binding: &binding, words, confirms: confirms_after };
        let done = self.carry_out(work, slice::from_ref(record));
        if scratch.is_some() {
            self.scratch = scratch;
        }
        done?;
        planned.is_confirmed |= confirms;
        self.peers.agreement.finish(self.seq);
        Ok(())
    }

    /// Runs a collective whose blocks have unequal lengths. Where not every rank reaches every other, ranks
    /// in between forward the blocks of an `all_to_all_v`.
    #[cold]
    fn uneven_collective(&mut self, call: &Call, request: &Request<'_>) -> Result<()> {
        let (blocks, input, output) = (request.blocks(), request.input, request.output);
        if let Blocks::Uneven { input: sent, output: expected, all: None } = blocks
            && self.plans.lacks_cables(&PlanKey::new(call, blocks, self.numerics))
        {
            return self.all_to_all_relayed(call.dtype, (input, sent), (output, expected));
        }
        self.collective(call, blocks, input, output)
    }

    /// Finds the plan of a collective of a group, and binds it. Nothing is entered yet.
    pub(super) fn prepare<'m>(
        &mut self,
        call: &Call,
        blocks: Blocks<'_>,
        input: Span<'m>,
        output: SpanMut<'m>,
    ) -> Result<Prepared<'m>> {
        let (slot, planned) = self.plans.borrow(call, blocks, self.numerics)?;
        let program = Arc::clone(&planned.program);
        let mut variant = Variant::of(&planned);
        self.plans.give_back(slot, planned);
        variant.bind(blocks, &program, self.executor.protocols())?;
        let confirmed = !program.unheard.is_empty() && !self.peers.agreement.is_mapped();
        Ok(Prepared { program, variant, input, output, confirmed })
    }

    /// Gives a collective of a group its number, and enters it on this rank's board.
    pub(super) fn enter(&mut self, record: &mut CallRecord) {
        self.seq += 1;
        record.seq = self.seq;
        self.peers.agreement.enter(&record.encode());
    }

    /// Finds the plan of a call of a group, and binds it. Nothing is entered yet.
    pub(super) fn prepare_request<'m>(&mut self, request: &Request<'m>) -> Result<Prepared<'m>> {
        let (input, output) = (request.input, request.output);
        match request.kind {
            RequestKind::Collective(call) => self.prepare(&call, request.blocks(), input, output),
            RequestKind::Message { kind, dtype, peer } => {
                self.prepare_message(kind, dtype, peer, input, output)
            }
        }
    }

    /// Checks that the communicator and its job have not failed. A failed communicator stays failed; a failed
    /// job fails this rank's next call.
    #[inline]
    pub(super) fn check_alive(&mut self) -> Result<()> {
        forks::check(self.origin)?;
        if self.failed.is_none() && !self.peers.agreement.has_failure() && !self.peers.control.is_aborted() {
            return Ok(());
        }
        self.first_failure()
    }

    #[cold]
    fn first_failure(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let place = self.place_between_calls();
        if self.peers.control.is_aborted() {
            return self.fail(Error::Aborted { place: Box::new(place) });
        }
        let Some(failure) = self.peers.agreement.failure() else { return Ok(()) };
        let error = self.peers.error_of(failure, place);
        self.fail(error)
    }

    fn place_between_calls(&self) -> Place {
        let call = self.peers.agreement.call(self.rank(), self.seq);
        let call = call.unwrap_or(CallRecord::nothing(self.seq));
        Place { rank: self.rank(), call, step: Some("before the next call".into()), waited: Duration::ZERO }
    }

    /// Returns the scratch memory, of at least `bytes` bytes; `None` for none.
    #[inline(always)]
    fn take_scratch(&mut self, bytes: usize) -> Result<Option<Box<Registered>>> {
        if bytes == 0 {
            return Ok(None);
        }
        self.grow_scratch(bytes)?;
        Ok(self.scratch.take())
    }

    #[inline]
    pub(super) fn grow_scratch(&mut self, bytes: usize) -> Result<()> {
        if bytes > 0 && self.scratch.as_ref().is_none_or(|scratch| scratch.len() < bytes) {
            return self.allocate_scratch(bytes);
        }
        Ok(())
    }

    #[cold]
    fn allocate_scratch(&mut self, bytes: usize) -> Result<()> {
        self.scratch = None;
        self.scratch = Some(Box::new(self.slab.allocate(bytes)?));
        Ok(())
    }

    /// Runs calls that have been entered; `records` are theirs, in order.
    ///
    /// # Panics
    /// When the run panics. The communicator has failed then, and no link uses the memory of the calls.
    pub(super) fn carry_out(&mut self, work: impl Work, records: &[CallRecord]) -> Result<()> {
        // Unwind safe: after a panic the links are aborted, and every later call is an error.
        match catch_unwind(AssertUnwindSafe(|| self.run_and_explain(work, records))) {
            // Results are written instead of moved, which takes longer.
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(panic) => {
                self.fail_by_panic(&*panic, work, records);
                resume_unwind(panic)
            }
        }
    }

    /// Ends all use of the calls' memory, and records a panic as the error of the communicator and of the
    /// job.
    #[cold]
    fn fail_by_panic(&mut self, panic: &(dyn Any + Send), work: impl Work, records: &[CallRecord]) {
        self.executor.abort_links();
        self.end_use(work);
        if self.peers.control.recorder.is_in_call() {
            self.peers.control.recorder.end(records.len(), Outcome::Failed, false, || {});
        }
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("a panic without a message");
        let call = records.first().map_or_else(String::new, |record| format!(" in {record}"));
        // `fail` returns the same error; the panic itself goes on to the caller.
        let _ = self.fail(Error::Defect(format!(
            "rank {} panicked{call}: {said}; see stderr for where, and report it",
            self.rank()
        )));
    }

    /// Tells the endpoint that calls no longer use their memory, which may be registered.
    #[inline]
    fn end_use(&mut self, work: impl Work) {
        if let Some(endpoint) = self.lender() {
            work.for_each_span(|span| endpoint.end_use(span));
        }
    }

    /// Runs calls, and turns the reason of an early end into an error.
    #[inline]
    fn run_and_explain(&mut self, work: impl Work, records: &[CallRecord]) -> Result<()> {
        let lends = self.lender().is_some();
        let (agreement, recorder) = (&self.peers.agreement, &self.peers.control.recorder);
        let begin = || {
            work.enter(agreement);
            for (call, record) in records.iter().enumerate() {
                work.with_words(record, |words| recorder.begin(words, work.bytes(call)));
            }
        };
        let left = if lends {
            begin();
            Some(Done::default())
        } else {
            work.run_brief(&mut self.executor, begin)
        };
        if left.is_none() && !self.peers.is_disturbed() {
            recorder.end(records.len(), Outcome::Done, true, || self.publish_counters());
            return Ok(());
        }
        self.run_on(work, records, left)
    }

    /// Runs calls from where a run in brief messages has come to; `None` if they are complete.
    #[inline(never)]
    fn run_on(&mut self, work: impl Work, records: &[CallRecord], left: Option<Done>) -> Result<()> {
        if let Some(endpoint) = self.lender() {
            work.for_each_span(|span| endpoint.begin_use(span));
        }
        let mut watch = CallWatch {
            peers: &mut self.peers,
            calls: records,
            timeout: self.timeout,
            waited: Duration::ZERO,
            has_looked: false,
            endpoint: self.endpoint.as_deref(),
            slab: &self.slab,
        };
        let ran = left.map_or(Ok(()), |done| work.run(&mut self.executor, records, done, &mut watch));
        let failed = match ran {
            Ok(()) => watch.failure_meanwhile(|| "after its last step".into()),
            Err(stop) => Some(explain(stop, &mut watch)),
        };
        let brief = !watch.has_looked;
        self.end_use(work);
        let Some(error) = failed else {
            self.peers.control.recorder.end(records.len(), Outcome::Done, brief, || self.publish_counters());
            return Ok(());
        };
        self.peers.control.recorder.end(records.len(), Outcome::Failed, false, || {});
        traces::calls_failed(&self.peers);
        self.fail(error)
    }

    /// Makes the counters of the links and the state of the endpoint known to other threads.
    #[cold]
    fn publish_counters(&self) {
        let control = &self.peers.control;
        control.publish(stats_of(self.executor.links()));
        if control.gauges.is_endpoint_due() {
            self.publish_endpoint();
        }
    }

    /// Records an error as the communicator's, and as the job's if it is the first one.
    pub(super) fn fail(&mut self, error: Error) -> Result<()> {
        if !matches!(error, Error::Remote { .. } | Error::Mismatch { .. } | Error::PeerDied { .. }) {
            let message = error.to_string();
            self.peers.raise(Failure::Failed { rank: self.rank(), message });
        }
        announce::failed(self.rank(), &error);
        self.failed = Some(error.clone());
        self.peers.control.set_failed(&error);
        self.peers.control.publish(self.stats());
        dumps::write_if_wanted(&self.peers.control);
        traces::write(&mut self.peers, Some(&error));
        Err(error)
    }

    /// Records the failure of the communicator, if it has failed, and tells other ranks of an abort.
    pub(crate) fn notice_failure(&mut self) {
        // The error is stored, and returned by the next call.
        let _ = self.check_alive();
    }

    /// Returns the error that has failed the communicator or will fail the next call, as far as this rank
    /// knows without waiting.
    pub(crate) fn news_of_failure(&mut self) -> Option<Error> {
        if let Err(error) = forks::check(self.origin) {
            return Some(error);
        }
        if self.failed.is_none() {
            self.peers.keep_in_touch();
            let dead = self.peers.died.iter().position(Option::is_some);
            if let Some(rank) = dead.filter(|_| !self.peers.agreement.has_failure()) {
                let how = self.peers.died[rank].clone().unwrap_or_default();
                let place = self.place_between_calls();
                return Some(self.peers.error_of(Failure::Died { rank: Rank(rank as u32), how }, place));
            }
        }
        self.check_alive().err()
    }
}

/// Returns the scratch memory of a call, from that of the largest one so far.
///
/// It is no longer than the call needs: links announce the messages of calls on many bytes, and small calls
/// take longer so.
#[inline]
pub(super) fn scratch_of(memory: &mut Option<Box<Registered>>, bytes: usize) -> SpanMut<'_> {
    memory.as_mut().map_or(SpanMut::empty(), |memory| memory.span_mut().sub(0, bytes))
}
