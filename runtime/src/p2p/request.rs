//! The program's handle of a send or receive.

use super::{Core, Delivery, state::RequestState};
use crate::error::Result;
use std::{sync::Arc, time::Duration};

/// A send or receive in flight. Dropping it does not cancel the operation: the memory stays in use until it
/// completes or its [`super::P2p`] is closed.
#[derive(Debug)]
#[must_use = "the message's memory is in use until this says that it is done"]
pub struct P2pRequest(State);

#[derive(Debug)]
enum State {
    Done(Result<Delivery>),
    Pending(Arc<RequestState>, Arc<Core>),
}

impl P2pRequest {
    pub(super) fn done(result: Result<Delivery>) -> P2pRequest {
        P2pRequest(State::Done(result))
    }

    pub(super) fn pending(state: Arc<RequestState>, core: Arc<Core>) -> P2pRequest {
        P2pRequest(State::Pending(state, core))
    }

    /// Returns the state of a request that was not complete when it was made.
    pub(super) fn state(&self) -> Option<&Arc<RequestState>> {
        match &self.0 {
            State::Done(_) => None,
            State::Pending(state, _) => Some(state),
        }
    }

    /// Returns the result if the request is complete, after one progress step. Once complete, the result
    /// stays the same.
    #[must_use]
    pub fn test(&self) -> Option<Result<Delivery>> {
        match &self.0 {
            State::Done(result) => Some(result.clone()),
            State::Pending(state, core) => state.result().or_else(|| core.test(state)),
        }
    }

    /// Waits until the request is complete, for up to `timeout` or without limit, and progresses messages
    /// meanwhile. Returns `None` if it is not complete in time. A request that makes no progress for the
    /// communicator's time limit while it is waited for fails all messages of this rank.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<Delivery>> {
        match &self.0 {
            State::Done(result) => Some(result.clone()),
            State::Pending(state, core) => state.result().or_else(|| core.wait(state, timeout)),
        }
    }
}
