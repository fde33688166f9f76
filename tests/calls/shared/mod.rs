//! Communicators that threads share: order, results, time limits, aborts and ends.
//!
//! | module | subject |
//! |---|---|
//! | `abort` | aborts from another thread |
//! | `calls` | order and results of issued calls |
//! | `issued` | helpers: calls that own their memory |
//! | `recorder` | the flight recorder |

mod abort;
mod calls;
mod issued;
mod recorder;
