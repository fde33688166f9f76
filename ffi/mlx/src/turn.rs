//! Turns of the threads of a rank on a core that they share.
//!
//! MLX queues the parts of an evaluation one by one, on the program's thread, and a stream's thread runs
//! them. On a shared core the system lets the stream's thread run as soon as the first part is queued. A call
//! whose messages have come already ends at once then, the thread sleeps until the next part is queued, and
//! each part costs two changes of threads: 33 us for an `all_sum` instead of 7. So a thread that has had
//! nothing to do gives way once before its call, and finds the other parts queued after it.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

/// Longest time from the end of a call to the beginning of one that was queued behind it.
const REST: Duration = Duration::from_nanos(2500);

thread_local! {
    /// Time at which the last call of this thread ended.
    static LAST_END: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Gives way to the thread that queued a call, if the calling thread has rested since its last one.
#[inline]
pub(crate) fn give_way() {
    if has_rested(LAST_END.get(), Instant::now()) {
        thread::yield_now();
    }
}

/// Notes that a call of the calling thread ends now.
#[inline]
pub(crate) fn note_end() {
    LAST_END.set(Some(Instant::now()));
}

fn has_rested(last_end: Option<Instant>, now: Instant) -> bool {
    last_end.is_none_or(|end| now.saturating_duration_since(end) > REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_rests_between_evaluations_and_not_between_queued_calls() {
        let end = Instant::now();
        assert!(has_rested(None, end), "before its first call");
        assert!(!has_rested(Some(end), end + Duration::from_micros(1)));
        assert!(has_rested(Some(end), end + Duration::from_micros(6)));
    }
}
