//! Waits of the calling thread, in whose midst Python may run a signal handler.
//!
//! The handler runs on the waiting thread, and that wait goes on when the handler has returned. A call of the
//! handler that waits for the interrupted call would therefore never end. So each thread lists its waits, by
//! the address of the communicator's state.
//!
//! This module does not decide which calls a handler may make: `state` does.

use std::cell::RefCell;

/// Kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Wait of a call that may run on this thread. Other calls of the communicator run after it.
    Call,
    /// Wait for another thread, or for a message. Other calls of the communicator progress meanwhile.
    Other,
}

thread_local! {
    /// Waits of this thread as communicator and kind, the innermost last.
    static WAITS: RefCell<Vec<(usize, WaitKind)>> = const { RefCell::new(Vec::new()) };
}

/// A listed wait; dropping it removes it from the list.
#[derive(Debug)]
pub(crate) struct WaitGuard(());

impl WaitGuard {
    /// Lists a wait on a communicator as the innermost one.
    #[inline]
    pub(crate) fn new(communicator: usize, kind: WaitKind) -> WaitGuard {
        WAITS.with_borrow_mut(|waits| waits.push((communicator, kind)));
        WaitGuard(())
    }
}

impl Drop for WaitGuard {
    #[inline]
    fn drop(&mut self) {
        WAITS.with_borrow_mut(Vec::pop);
    }
}

/// Whether this thread waits on a communicator, for one kind of wait or for any.
#[inline]
pub(crate) fn is_waiting(communicator: usize, kind: Option<WaitKind>) -> bool {
    let is_wanted =
        |wait: &(usize, WaitKind)| wait.0 == communicator && kind.is_none_or(|kind| kind == wait.1);
    WAITS.with_borrow(|waits| waits.iter().any(is_wanted))
}

/// Whether the innermost wait of this thread is that of a call.
pub(crate) fn is_in_call() -> bool {
    WAITS.with_borrow(|waits| waits.last().is_some_and(|(_, kind)| *kind == WaitKind::Call))
}
