//! Binding of each measuring rank to its own cores, as `mpirun --bind-to core` does.

use tbccl::Communicator;

/// Binds the calling thread, which is this rank, to its share of the cores.
///
/// Each rank gets one or more cores if there is one for every rank; otherwise neighboring ranks share a core.
/// Where ranks share cores, the pairing decides which plan is fastest, and the scheduler would pair them
/// differently in every run.
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
    // A refused binding does not prevent the measurement.
    let _ = sched_setaffinity(None, &own);
}

/// No-op; this system cannot bind threads.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_comm: &Communicator) {}
