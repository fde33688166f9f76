//! Complete messages in the trace of their communicator, if it has one.
//!
//! A message lasts from its request to its completion. Requests that fail are not recorded: they complete
//! together, with the error that is in the file.

use super::{Delivery, state::RequestInfo};
use crate::{
    call::CallKind,
    error::Result,
    trace::{TaggedEvent, Trace},
};
use std::sync::Arc;

/// The trace that messages are recorded in.
#[derive(Debug)]
pub(super) struct Records(Option<Arc<Trace>>);

impl Records {
    pub(super) fn new(trace: Option<Arc<Trace>>) -> Records {
        Records(trace)
    }

    /// Returns the time on the trace's clock for the begin of a request; 0 without a trace.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.0.as_ref().map_or(0, |trace| trace.now())
    }

    /// Records a complete request.
    #[inline]
    pub(super) fn completed(&self, info: &RequestInfo, result: &Result<Delivery>) {
        if let (Some(trace), Ok(delivery)) = (&self.0, result) {
            record(trace, info, delivery);
        }
    }
}

#[cold]
fn record(trace: &Trace, info: &RequestInfo, delivery: &Delivery) {
    let is_send = info.kind == CallKind::Send;
    let mut tape = trace.tape();
    tape.relate_clock();
    tape.tagged(TaggedEvent {
        begin: info.began,
        end: trace.now(),
        request: info.number,
        is_send,
        peer: info.peer.filter(|_| is_send).unwrap_or(delivery.from),
        context: info.context,
        tag: delivery.tag,
        bytes: delivery.bytes as u64,
    });
}
