//! The wait of the call in progress, for reports of a hang: published by the thread that makes the call, read
//! by any other one.

use crate::{sync::locked, why::Wait};
use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Instant,
};

/// The wait of the call in progress, published on request.
#[derive(Debug, Default)]
pub(super) struct WaitCell {
    published: Mutex<Published>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Published {
    /// Number of publications.
    count: u64,
    /// The latest one.
    wait: Option<Wait>,
    /// Whether it holds until it is released: the thread that makes the call is about to ask others.
    holds: bool,
}

impl WaitCell {
    /// Publishes the wait; `None` for a call that moves.
    pub(super) fn publish(&self, wait: Option<Wait>) {
        let mut published = locked(&self.published);
        *published = Published { count: published.count + 1, wait, holds: false };
        self.changed.notify_all();
    }

    /// Publishes a wait that holds until it is released.
    pub(super) fn hold(&self, wait: Option<Wait>) {
        self.publish(wait);
        locked(&self.published).holds = true;
    }

    /// Ends the time for which a wait holds. The call publishes again on request.
    pub(super) fn release(&self) {
        locked(&self.published).holds = false;
    }

    /// Returns the number of publications so far.
    pub(super) fn count(&self) -> u64 {
        locked(&self.published).count
    }

    /// Returns the wait that is published after the first `count` ones and before the deadline, if any is.
    pub(super) fn after(&self, count: u64, deadline: Instant) -> Option<Wait> {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_old = |published: &mut Published| published.count == count && !published.holds;
        let (mut published, _) = self
            .changed
            .wait_timeout_while(locked(&self.published), left, is_old)
            .unwrap_or_else(PoisonError::into_inner);
        if is_old(&mut published) { None } else { published.wait.clone() }
    }
}
