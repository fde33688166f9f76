//! Groups of calls, and the issuing of every call.
//!
//! Between `tbcclGroupStart` and `tbcclGroupEnd` a thread's calls are collected. At the end, the group's
//! communicators are made first, each on a thread of its own, since they wait for each other. Then each
//! communicator gets its calls as one group. Only when all communicators have theirs, those without a request
//! are waited for: so one thread may be several ranks.
//!
//! A call that is refused fails the group: none of its calls is carried out, and their requests report the
//! error. The group ends in any case.
//!
//! # Safety
//! Calls are issued on memory whose addresses C has passed. `tbccl.h` asks that nothing else uses the memory
//! until the call is done: until the function returns, the group ends, or the request is done.

use crate::{
    arguments::Arguments,
    boundary::{Outcome, boundary},
    cast::DeferredOut,
    comm_handle::{self, HeldComm, tbcclComm_t},
    failure::Failure,
    handle::Key,
    request::{self, RequestState, tbcclRequest_t},
    tbcclResult_t,
};
use std::{
    cell::{Cell, RefCell},
    mem::{MaybeUninit, take},
    sync::Arc,
    thread,
};
use tbccl::{CallOptions, Pending, RawCall, SharedCommunicator};

/// Calls of a thread since its group began.
#[derive(Default)]
struct Group {
    made: Vec<PendingComm>,
    calls: Vec<CommCalls>,
    refused: Option<Failure>,
}

/// A communicator to be made.
struct PendingComm {
    place: DeferredOut<tbcclComm_t>,
    job: Box<dyn FnOnce() -> Outcome<tbcclComm_t> + Send>,
}

/// Calls on one communicator.
struct CommCalls {
    comm: Key,
    shared: SharedCommunicator,
    options: CallOptions,
    calls: Vec<RawCall>,
    states: Vec<Arc<RequestState>>,
    /// Whether a call has no request.
    is_waited_for: bool,
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Whether this thread collects calls.
#[inline]
pub(crate) fn is_open() -> bool {
    DEPTH.get() > 0
}

/// Runs a function that may be called in a group; its error fails the group.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> tbcclResult_t {
    boundary(|| {
        let done = body();
        if let Err(failure) = &done
            && is_open()
        {
            refuse(failure);
        }
        done
    })
}

#[cold]
fn refuse(failure: &Failure) {
    GROUP.with_borrow_mut(|group| {
        group.refused.get_or_insert_with(|| failure.clone());
    });
}

/// Defers the making of a communicator to the end of the group.
pub(crate) fn defer_init(
    place: &mut MaybeUninit<tbcclComm_t>,
    job: impl FnOnce() -> Outcome<tbcclComm_t> + Send + 'static,
) -> Outcome {
    let make = PendingComm { place: DeferredOut::new(place), job: Box::new(job) };
    GROUP.with_borrow_mut(|group| group.made.push(make));
    Ok(())
}

/// Issues a call: adds it to this thread's group, issues it with a request, or carries it out.
#[inline(always)] // As `tbccl::RawAllReduce`.
pub(crate) fn issue(
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
    arguments: Arguments,
) -> tbcclResult_t {
    call(|| {
        if request.is_none()
            && !is_open()
            && let Some(call) = arguments.as_all_reduce()
            // SAFETY: as `tbccl.h` says, the memory is as the call needs it until this returns.
            && let Some(done) = unsafe { comm_handle::try_call(comm, |_| Ok(call)) }
        {
            return done;
        }
        // Copies the arguments here, so that they stay in registers on the fast path above.
        let copy = arguments;
        issue_general(comm, request, &copy)
    })
}

/// Issues any call.
#[inline(never)]
fn issue_general(
    comm: tbcclComm_t,
    mut request: Option<&mut MaybeUninit<tbcclRequest_t>>,
    arguments: &Arguments,
) -> Outcome {
    if request.is_none()
        && !is_open()
        // SAFETY: as `tbccl.h` says, the memory is as the call needs it until this returns.
        && let Some(done) = unsafe { comm_handle::try_call(comm, |found| arguments.describe(found)) }
    {
        return done;
    }
    if let Some(place) = &mut request {
        place.write(request::NONE);
    }
    let found = comm_handle::find(comm)?;
    let call = arguments.describe(found.at())?;
    if is_open() {
        return add(&found, request, call);
    }
    let Some(place) = request else {
        // SAFETY: as `tbccl.h` says, the memory is as the call needs it until this returns.
        unsafe { found.shared.call(&call, &found.options)? };
        return Ok(());
    };
    // SAFETY: as `tbccl.h` says, the memory is as the call needs it until the request is done.
    let pending = unsafe { found.shared.issue(vec![call], &found.options)? };
    let state = Arc::new(RequestState::default());
    state.settle(Ok(Arc::new(pending)));
    place.write(request::give(state)?);
    Ok(())
}

/// Adds a call to this thread's group.
fn add(found: &HeldComm, place: Option<&mut MaybeUninit<tbcclRequest_t>>, call: RawCall) -> Outcome {
    GROUP.with_borrow_mut(|group| {
        let key = found.first();
        let at = group.calls.iter().position(|of| of.comm == key).unwrap_or_else(|| {
            let (shared, options) = (found.shared.clone(), found.options.clone());
            let (calls, states) = (Vec::new(), Vec::new());
            group.calls.push(CommCalls { comm: key, shared, options, calls, states, is_waited_for: false });
            group.calls.len() - 1
        });
        let of = &mut group.calls[at];
        if of.options != found.options {
            return Err(Failure::usage(
                "a group has calls on one communicator with different options; make it of one handle",
            ));
        }
        match place {
            None => of.is_waited_for = true,
            Some(place) => {
                let state = Arc::new(RequestState::default());
                place.write(request::give(Arc::clone(&state))?);
                of.states.push(state);
            }
        }
        of.calls.push(call);
        Ok(())
    })
}

/// Begins a group on this thread: its calls are collected until tbcclGroupEnd, and then go together. Groups
/// may be nested; the outermost one counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGroupStart() -> tbcclResult_t {
    boundary(|| {
        let depth = DEPTH.get().checked_add(1).ok_or_else(|| Failure::usage("groups are nested too deep"))?;
        DEPTH.set(depth);
        Ok(())
    })
}

/// Ends a group: makes its communicators, issues its calls, and waits for all calls on communicators of which
/// a call has no request. Returns the first error. None of the calls is carried out if one was refused when
/// it was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGroupEnd() -> tbcclResult_t {
    boundary(|| match DEPTH.get() {
        0 => Err(Failure::usage("there is no group to end on this thread")),
        1 => {
            DEPTH.set(0);
            GROUP.take().run()
        }
        depth => {
            DEPTH.set(depth - 1);
            Ok(())
        }
    })
}

impl Group {
    fn run(mut self) -> Outcome {
        if let Some(failure) = self.refused {
            let states = self.calls.iter().flat_map(|of| &of.states);
            states.for_each(|state| state.settle(Err(failure.clone())));
            return Err(failure);
        }
        let made = init_all(take(&mut self.made));
        if let [of] = &self.calls[..]
            && of.states.is_empty()
        {
            // SAFETY: as `tbccl.h` says, the memory is as the calls need it until the group ends.
            let done = unsafe { of.shared.call_group(&of.calls, &of.options) };
            return made.and(done.map_err(Failure::from));
        }
        let issued: Vec<_> = self.calls.into_iter().map(CommCalls::issue).collect();
        let done = issued.into_iter().map(|pending| match pending? {
            Some(pending) => Ok(pending.wait(None).unwrap_or(Ok(()))?),
            None => Ok(()),
        });
        // Waits for all calls, even if the first has failed.
        let done: Vec<Outcome> = done.collect();
        made.and(done.into_iter().collect())
    }
}

/// Makes communicators that may wait for each other.
fn init_all(mut made: Vec<PendingComm>) -> Outcome {
    if made.len() == 1 {
        let PendingComm { place, job } = made.remove(0);
        place.put(job()?);
        return Ok(());
    }
    let made: Vec<Outcome> = thread::scope(|scope| {
        let threads: Vec<_> = made
            .into_iter()
            .map(|PendingComm { place, job }| {
                let builder = thread::Builder::new().name("tbccl-init".into());
                let run = move || {
                    let made = job()?;
                    place.put(made);
                    Ok(())
                };
                builder.spawn_scoped(scope, run)
            })
            .collect();
        let ended = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(Failure::internal("a panic"))),
            Err(error) => Err(Failure::system(format!("starting a thread: {error}"))),
        });
        ended.collect()
    });
    made.into_iter().collect()
}

impl CommCalls {
    /// Issues the calls; returns the pending group if it must be waited for.
    fn issue(self) -> Outcome<Option<Arc<Pending>>> {
        let CommCalls { shared, options, calls, states, is_waited_for, .. } = self;
        // SAFETY: as `tbccl.h` says, the memory is as the calls need it until the group ends, or their
        // requests are done.
        let issued = unsafe { shared.issue(calls, &options) };
        let issued = issued.map(Arc::new).map_err(Failure::from);
        states.iter().for_each(|state| state.settle(issued.clone()));
        let pending = issued?;
        Ok(is_waited_for.then_some(pending))
    }
}
