//! Unique ids: the rendezvous of ranks without a launcher.
//!
//! # Safety
//! The only unsafe act here is to export a name.

use crate::{
    boundary::{Outcome, boundary, register_fork_handler},
    cast::out,
    tbcclResult_t,
};
use std::{ffi::c_char, mem::MaybeUninit};
use tbccl::UniqueId;

/// Bytes of a unique id.
pub const TBCCL_UNIQUE_ID_BYTES: usize = 128;

/// Names a job for all of its ranks. It contains the job's secret: a process that has it can join, so keep it
/// secret.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tbcclUniqueId {
    /// Opaque.
    pub internal: [c_char; TBCCL_UNIQUE_ID_BYTES],
}

/// Leaves the secret out.
impl std::fmt::Debug for tbcclUniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("tbcclUniqueId").finish_non_exhaustive()
    }
}

impl From<&UniqueId> for tbcclUniqueId {
    fn from(id: &UniqueId) -> tbcclUniqueId {
        tbcclUniqueId { internal: id.as_bytes().map(|byte| byte as c_char) }
    }
}

impl tbcclUniqueId {
    pub(crate) fn read(&self) -> Outcome<UniqueId> {
        Ok(UniqueId::from_bytes(self.internal.map(|byte| byte as u8)).map_err(tbccl::Error::from)?)
    }
}

/// Makes an id for a new job, and opens the rendezvous of its ranks in this process. Pass the id to all
/// ranks; one of them must be in this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetUniqueId(
    uniqueId: Option<&mut MaybeUninit<tbcclUniqueId>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("uniqueId", uniqueId)?;
        register_fork_handler();
        place.write((&UniqueId::create().map_err(tbccl::Error::from)?).into());
        Ok(())
    })
}
