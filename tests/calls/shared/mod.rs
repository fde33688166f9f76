//! Communicators that threads share: order, results, limits of time, aborts and ends.

mod abort;
mod calls;
mod issued;
mod recorder;
