//! Calls of the library: their results, between threads and between processes.

#[cfg(target_os = "linux")]
mod many;
mod quantized;
mod raw;
mod shared;
mod threads;
mod together;

/// The program under test.
#[allow(dead_code, reason = "on systems without the software device")]
const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");
