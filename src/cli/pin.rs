//! Keeping each rank on cores of its own, as `mpirun --bind-to core` does.

use tbccl::Communicator;

/// Gives this rank, which is the calling thread, its share of the cores, if there is one for every rank.
///
/// To be called when the communicator is made: that counts the cores itself.
#[cfg(target_os = "linux")]
pub(crate) fn pin(comm: &Communicator) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let share = cores.len() / comm.size() as usize;
    if share == 0 {
        return;
    }
    let mut own = CpuSet::new();
    for core in cores.iter().skip(comm.rank().index() * share).take(share) {
        own.set(*core);
    }
    // Not being allowed to is no reason not to measure.
    let _ = sched_setaffinity(None, &own);
}

/// There is nothing like it elsewhere.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_comm: &Communicator) {}
