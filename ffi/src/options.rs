//! Options of communicators and of calls.
//!
//! A handle carries the options of its calls: [`tbcclCommWithOptions`] makes another handle of the same
//! communicator. So all functions keep the shape that they have in `nccl.h`, and names are looked up once and
//! not in every call.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

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

/// Contributions are combined in the order that is quickest.
pub const TBCCL_NUMERICS_FAST: i32 = 0;
/// Contributions are combined in one order: the same bits for every algorithm, size and transport.
pub const TBCCL_NUMERICS_REPRODUCIBLE: i32 = 1;

/// Value of a tbcclConfig_t's magic.
pub const TBCCL_CONFIG_MAGIC: u32 = 0x7bcc_0c01;
/// Value of a tbcclCallOptions_t's magic.
pub const TBCCL_CALL_OPTIONS_MAGIC: u32 = 0x7bcc_0a01;

/// Options of a communicator. Begin with TBCCL_CONFIG_INITIALIZER, and set those that are to differ from the
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclConfig_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_CONFIG_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// 1, the default: calls without a request block. 0 is refused; use requests instead.
    pub blocking: c_int,
    /// TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
    pub numerics: c_int,
    /// Milliseconds that a call may wait without progress, and that ranks wait for each other at the start.
    pub timeoutMs: i64,
    /// The transport: "auto", "shm", "tcp", "verbs", "shm+tcp", "shm+verbs", "shm+auto".
    pub netName: *const c_char,
    /// Options by name, as "TIMEOUT=5;ALGO=ring". tbcclParamDumpAll lists them.
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

/// Options of calls. Begin with TBCCL_CALL_OPTIONS_INITIALIZER, and set those that are to differ from the
/// communicator's. All ranks of a call pass the same, except for the timeout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclCallOptions_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_CALL_OPTIONS_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// Milliseconds that a call may wait without progress; 0 for the communicator's timeout.
    pub timeoutMs: i64,
    /// The algorithm, as "ring"; a list, as "ring,mesh", of which the first that can do a call is taken; or
    /// excluded ones, as "^ring,mesh". Calls that do not have the algorithm choose for themselves. NULL for
    /// the communicator's choice.
    pub algSelection: *const c_char,
    /// Segments per chunk; 0 for the automatic choice.
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

/// Reads `TIMEOUT=5;ALGO=ring` into the names of the environment.
fn by_name(options: &str) -> Outcome<Vec<(String, String)>> {
    let parts = options.split([';', '\n']).map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value)) => Ok((full_name(key.trim()), value.trim().to_owned())),
            None => Err(Failure::argument(format!("options: `{part}` is not NAME=VALUE"))),
        })
        .collect()
}

/// Returns the options of a communicator that is made with this structure, which may be null.
///
/// # Safety
/// As for [`read_versioned`]; its texts are null or texts.
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

/// Reads the options of calls.
///
/// # Safety
/// As for [`read_versioned`]; its texts are null or texts.
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

/// Makes another handle of a communicator, whose calls have these options. It can be passed wherever a
/// communicator can, and has the same ranks, links and order of calls. tbcclCommDestroy ends only this
/// handle. After the first handle is destroyed, this one can only be destroyed.
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
