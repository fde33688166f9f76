//! What whoever has sent or received a message holds until that is done.

use super::{Core, Delivery, state::RequestState};
use crate::error::Result;
use std::{sync::Arc, time::Duration};

/// A message that is being sent or received. Dropping it calls nothing back: the memory is in use until the message is done or
/// its [`super::Mail`] has gone, whoever looks.
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

    /// What has become of the message, if it is done; does a little of what there is to do before it looks. Once it has told,
    /// it tells the same again.
    #[must_use]
    pub fn test(&self) -> Option<Result<Delivery>> {
        match &self.0 {
            State::Done(result) => Some(result.clone()),
            State::Pending(state, core) => state.result().or_else(|| core.test(state)),
        }
    }

    /// Waits until the message is done, for so long at most or without limit, and moves mail on this thread meanwhile. `None`:
    /// not done in time. Once the message has not moved for the communicator's time limit while somebody waits for it, all
    /// mail of this rank fails.
    #[must_use]
    pub fn wait(&self, most: Option<Duration>) -> Option<Result<Delivery>> {
        match &self.0 {
            State::Done(result) => Some(result.clone()),
            State::Pending(state, core) => state.result().or_else(|| core.wait(state, most)),
        }
    }
}
