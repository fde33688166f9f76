//! Version, meaning of results, and the latest error.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::{Outcome, boundary, remember, with_last},
    cast::{Versioned, field, out, write_versioned},
    codes::{Coded, ResultCode},
    comm_handle::{self, tbcclComm_t},
    failure::Cause,
    tbcclResult_t,
};
use std::{
    ffi::{c_char, c_int},
    mem::MaybeUninit,
};

/// First number of the version.
pub const TBCCL_MAJOR: i32 = 0;
/// Second number of the version.
pub const TBCCL_MINOR: i32 = 1;
/// Third number of the version.
pub const TBCCL_PATCH: i32 = 0;
/// All three as one number, as the macro TBCCL_VERSION makes it.
pub const TBCCL_VERSION_CODE: i32 = TBCCL_MAJOR * 10000 + TBCCL_MINOR * 100 + TBCCL_PATCH;

/// Value of a tbcclErrorInfo_t's magic.
pub const TBCCL_ERROR_INFO_MAGIC: u32 = 0x7bcc_0e01;

/// An error in parts. Texts are empty and numbers -1 where a part is not known. Begin with
/// TBCCL_ERROR_INFO_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclErrorInfo_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_ERROR_INFO_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// Result of the function.
    pub result: tbcclResult_t,
    /// The rank that reports.
    pub rank: i32,
    /// The rank that the error is about.
    pub peer: i32,
    /// Host of that rank.
    pub host: [c_char; 64],
    /// The device, or the cable with the devices at both ends.
    pub device: [c_char; 128],
    /// The call in progress, as "all_reduce of 8 f32, op sum".
    pub call: [c_char; 128],
    /// The step that the call waited for, as `tbccl plan show` names it.
    pub step: [c_char; 128],
    /// The whole error as a sentence.
    pub text: [c_char; 1024],
}

// SAFETY: `repr(C)`, begins with the fields of a head, and has numbers only.
unsafe impl Versioned for tbcclErrorInfo_t {
    const MAGIC: u32 = TBCCL_ERROR_INFO_MAGIC;
    const INITIALIZER: &'static str = "TBCCL_ERROR_INFO_INITIALIZER";
    const MIN_SIZE: usize = 1504;
    const UNSET: tbcclErrorInfo_t = tbcclErrorInfo_t {
        size: size_of::<tbcclErrorInfo_t>(),
        magic: TBCCL_ERROR_INFO_MAGIC,
        version: TBCCL_VERSION_CODE as u32,
        result: 0,
        rank: -1,
        peer: -1,
        host: [0; 64],
        device: [0; 128],
        call: [0; 128],
        step: [0; 128],
        text: [0; 1024],
    };
}

impl tbcclErrorInfo_t {
    fn of(cause: &Cause) -> tbcclErrorInfo_t {
        let number = |rank: Option<u32>| rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        tbcclErrorInfo_t {
            result: cause.code.code(),
            rank: number(cause.rank),
            peer: number(cause.peer),
            host: field(&cause.host),
            device: field(&cause.device),
            call: field(&cause.call),
            step: field(&cause.step),
            text: field(&cause.text),
            ..tbcclErrorInfo_t::UNSET
        }
    }
}

/// Tells the library's version as one number, TBCCL_VERSION_CODE of its header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetVersion(version: Option<&mut MaybeUninit<c_int>>) -> tbcclResult_t {
    boundary(|| {
        out("version", version)?.write(TBCCL_VERSION_CODE);
        Ok(())
    })
}

/// Returns the meaning of a result, for people. The text is valid forever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetErrorString(result: tbcclResult_t) -> *const c_char {
    ResultCode::from_code(result).map_or(c"unknown result code", ResultCode::meaning).as_ptr()
}

/// Returns this thread's latest error, for people; an empty text if there is none. With a communicator, and
/// without an error of this thread, returns the error that the communicator has failed with on another
/// thread. comm may be NULL. The text is valid until the next error of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetLastError(comm: tbcclComm_t) -> *const c_char {
    let told = || with_last(|last| last.map(|(_, text)| text.as_ptr())).flatten();
    let of_comm = || {
        let error = comm_handle::find(comm).ok()?.shared.async_error()?;
        remember(error.into());
        told()
    };
    told().or_else(of_comm).unwrap_or(c"".as_ptr())
}

/// Tells this thread's latest error in parts. Its result is tbcclSuccess if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGetLastErrorInfo(info: *mut tbcclErrorInfo_t) -> tbcclResult_t {
    boundary(|| write_last(info))
}

fn write_last(info: *mut tbcclErrorInfo_t) -> Outcome {
    let last = with_last(|last| last.map(|(failure, _)| tbcclErrorInfo_t::of(failure.cause()))).flatten();
    // SAFETY: as `tbccl.h` says, the pointer is null or points to an initialized structure.
    unsafe { write_versioned("info", info, &last.unwrap_or(tbcclErrorInfo_t::UNSET)) }
}
