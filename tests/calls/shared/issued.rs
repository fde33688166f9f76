//! Calls on vectors that stay in place until the calls are done.
//!
//! # Safety
//! A call's memory is a vector that its [`Issued`] owns, or one that is borrowed until a blocking call
//! returns. An [`Issued`] that is dropped waits for its call, or leaks the vector if the call does not finish
//! in time.

use std::{mem, time::Duration};
use tbccl::{
    CallOptions, Communicator, Config, Element, Operation, Pending, RawCall, Result, SharedCommunicator,
};

/// Time limit of waits, far longer than any wait on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Returns the ranks of a job of threads as shared communicators.
pub(crate) fn ranks(size: u32, config: &Config) -> Vec<SharedCommunicator> {
    let config = Config { slab_bytes: Some(256 << 20), ..config.clone() };
    let comms = Communicator::local(size, &config).expect("memory for a test");
    comms.into_iter().map(SharedCommunicator::new).collect()
}

/// An issued call with its memory: the output, and the input unless the call is in place.
#[derive(Debug)]
pub(crate) struct Issued<T> {
    pub(crate) pending: Pending,
    input: Vec<T>,
    output: Vec<T>,
}

impl<T: Element> Issued<T> {
    /// Waits until the call is done, and returns its output.
    pub(crate) fn finish(mut self) -> Result<Vec<T>> {
        self.pending.wait(Some(TIMEOUT)).expect("done in time")?;
        Ok(mem::take(&mut self.output))
    }

    /// Drops the pending handle, and leaks the memory, which the call still uses.
    pub(crate) fn forget(self) {
        let pending = self.pending.clone();
        mem::forget(self);
        drop(pending);
    }
}

impl<T> Drop for Issued<T> {
    fn drop(&mut self) {
        if self.pending.wait(Some(TIMEOUT)).is_none() {
            mem::forget((mem::take(&mut self.input), mem::take(&mut self.output)));
        }
    }
}

fn raw<T: Element>(operation: Operation<'static>, count: usize, send: &[T], recv: &mut [T]) -> RawCall {
    let send = if send.is_empty() { recv.as_ptr() } else { send.as_ptr() };
    RawCall { operation, dtype: T::DTYPE, count, send: send.cast(), recv: recv.as_mut_ptr().cast() }
}

/// Issues a call from one vector to another, or in place if the input is empty.
pub(crate) fn issue<T: Element>(
    comm: &SharedCommunicator,
    operation: Operation<'static>,
    (input, mut output): (Vec<T>, Vec<T>),
    options: &CallOptions,
) -> Result<Issued<T>> {
    let count = output.len();
    let call = raw(operation, count, &input, &mut output);
    // SAFETY: see the module.
    let pending = unsafe { comm.issue(vec![call], options)? };
    Ok(Issued { pending, input, output })
}

/// Makes a blocking call in place.
pub(crate) fn call<T: Element>(
    comm: &SharedCommunicator,
    operation: Operation<'static>,
    data: &mut [T],
    options: &CallOptions,
) -> Result<()> {
    let call = raw(operation, data.len(), &[], data);
    // SAFETY: see the module.
    unsafe { comm.call(&call, options) }
}

/// Makes a blocking group of calls in place, one per vector.
pub(crate) fn call_group<T: Element>(
    comm: &SharedCommunicator,
    operation: &Operation<'static>,
    data: &mut [Vec<T>],
) -> Result<()> {
    let calls: Vec<RawCall> =
        data.iter_mut().map(|data| raw(operation.clone(), data.len(), &[], data)).collect();
    // SAFETY: see the module.
    unsafe { comm.call_group(&calls, &CallOptions::default()) }
}
