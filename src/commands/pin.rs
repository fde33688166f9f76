//! Keeping each rank on cores of its own, as `mpirun --bind-to core` does.

use tbccl::Communicator;

/// Binds this rank, which is the calling thread, to its share of the cores: one or more if there is one for
/// every rank, else one that it shares with its neighbors. Where ranks share cores, the pairing decides which
/// plan is fastest, and the system would pair ranks differently in every run.
///
/// Call it when the communicator has been made, which counts the cores itself.
#[cfg(target_os = "linux")]
pub(crate) fn pin(comm: &Communicator) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let (rank, ranks) = (comm.rank().index(), comm.size() as usize);
    let share = cores.len() / ranks;
    let first = if share == 0 { rank * cores.len() / ranks } else { rank * share };
    let mut own = CpuSet::new();
    for core in cores.iter().skip(first).take(share.max(1)) {
        own.set(*core);
    }
    // Not being allowed to is no reason not to measure.
    let _ = sched_setaffinity(None, &own);
}

/// There is nothing like it elsewhere.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_comm: &Communicator) {}
