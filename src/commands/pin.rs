//! Binding of each measuring rank to its own cores, as `mpirun --bind-to core` does.
//!
//! Each rank gets one or more cores if there is one for every rank; otherwise neighboring ranks share a core.
//! Where ranks share cores, the pairing decides which plan is fastest, and the scheduler would pair them
//! differently in every run.
//!
//! A rank is bound before it joins its job where it can be, since a communicator looks once at which ranks
//! share cores.

use super::CommandError;
use std::env;
use tbccl::{Communicator, Config};

/// Joins the job of this process. `pins` binds it to its share of the cores of its host, before it joins if
/// its launcher has told it its number there.
pub(crate) fn join(config: &Config, pins: bool) -> Result<Communicator, CommandError> {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    let place = number("TBCCL_LOCAL_RANK").zip(number("TBCCL_LOCAL_SIZE")).filter(|_| pins);
    if let Some((rank, ranks)) = place {
        bind(rank, ranks);
    }
    let comm = Communicator::from_env_with(config).map_err(CommandError::new)?;
    if pins && place.is_none() {
        pin(&comm);
    }
    Ok(comm)
}

/// Binds the calling thread, which is this rank, to its share of the cores. All ranks are taken to be on this
/// host.
pub(crate) fn pin(comm: &Communicator) {
    bind(comm.rank().index(), comm.size() as usize);
}

#[cfg(target_os = "linux")]
fn bind(rank: usize, ranks: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let share = cores.len() / ranks.max(1);
    let first = if share == 0 { rank * cores.len() / ranks.max(1) } else { rank * share };
    let mut own = CpuSet::new();
    for core in cores.iter().skip(first).take(share.max(1)) {
        own.set(*core);
    }
    // A refused binding does not prevent the measurement.
    let _ = sched_setaffinity(None, &own);
}

/// No-op; this system cannot bind threads.
#[cfg(not(target_os = "linux"))]
fn bind(_rank: usize, _ranks: usize) {}
