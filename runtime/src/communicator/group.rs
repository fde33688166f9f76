//! Groups: calls that are issued together and progress together.
//!
//! A group collects calls, and nothing moves until [`Group::run`]. Its calls then run as one: their messages
//! are in flight at the same time, so messages in both directions between two ranks do not deadlock, and
//! latencies overlap. All ranks issue the same collectives of a group in the same order. The two ranks of a
//! message issue it in the same order as their other messages.
//!
//! Calls run in an order that all ranks agree on: collectives as they were issued, then messages. So messages
//! that only some ranks issue between two collectives do not change the order. A message of a rank to itself
//! is copied: the first one sent to the first one received, and so on.
//!
//! Consecutive small `all_reduce` of one element type and operation, messages not counted, are fused into one
//! through a buffer: their latency is that of one call. Their lengths decide which ones are fused, and all
//! ranks agree on those.
//!
//! This module neither checks arguments (`request` does) nor plans.

use super::{
    Communicator,
    call::{Blocks, Call},
    elements::settle_output,
    execute::PlannedWork,
    rank_info::RankInfo,
    request::{Request, RequestKind},
    scaling::Scaling,
    variant::Prepared,
};
use crate::{
    call::{CallKind, CallRecord},
    error::{Error, Result},
    executor::{Binding, Program},
};
use collectives::{Collective, schedule::InPlace};
use topology::Rank;
use transport::memory::SpanMut;

/// Maximum bytes of fused calls together: about as many as two messages move in the time of their latency.
const FUSED_BYTES: usize = 32 << 10;

/// Maximum number of calls of a group.
const MAX_CALLS: usize = u16::MAX as usize;

/// Calls that run together.
///
/// They have the names, arguments and results of the calls of a [`Communicator`].
#[derive(Debug)]
pub struct Group<'c, 'm> {
    comm: &'c mut Communicator,
    calls: Vec<Request<'m>>,
}

impl Communicator {
    /// Starts a group of calls.
    ///
    /// ```
    /// # use tbccl::{Communicator, Config, ReduceOp};
    /// # let mut comm = Communicator::local(1, &Config::default())?.remove(0);
    /// let (a, b) = ([1.0f32; 4], [2u8; 9]);
    /// let (mut sum, mut all) = ([0.0; 4], [0; 9]);
    /// let mut group = comm.group();
    /// group.all_reduce(&a, &mut sum, ReduceOp::Sum)?;
    /// group.all_gather(&b, &mut all)?;
    /// group.run()?;
    /// # assert_eq!((sum, all), (a, b));
    /// # Ok::<(), tbccl::Error>(())
    /// ```
    pub fn group<'m>(&mut self) -> Group<'_, 'm> {
        Group { comm: self, calls: Vec::new() }
    }
}

impl<'m> Group<'_, 'm> {
    /// Returns the rank and size of the communicator.
    pub(super) fn rank_info(&self) -> RankInfo {
        self.comm.rank_info()
    }

    /// Adds a call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a group that is full.
    pub(super) fn push(&mut self, request: Request<'m>) -> Result<()> {
        if self.calls.len() == MAX_CALLS {
            return Err(too_many());
        }
        self.calls.push(request);
        Ok(())
    }

    /// Runs all calls of the group.
    ///
    /// # Errors
    /// The first error of a call, as for [`Communicator::all_reduce`]; all results are undefined then.
    /// Nothing has moved after an [`Error::InvalidArgument`].
    pub fn run(self) -> Result<()> {
        self.comm.run_together(&self.calls, &[])
    }
}

fn too_many() -> Error {
    Error::InvalidArgument(format!("a group has {MAX_CALLS} calls at most; run it first"))
}

/// Consecutive calls that become one.
struct Fused {
    /// Number of calls.
    calls: usize,
    /// Bytes of all calls.
    bytes: usize,
}

/// Returns how many of the first calls can be fused; `None` for fewer than two.
fn fusable(calls: &[&Request<'_>]) -> Option<Fused> {
    let kind = |request: &Request<'_>| match request.kind {
        RequestKind::Collective(call) if call.collective == Collective::AllReduce => {
            Some((call.dtype, call.op, call.codec))
        }
        _ => None,
    };
    let first = kind(calls.first()?)?;
    let (mut count, mut bytes) = (0, 0);
    for call in calls.iter().take_while(|call| kind(call) == Some(first)) {
        if bytes + call.output.len() > FUSED_BYTES {
            break;
        }
        bytes += call.output.len();
        count += 1;
    }
    (count > 1).then_some(Fused { calls: count, bytes })
}

/// Divides all calls into runs, each of which becomes one call.
fn runs(calls: &[&Request<'_>]) -> Vec<Fused> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < calls.len() {
        let run = fusable(&calls[at..]).unwrap_or(Fused { calls: 1, bytes: 0 });
        at += run.calls;
        runs.push(run);
    }
    runs
}

/// Pairs the messages that a rank sends to itself with those it receives from itself.
fn own_messages<'q, 'm>(
    rank: Rank,
    calls: &'q [Request<'m>],
) -> Result<Vec<(&'q Request<'m>, &'q Request<'m>)>> {
    let of = |wanted: CallKind| {
        calls.iter().filter(move |request| {
            matches!(request.kind, RequestKind::Message { kind, peer, .. } if kind == wanted && peer == rank)
        })
    };
    let (sent, received) = (of(CallKind::Send), of(CallKind::Recv));
    if sent.clone().count() != received.clone().count() {
        let (sent, received) = (sent.count(), received.count());
        return Err(Error::InvalidArgument(format!(
            "rank {rank} sends {sent} messages to itself and receives {received} in one group; it must do \
             both"
        )));
    }
    let pairs: Vec<_> = sent.zip(received).collect();
    for (sent, received) in &pairs {
        let [(a, what), (b, into)] = [(sent, sent.input.len()), (received, received.output.len())]
            .map(|(request, bytes)| (bytes / request.dtype().size(), request.dtype()));
        if (a, what) != (b, into) {
            return Err(Error::InvalidArgument(format!(
                "rank {rank} sends {a} {what} to itself, and receives {b} {into}; both must be the same"
            )));
        }
    }
    Ok(pairs)
}

impl Communicator {
    /// Carries out calls as a group. `scalings` are multiplications of their contributions, which come first.
    pub(super) fn run_together(&mut self, calls: &[Request<'_>], scalings: &[Scaling<'_>]) -> Result<()> {
        if calls.is_empty() {
            return Ok(());
        }
        if calls.len() > MAX_CALLS {
            return Err(too_many());
        }
        self.check_alive()?;
        let done = self.run_group(calls, scalings);
        calls.iter().for_each(|request| settle_output(request.dtype(), request.output));
        done
    }

    fn run_group(&mut self, calls: &[Request<'_>], scalings: &[Scaling<'_>]) -> Result<()> {
        let own = own_messages(self.rank(), calls)?;
        let ordered = self.in_agreed_order(calls);
        let runs = runs(&ordered);
        let together = runs.iter().map(|run| run.bytes).sum();
        // The other ranks are about to enter the calls, so this failure fails them too.
        let mut memory = match self.slab.allocate(together) {
            Ok(memory) => memory,
            Err(error) => return self.fail(error.into()),
        };
        let mut rest = memory.span_mut();
        let mut prepared = Vec::with_capacity(runs.len());
        let (mut at, mut buffers) = (0, Vec::new());
        for run in &runs {
            let part = &ordered[at..at + run.calls];
            at += run.calls;
            let buffer = rest.sub(0, run.bytes);
            rest = rest.sub(run.bytes, rest.len() - run.bytes);
            prepared.push(self.prepare_run(part, buffer)?);
            if run.calls > 1 {
                buffers.push((part, buffer));
            }
        }
        // All arguments are valid: memory is written from here on.
        scalings.iter().for_each(Scaling::apply);
        buffers.iter().for_each(|(part, buffer)| gather(part, *buffer));
        for (sent, received) in own {
            received.output.copy_from(sent.input);
        }
        if !prepared.is_empty() {
            self.carry_out_together(&prepared)?;
        }
        buffers.into_iter().for_each(|(part, buffer)| copy_results(part, buffer));
        Ok(())
    }

    /// Returns collectives, and then messages with other ranks: an order that all ranks agree on.
    fn in_agreed_order<'q, 'm>(&self, calls: &'q [Request<'m>]) -> Vec<&'q Request<'m>> {
        let collectives = calls.iter().filter(|request| matches!(request.kind, RequestKind::Collective(_)));
        let messages = calls.iter().filter(
            |request| matches!(request.kind, RequestKind::Message { peer, .. } if peer != self.rank()),
        );
        collectives.chain(messages).collect()
    }

    /// Prepares one call, or several fused in a buffer.
    fn prepare_run<'m>(&mut self, run: &[&Request<'m>], buffer: SpanMut<'m>) -> Result<Prepared<'m>> {
        let first = run[0];
        match first.kind {
            RequestKind::Collective(call) if run.len() > 1 => {
                let count = (buffer.len() / call.dtype.size()) as u64;
                let call = Call { count, in_place: InPlace::Yes, ..call };
                self.prepare(&call, Blocks::Even, buffer.as_span(), buffer)
            }
            _ => self.prepare_request(first),
        }
    }

    pub(super) fn carry_out_together(&mut self, prepared: &[Prepared<'_>]) -> Result<()> {
        let padded = |bytes: usize| bytes.next_multiple_of(super::ALIGNMENT);
        let scratch_bytes = prepared.iter().map(|call| padded(call.variant.scratch_bytes)).sum();
        if let Err(error) = self.grow_scratch(scratch_bytes) {
            return self.fail(error);
        }
        let mut memory = self.scratch.take();
        let mut rest = memory.as_mut().map_or(SpanMut::empty(), |memory| memory.span_mut());
        let programs: Vec<&Program> = prepared.iter().map(|call| &*call.program).collect();
        let program = Program::concat(&programs);
        let mut records: Vec<CallRecord> = Vec::with_capacity(prepared.len());
        let mut bindings: Vec<Binding<'_>> = Vec::with_capacity(prepared.len());
        for call in prepared {
            let mut record = call.variant.record;
            match record.kind {
                CallKind::Collective(_) => self.enter(&mut record),
                CallKind::Send | CallKind::Recv => {
                    self.enter_message(&mut record);
                }
            }
            let scratch = rest.sub(0, call.variant.scratch_bytes);
            let used = padded(call.variant.scratch_bytes);
            rest = rest.sub(used, rest.len() - used);
            bindings.push(call.binding(record.digest(), scratch));
            records.push(record);
        }
        let confirms = !program.unheard.is_empty() && !bindings.iter().any(|binding| binding.confirmed);
        let work = PlannedWork { program: &program, bindings: &bindings, confirms };
        let done = self.carry_out(work, &records);
        drop(bindings);
        self.scratch = memory;
        done?;
        if records.iter().any(|record| matches!(record.kind, CallKind::Collective(_))) {
            self.peers.agreement.finish(self.seq);
        }
        if records.iter().any(|record| !matches!(record.kind, CallKind::Collective(_))) {
            self.peers.agreement.finish_message();
        }
        Ok(())
    }
}

/// Copies the inputs of fused calls into the buffer.
fn gather(calls: &[&Request<'_>], buffer: SpanMut<'_>) {
    let mut at = 0;
    for call in calls {
        buffer.sub(at, call.input.len()).copy_from(call.input);
        at += call.input.len();
    }
}

/// Copies results from the buffer to the outputs of fused calls.
fn copy_results(calls: &[&Request<'_>], buffer: SpanMut<'_>) {
    let mut at = 0;
    for call in calls {
        call.output.copy_from(buffer.as_span().sub(at, call.output.len()));
        at += call.output.len();
    }
}
