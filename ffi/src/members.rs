//! Communicators made from others: by splitting, shrinking and growing.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::boundary,
    cast::{list, out},
    comm::{make, rank_and_size},
    comm_handle::{self, tbcclComm_t},
    failure::Failure,
    group,
    options::{config, tbcclConfig_t},
    tbcclResult_t,
    unique_id::tbcclUniqueId,
};
use std::{ffi::c_int, mem::MaybeUninit};
use tbccl::{Communicator, Rank};

/// The color of a rank that takes part in a split and gets no communicator.
pub const TBCCL_SPLIT_NOCOLOR: i32 = -1;

/// Shrink without aborting calls.
pub const TBCCL_SHRINK_DEFAULT: i32 = 0;
/// Abort calls in progress first.
pub const TBCCL_SHRINK_ABORT: i32 = 1;

/// Splits a communicator: makes one of the ranks of each color, ordered by key, and by rank where keys are
/// equal. All ranks call it. Ranks of color TBCCL_SPLIT_NOCOLOR get NULL. The config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommSplit(
    comm: tbcclComm_t,
    color: c_int,
    key: c_int,
    newcomm: Option<&mut MaybeUninit<tbcclComm_t>>,
    config: *mut tbcclConfig_t,
) -> tbcclResult_t {
    group::call(|| {
        let found = comm_handle::find(comm)?;
        let color = match color {
            TBCCL_SPLIT_NOCOLOR => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Failure::argument(format!("color is {color}; it is at least 0, or TBCCL_SPLIT_NOCOLOR"))
            })?),
        };
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let config = unsafe { self::config(config)? };
        make(newcomm, "newcomm", move || Ok(found.shared.with(|comm| comm.split(color, key, &config))??))
    })
}

/// Makes a communicator from another one, without some of its ranks. The other ranks call it with the same
/// list, also after the communicator has failed or was aborted. The config may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommShrink(
    comm: tbcclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: Option<&mut MaybeUninit<tbcclComm_t>>,
    config: *mut tbcclConfig_t,
    shrinkFlags: c_int,
) -> tbcclResult_t {
    group::call(|| {
        let found = comm_handle::find(comm)?;
        if !matches!(shrinkFlags, TBCCL_SHRINK_DEFAULT | TBCCL_SHRINK_ABORT) {
            return Err(Failure::argument(format!(
                "shrinkFlags is {shrinkFlags}, which is no TBCCL_SHRINK flag"
            )));
        }
        let count = usize::try_from(excludeRanksCount).map_err(|_| {
            Failure::argument(format!("excludeRanksCount is {excludeRanksCount}; it can't be negative"))
        })?;
        if count > found.shared.size() as usize {
            return Err(Failure::argument(format!(
                "excludeRanksCount is {count}; there are not as many ranks"
            )));
        }
        // SAFETY: as `tbccl.h` says, it is null or a list of `count` ranks.
        let ranks = unsafe { list("excludeRanksList", excludeRanksList.cast_const(), count)? };
        let without = ranks.iter().map(|rank| member(*rank)).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let config = unsafe { self::config(config)? };
        if shrinkFlags == TBCCL_SHRINK_ABORT {
            found.shared.abort();
        }
        make(newcomm, "newcomm", move || Ok(Some(found.shared.with(|comm| comm.shrink(&without, &config))??)))
    })
}

fn member(rank: c_int) -> Result<Rank, Failure> {
    let rank = u32::try_from(rank)
        .map_err(|_| Failure::argument(format!("excludeRanksList has {rank}, which is no rank")))?;
    Ok(Rank(rank))
}

/// Makes an id with which a communicator grows. One of its ranks makes the id, passes it to tbcclCommGrow,
/// and sends it to the new ranks, which do the same. An id is for one growth.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommGetUniqueId(
    comm: tbcclComm_t,
    uniqueId: Option<&mut MaybeUninit<tbcclUniqueId>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("uniqueId", uniqueId)?;
        let id = comm_handle::find(comm)?.shared.with(Communicator::grow_id)??;
        place.write((&id).into());
        Ok(())
    })
}

/// Makes a communicator of nRanks ranks: those of another one, which keep their numbers, and new ones.
/// Existing ranks call it with their communicator and rank -1, one of them with the id and the others with
/// NULL. New ranks call it with comm NULL, the id, and their rank. All pass the same config, which may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommGrow(
    comm: tbcclComm_t,
    nRanks: c_int,
    uniqueId: Option<&tbcclUniqueId>,
    rank: c_int,
    newcomm: Option<&mut MaybeUninit<tbcclComm_t>>,
    config: *mut tbcclConfig_t,
) -> tbcclResult_t {
    group::call(|| {
        let size = u32::try_from(nRanks).map_err(|_| Failure::argument(format!("nRanks is {nRanks}")))?;
        let id = uniqueId.map(tbcclUniqueId::read).transpose()?;
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let config = unsafe { self::config(config)? };
        if comm.is_null() {
            let id = id.ok_or_else(|| Failure::argument("uniqueId is NULL; a new rank needs it"))?;
            let (rank, size) = rank_and_size(rank, nRanks)?;
            return make(newcomm, "newcomm", move || {
                Ok(Some(Communicator::from_unique_id(&id, rank, size, &config)?))
            });
        }
        let found = comm_handle::find(comm)?;
        if rank != -1 {
            return Err(Failure::argument(format!("rank is {rank}; existing ranks pass -1")));
        }
        make(newcomm, "newcomm", move || {
            Ok(Some(found.shared.with(|comm| comm.grow(id.as_ref(), size, &config))??))
        })
    })
}
