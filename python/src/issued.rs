//! Calls and messages in progress.

use std::{sync::Arc, time::Duration};
use tbccl::{Delivery, Error, P2pRequest, Pending};

/// Calls, or a message, in progress.
#[derive(Clone, Debug)]
pub(crate) enum Issued {
    Calls(Pending),
    P2pRequest(Arc<P2pRequest>),
}

impl Issued {
    /// Returns the result, if it is done; with the delivery, for a message.
    pub(crate) fn test(&self) -> Option<Result<Option<Delivery>, Error>> {
        match self {
            Issued::Calls(pending) => pending.test().map(|result| result.map(|()| None)),
            Issued::P2pRequest(request) => request.test().map(|result| result.map(Some)),
        }
    }

    pub(crate) fn wait(&self, most: Duration) -> Option<Result<Option<Delivery>, Error>> {
        match self {
            Issued::Calls(pending) => pending.wait(Some(most)).map(|result| result.map(|()| None)),
            Issued::P2pRequest(request) => request.wait(Some(most)).map(|result| result.map(Some)),
        }
    }
}
