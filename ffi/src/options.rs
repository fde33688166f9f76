//! Options of a communicator and of its calls, as C programs give them.
//!
//! What options a call has, the communicator says that it is given: [`tbcclCommWithOptions`] makes another handle of
//! the same communicator, whose calls have them. So all functions keep the shape that they have in `nccl.h`, and names
//! are looked up once and not in every call.
//!
//! # Safety
//! What C passes is seen by way of `cast`, which says what that rests on. Beside that a name is exported.

use crate::{
    boundary::{Outcome, boundary},
    cast::{Versioned, out, read_versioned, text},
    comm_handle::{self, Comm, tbcclComm_t},
    errors::TBCCL_VERSION_CODE,
    failure::Failure,
    params::{config_with, full_name},
    tbcclResult_t,
};
use std::{
    ffi::{c_char, c_int},
    mem::MaybeUninit,
    ptr::null,
    time::Duration,
};
use tbccl::{CallOptions, Config, Numerics};

/// A number that is not set.
pub const TBCCL_CONFIG_UNDEF_INT: i32 = i32::MIN;

/// Contributions are combined in whatever order is quickest.
pub const TBCCL_NUMERICS_FAST: i32 = 0;
/// They are combined in one order: the same bits for every algorithm, size and transport.
pub const TBCCL_NUMERICS_REPRODUCIBLE: i32 = 1;

/// What a tbcclConfig_t has in its magic.
pub const TBCCL_CONFIG_MAGIC: u32 = 0x7bcc_0c01;
/// What a tbcclCallOptions_t has in its magic.
pub const TBCCL_CALL_OPTIONS_MAGIC: u32 = 0x7bcc_0a01;

/// What a communicator is to be like. Begin with TBCCL_CONFIG_INITIALIZER, and set what you want to be otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclConfig_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_CONFIG_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// 1, which is the default: calls without a request block. 0 is refused; requests are what NCCL has it for.
    pub blocking: c_int,
    /// TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
    pub numerics: c_int,
    /// Milliseconds that a call may wait without progress, and ranks for each other at the start.
    pub timeoutMs: i64,
    /// What moves the bytes: "auto", "shm", "tcp", "verbs", "shm+tcp", "shm+verbs", "shm+auto".
    pub netName: *const c_char,
    /// Any options by name, as "TIMEOUT=5;ALGO=ring": those that tbcclParamDumpAll lists.
    pub options: *const c_char,
}

// SAFETY: `repr(C)`, begins with the fields of a head, and has numbers and pointers only.
unsafe impl Versioned for tbcclConfig_t {
    const MAGIC: u32 = TBCCL_CONFIG_MAGIC;
    const INITIALIZER: &'static str = "TBCCL_CONFIG_INITIALIZER";
    const MIN_SIZE: usize = 48;
    const UNSET: tbcclConfig_t = tbcclConfig_t {
        size: size_of::<tbcclConfig_t>(),
        magic: TBCCL_CONFIG_MAGIC,
        version: TBCCL_VERSION_CODE as u32,
        blocking: TBCCL_CONFIG_UNDEF_INT,
        numerics: TBCCL_CONFIG_UNDEF_INT,
        timeoutMs: 0,
        netName: null(),
        options: null(),
    };
}

/// What calls are to be like. Begin with TBCCL_CALL_OPTIONS_INITIALIZER, and set what you want to be otherwise than the
/// communicator has it. But for the time limit, all ranks of a call want the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclCallOptions_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_CALL_OPTIONS_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// Milliseconds that a call may wait without progress; 0 for those of the communicator.
    pub timeoutMs: i64,
    /// The algorithm of calls that have it, as "ring", the first of "ring,mesh" that can do a call, or none of those in
    /// "^ring,mesh"; NULL for the communicator's choice.
    pub algSelection: *const c_char,
    /// The segments that an algorithm cuts its chunks into; 0 for as many as suit.
    pub segments: c_int,
    /// TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
    pub numerics: c_int,
}

// SAFETY: `repr(C)`, begins with the fields of a head, and has numbers and pointers only.
unsafe impl Versioned for tbcclCallOptions_t {
    const MAGIC: u32 = TBCCL_CALL_OPTIONS_MAGIC;
    const INITIALIZER: &'static str = "TBCCL_CALL_OPTIONS_INITIALIZER";
    const MIN_SIZE: usize = 40;
    const UNSET: tbcclCallOptions_t = tbcclCallOptions_t {
        size: size_of::<tbcclCallOptions_t>(),
        magic: TBCCL_CALL_OPTIONS_MAGIC,
        version: TBCCL_VERSION_CODE as u32,
        timeoutMs: 0,
        algSelection: null(),
        segments: 0,
        numerics: TBCCL_CONFIG_UNDEF_INT,
    };
}

fn numerics(number: c_int) -> Outcome<Option<Numerics>> {
    match number {
        TBCCL_CONFIG_UNDEF_INT => Ok(None),
        TBCCL_NUMERICS_FAST => Ok(Some(Numerics::Fast)),
        TBCCL_NUMERICS_REPRODUCIBLE => Ok(Some(Numerics::Reproducible)),
        _ => Err(Failure::argument(format!(
            "numerics is {number}: set it to TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE"
        ))),
    }
}

fn timeout(milliseconds: i64) -> Outcome<Option<Duration>> {
    let wanted = u64::try_from(milliseconds)
        .map_err(|_| Failure::argument(format!("timeoutMs is {milliseconds}; it can't be negative")))?;
    Ok((wanted > 0).then(|| Duration::from_millis(wanted)))
}

/// `TIMEOUT=5;ALGO=ring`, in the names of the environment.
fn by_name(options: &str) -> Outcome<Vec<(String, String)>> {
    let parts = options.split([';', '\n']).map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value)) => Ok((full_name(key.trim()), value.trim().to_owned())),
            None => Err(Failure::argument(format!("options: `{part}` is not NAME=VALUE"))),
        })
        .collect()
}

/// The options of a communicator that is made with this structure, which may be null.
///
/// # Safety
/// As [`read_versioned`] has it; its texts are null or texts.
pub(crate) unsafe fn config(given: *const tbcclConfig_t) -> Outcome<Config> {
    // SAFETY: as the caller promises.
    let given = unsafe { read_versioned("config", given)? }.unwrap_or(tbcclConfig_t::UNSET);
    if !matches!(given.blocking, 1 | TBCCL_CONFIG_UNDEF_INT) {
        return Err(Failure::argument(format!(
            "blocking is {}; only 1 is possible: give calls a request where they are not to block",
            given.blocking
        )));
    }
    // SAFETY: as the caller promises.
    let (net, options) = unsafe { (text("netName", given.netName)?, text("options", given.options)?) };
    let mut more = by_name(options.unwrap_or_default())?;
    more.extend(net.map(|name| ("TBCCL_TRANSPORT".to_owned(), name.to_owned())));
    let mut config = config_with(more)?;
    if let Some(timeout) = timeout(given.timeoutMs)? {
        config.timeout = timeout;
    }
    if let Some(numerics) = numerics(given.numerics)? {
        config.numerics = numerics;
    }
    Ok(config)
}

/// # Safety
/// As [`read_versioned`] has it; its texts are null or texts.
unsafe fn call_options(given: *const tbcclCallOptions_t) -> Outcome<CallOptions> {
    // SAFETY: as the caller promises.
    let given =
        unsafe { read_versioned("options", given)? }.ok_or_else(|| Failure::argument("options is NULL"))?;
    // SAFETY: as the caller promises.
    let algorithm = unsafe { text("algSelection", given.algSelection)? };
    let segments = u32::try_from(given.segments)
        .map_err(|_| Failure::argument(format!("segments is {}; it can't be negative", given.segments)))?;
    let options = CallOptions {
        timeout: timeout(given.timeoutMs)?,
        algorithm: algorithm.filter(|names| !names.is_empty()).map(str::to_owned),
        segments,
        numerics: numerics(given.numerics)?,
    };
    options.check()?;
    Ok(options)
}

/// Makes another handle of a communicator, whose calls have these options: pass it wherever a communicator is asked
/// for. It is a communicator as that one is, with the same ranks, links and order of calls. tbcclCommDestroy ends the handle
/// alone; when the first one is destroyed, this one is good for nothing but that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommWithOptions(
    comm: tbcclComm_t,
    options: *const tbcclCallOptions_t,
    newcomm: Option<&mut MaybeUninit<tbcclComm_t>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("newcomm", newcomm)?;
        place.write(comm_handle::NONE);
        let found = comm_handle::find(comm)?;
        // SAFETY: as `tbccl.h` says, it is null or such a structure.
        let options = unsafe { call_options(options)? };
        place.write(comm_handle::give(Comm::view(&found, options))?);
        Ok(())
    })
}
