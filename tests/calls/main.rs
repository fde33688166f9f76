//! Calls of the library: results between threads and between processes.
//!
//! | module | subject |
//! |---|---|
//! | `groups` | groups, vector forms, and disagreement between ranks |
//! | `many` | memory of a thousand ranks |
//! | `quantized` | `all_reduce` with packed messages |
//! | `raw` | calls by address |
//! | `shared` | communicators that threads share |
//! | `threads` | collectives over threads |
//! | `traces` | traces of calls |

mod groups;
#[cfg(target_os = "linux")]
mod many;
mod quantized;
mod raw;
mod shared;
mod threads;
mod traces;

/// The program under test.
#[allow(dead_code, reason = "on systems without the software device")]
const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");
