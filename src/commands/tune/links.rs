//! Speed of links and memory alone, written into the file for readers and models.

use super::super::{CommandError, bench::measure::all_max, ping::measure::measure_first_pair};
use super::successive_halving::median;
use collectives::select::Links;
use std::time::{Duration, Instant};
use tbccl::{Communicator, ReduceOp, kernels};

/// Bytes of a message, and of the summed and copied arrays.
const SIZE_BYTES: usize = 4 << 20;
/// Minimum and maximum number of sums and copies.
const ROUNDS: (usize, usize) = (5, 200);

/// Measures links and memory as one of the ranks; the result is the same on all.
pub(super) fn measure(comm: &mut Communicator, time: Duration) -> Result<Links, CommandError> {
    let failed = |error: tbccl::Error| CommandError::new(format_args!("measuring links: {error}"));
    let mut memory = comm.alloc::<u8>(SIZE_BYTES).map_err(failed)?;
    // Unwritten pages all map to the same zero page.
    memory.fill(1);
    let (latency_us, gbs) = measure_first_pair(comm, time, &mut memory)?;
    comm.barrier().map_err(failed)?;
    let with = vec![1.0f32; SIZE_BYTES / 4];
    let mut sums = vec![1.0f32; SIZE_BYTES / 4];
    let reducing = seconds(time, || {
        // Sums of floats are always supported.
        let _ = kernels::combine(&mut sums, &with, ReduceOp::Sum);
    });
    let copying = seconds(time, || sums.copy_from_slice(std::hint::black_box(&with)));
    let mut slowest = [reducing, copying];
    all_max(comm, &mut slowest).map_err(failed)?;
    let [reduce_gbs, copy_gbs] = slowest.map(|seconds| SIZE_BYTES as f64 / seconds / 1e9);
    let short = |number: f64| (number * 1000.0).round() / 1000.0;
    Ok(Links {
        latency_us: short(latency_us),
        gbs: short(gbs),
        reduce_gbs: short(reduce_gbs),
        copy_gbs: short(copy_gbs),
    })
}

/// Returns the median seconds of `work`.
fn seconds(time: Duration, mut work: impl FnMut()) -> f64 {
    work();
    let (min, max) = ROUNDS;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < min || start.elapsed() < time && samples.len() < max {
        let begin = Instant::now();
        work();
        samples.push(begin.elapsed().as_secs_f64());
    }
    median(&samples).max(1e-9)
}
