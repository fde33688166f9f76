//! The speed of links and memory by themselves, written into the file for people and for models.

use super::super::{Failed, bench::measure::all_max, ping::measure::first_pair};
use super::halving::median;
use collectives::select::Links;
use std::time::{Duration, Instant};
use tbccl::{Communicator, ReduceOp, kernels};

/// Bytes of a message, and of what is summed and copied.
const BYTES: usize = 4 << 20;
/// Sums and copies, at least and at most.
const ROUNDS: (usize, usize) = (5, 200);

/// Measures them, as one of the ranks; the same on all.
pub(super) fn measure(comm: &mut Communicator, time: Duration) -> Result<Links, Failed> {
    let failed = |error: tbccl::Error| Failed::new(format_args!("measuring links: {error}"));
    let mut memory = comm.alloc::<u8>(BYTES).map_err(failed)?;
    // Pages that were never written are all one page.
    memory.fill(1);
    let (latency_us, gbs) = first_pair(comm, time, &mut memory)?;
    comm.barrier().map_err(failed)?;
    let with = vec![1.0f32; BYTES / 4];
    let mut sums = vec![1.0f32; BYTES / 4];
    let reducing = seconds(time, || {
        // Sums of floats are defined.
        let _ = kernels::combine(&mut sums, &with, ReduceOp::Sum);
    });
    let copying = seconds(time, || sums.copy_from_slice(std::hint::black_box(&with)));
    let mut slowest = [reducing, copying];
    all_max(comm, &mut slowest).map_err(failed)?;
    let [reduce_gbs, copy_gbs] = slowest.map(|seconds| BYTES as f64 / seconds / 1e9);
    let short = |number: f64| (number * 1000.0).round() / 1000.0;
    Ok(Links {
        latency_us: short(latency_us),
        gbs: short(gbs),
        reduce_gbs: short(reduce_gbs),
        copy_gbs: short(copy_gbs),
    })
}

/// The median seconds of a piece of work.
fn seconds(time: Duration, mut work: impl FnMut()) -> f64 {
    work();
    let (fewest, most) = ROUNDS;
    let (start, mut taken) = (Instant::now(), Vec::new());
    while taken.len() < fewest || start.elapsed() < time && taken.len() < most {
        let begin = Instant::now();
        work();
        taken.push(begin.elapsed().as_secs_f64());
    }
    median(&taken).max(1e-9)
}
