//! Calls and messages in progress.

use std::{sync::Arc, time::Duration};
use tbccl::{Delivery, Error, P2pRequest, Pending};

/// Calls, or a message, in progress.
#[derive(Clone, Debug)]
pub(crate) enum InFlight {
    Calls(Pending),
    Message(Arc<P2pRequest>),
}

impl InFlight {
    /// Returns the result if the operation is done; that of a message has its delivery.
    pub(crate) fn test(&self) -> Option<Result<Option<Delivery>, Error>> {
        match self {
            InFlight::Calls(pending) => pending.test().map(|result| result.map(|()| None)),
            InFlight::Message(request) => request.test().map(|result| result.map(Some)),
        }
    }

    /// Makes calls on this thread if no other thread is making them, and returns their result. `None` for a
    /// message, and for calls in progress.
    pub(crate) fn run_here(&self) -> Option<Result<Option<Delivery>, Error>> {
        let InFlight::Calls(pending) = self else { return None };
        pending.run_here();
        self.test()
    }

    /// Waits for a result for up to `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Result<Option<Delivery>, Error>> {
        match self {
            InFlight::Calls(pending) => pending.wait(Some(timeout)).map(|result| result.map(|()| None)),
            InFlight::Message(request) => request.wait(Some(timeout)).map(|result| result.map(Some)),
        }
    }
}
