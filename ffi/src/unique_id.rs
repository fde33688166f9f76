//! Unique ids: how ranks find each other that have no launcher.
//!
//! # Safety
//! Exporting a name is all that is unsafe here.

use crate::{
    boundary::{Outcome, boundary, notice_forks},
    cast::out,
    tbcclResult_t,
};
use std::{ffi::c_char, mem::MaybeUninit};
use tbccl::UniqueId;

/// Bytes of a unique id.
pub const TBCCL_UNIQUE_ID_BYTES: usize = 128;

/// Names a job to all of its ranks. It holds the job's secret: whoever has it can join, so pass it on as one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tbcclUniqueId {
    /// Nothing to look at.
    pub internal: [c_char; TBCCL_UNIQUE_ID_BYTES],
}

/// Without the secret.
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

/// Makes an id for a new job, and opens the place in this process where its ranks will meet. Give the id to all
/// of them; one of them must be this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetUniqueId(
    uniqueId: Option<&mut MaybeUninit<tbcclUniqueId>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("uniqueId", uniqueId)?;
        notice_forks();
        place.write((&UniqueId::create().map_err(tbccl::Error::from)?).into());
        Ok(())
    })
}
