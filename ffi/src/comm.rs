//! Creation and end of communicators, and queries.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::{Outcome, boundary, register_fork_handler, remember},
    cast::{fill_list, out},
    codes::{Coded, ResultCode},
    comm_handle::{Comm, HeldComm, NONE, find, find_any, give, tbcclComm_t, unknown},
    failure::Failure,
    group,
    handle::Table,
    options::{config, tbcclConfig_t},
    params::config_with,
    tbcclResult_t,
    unique_id::tbcclUniqueId,
};
use std::{ffi::c_int, mem::MaybeUninit, ptr::null_mut};
use tbccl::Communicator;

/// Makes a communicator and writes its handle, or NULL if there is none: now, or when the group ends.
pub(crate) fn make(
    place: Option<&mut MaybeUninit<tbcclComm_t>>,
    what: &str,
    job: impl FnOnce() -> Outcome<Option<Communicator>> + Send + 'static,
) -> Outcome {
    let place = out(what, place)?;
    place.write(NONE);
    register_fork_handler();
    let job = move || job()?.map_or(Ok(NONE), |made| give(Comm::new(made)));
    if group::is_open() {
        return group::defer_init(place, job);
    }
    place.write(job()?);
    Ok(())
}

pub(crate) fn rank_and_size(rank: c_int, nranks: c_int) -> Outcome<(u32, u32)> {
    match (u32::try_from(rank), u32::try_from(nranks)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::argument(format!("rank {rank} of {nranks}: ranks are numbered from 0"))),
    }
}

/// Makes a communicator of nranks ranks, which all call this with the same id; this one is number rank. Waits
/// for the others. Within a group, one thread may make those of several ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommInitRank(
    comm: Option<&mut MaybeUninit<tbcclComm_t>>,
    nranks: c_int,
    commId: tbcclUniqueId,
    rank: c_int,
) -> tbcclResult_t {
    // SAFETY: the caller promises the same.
    unsafe { tbcclCommInitRankConfig(comm, nranks, commId, rank, null_mut()) }
}

/// As tbcclCommInitRank, with options; NULL for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommInitRankConfig(
    comm: Option<&mut MaybeUninit<tbcclComm_t>>,
    nranks: c_int,
    commId: tbcclUniqueId,
    rank: c_int,
    config: *mut tbcclConfig_t,
) -> tbcclResult_t {
    group::call(|| {
        let (rank, size) = rank_and_size(rank, nranks)?;
        let id = commId.read()?;
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let config = unsafe { self::config(config)? };
        make(comm, "comm", move || Ok(Some(Communicator::from_unique_id(&id, rank, size, &config)?)))
    })
}

/// Makes a communicator of ndev ranks that are all in this process, and writes each rank's handle to comms.
/// Each handle is for a thread of its own; one thread may use several within groups. devlist is ignored and
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommInitAll(
    comms: *mut tbcclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> tbcclResult_t {
    let _ = devlist;
    boundary(|| {
        if comms.is_null() {
            return Err(Failure::argument("comms is NULL"));
        }
        let ranks = u32::try_from(ndev)
            .map_err(|_| Failure::argument(format!("ndev is {ndev}; it must be at least 1")))?;
        register_fork_handler();
        let made = Communicator::local(ranks, &config_with([])?)?;
        let handles = made.into_iter().map(|made| give(Comm::new(made))).collect::<Outcome<Vec<_>>>()?;
        // SAFETY: as `tbccl.h` says, there is room for one handle of each rank.
        unsafe { fill_list("comms", comms, &handles) }
    })
}

/// Makes the communicator of the job whose launcher has started this process: `tbccl run`, torchrun, mpirun
/// of Open MPI and MPICH, or Slurm. The config may be NULL. Waits for the other ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommInitFromEnv(
    comm: Option<&mut MaybeUninit<tbcclComm_t>>,
    config: *mut tbcclConfig_t,
) -> tbcclResult_t {
    group::call(|| {
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let config = unsafe { self::config(config)? };
        make(comm, "comm", move || Ok(Some(Communicator::from_env_with(&config)?)))
    })
}

/// Waits until all issued calls are done, and closes the communicator: no more calls after that. Returns the
/// error that it had failed with, if it had. The handle is still to be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommFinalize(comm: tbcclComm_t) -> tbcclResult_t {
    boundary(|| close(&find(comm)?))
}

/// Ends a communicator, after its issued calls are done, and its handle. Does not wait for other ranks, with
/// one exception: if the ranks of a communicator met in this process, the last communicator of the process
/// waits until the others have ended theirs, within the timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommDestroy(comm: tbcclComm_t) -> tbcclResult_t {
    boundary(|| {
        let found = find_any(comm)?;
        if !Table::close(&found.held) {
            return Err(unknown(comm));
        }
        if found.held.of.is_none() {
            // Calls or requests have reported the failure before.
            let _ = close(&found);
        }
        Ok(())
    })
}

fn close(found: &HeldComm) -> Outcome {
    Ok(found.shared.finalize()?)
}

/// Aborts a communicator, promptly and from any thread: calls in progress and all later ones return
/// tbcclAborted here, and an error on the other ranks. The handle is still to be destroyed; until then
/// tbcclCommShrink makes a new communicator from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommAbort(comm: tbcclComm_t) -> tbcclResult_t {
    boundary(|| {
        find(comm)?.shared.abort();
        Ok(())
    })
}

/// Tells the error that the communicator has failed with; tbcclSuccess if it has not. It becomes this
/// thread's latest error, for tbcclGetLastError.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommGetAsyncError(
    comm: tbcclComm_t,
    asyncError: Option<&mut MaybeUninit<tbcclResult_t>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("asyncError", asyncError)?;
        let error = find(comm)?.shared.async_error();
        place.write(error.map_or(ResultCode::Success.code(), |error| remember(error.into())));
        Ok(())
    })
}

/// Tells the number of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommCount(
    comm: tbcclComm_t,
    count: Option<&mut MaybeUninit<c_int>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("count", count)?;
        place.write(find(comm)?.shared.size() as c_int);
        Ok(())
    })
}

/// Tells which rank this is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommUserRank(
    comm: tbcclComm_t,
    rank: Option<&mut MaybeUninit<c_int>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("rank", rank)?;
        place.write(find(comm)?.shared.rank().0 as c_int);
        Ok(())
    })
}
