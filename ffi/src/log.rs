//! The handler of the library's events.
//!
//! # Safety
//! The program vouches for its handler and for the pointer that the handler gets; see
//! [`tbcclSetLogHandler`].

use crate::{
    boundary::{Outcome, boundary, c_string},
    failure::Failure,
    tbcclResult_t,
};
use std::{
    ffi::{c_char, c_int, c_void},
    sync::Arc,
};
use tbccl::events::{LevelFilter, Record, set_handler, tracing::Level};

/// Level of events: failures of communicators.
pub const TBCCL_LOG_ERROR: i32 = 1;
/// Level of events: warnings, and rails that go down.
pub const TBCCL_LOG_WARN: i32 = 2;
/// Level of events: the facts at the start of a communicator, and its choices.
pub const TBCCL_LOG_INFO: i32 = 3;
/// Level of events: single connections and attempts.
pub const TBCCL_LOG_DEBUG: i32 = 4;
/// Level of events: everything.
pub const TBCCL_LOG_TRACE: i32 = 5;

/// Receives an event: what tbcclSetLogHandler got as user, the level, the rank or -1, the target, as
/// "tbccl::verbs", and the message. The texts are valid until the handler returns. It may be called on any
/// thread, on several at once, and must not call the library.
pub type tbcclLogHandler_t = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        level: c_int,
        rank: c_int,
        target: *const c_char,
        message: *const c_char,
    ),
>;

/// The pointer that a handler gets.
struct User(*mut c_void);

// SAFETY: it is only passed on; the program vouches for its use on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

fn number(level: Level) -> c_int {
    match level {
        Level::ERROR => TBCCL_LOG_ERROR,
        Level::WARN => TBCCL_LOG_WARN,
        Level::INFO => TBCCL_LOG_INFO,
        Level::DEBUG => TBCCL_LOG_DEBUG,
        Level::TRACE => TBCCL_LOG_TRACE,
    }
}

fn filter(level: c_int) -> Outcome<LevelFilter> {
    Ok(match level {
        TBCCL_LOG_ERROR => LevelFilter::ERROR,
        TBCCL_LOG_WARN => LevelFilter::WARN,
        TBCCL_LOG_INFO => LevelFilter::INFO,
        TBCCL_LOG_DEBUG => LevelFilter::DEBUG,
        TBCCL_LOG_TRACE => LevelFilter::TRACE,
        _ => {
            return Err(Failure::argument(format!(
                "level is {level}; levels are TBCCL_LOG_ERROR (1) to TBCCL_LOG_TRACE (5)"
            )));
        }
    })
}

/// Passes all events up to a level, as TBCCL_LOG_INFO, to a handler from now on; a NULL handler ends that.
/// Warnings, which otherwise go to the standard error output, then go to the handler only. A log that
/// TBCCL_LOG asks for is written as well. user is passed to the handler, and must stay valid for good: a
/// handler may still run when it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclSetLogHandler(
    handler: tbcclLogHandler_t,
    user: *mut c_void,
    level: c_int,
) -> tbcclResult_t {
    boundary(|| {
        let Some(function) = handler else {
            set_handler(None);
            return Ok(());
        };
        let (level, user) = (filter(level)?, User(user));
        let handle = move |record: &Record| {
            let user: &User = &user;
            let (target, message) = (c_string(record.target), c_string(&record.text()));
            let rank = record.rank.map_or(-1, |rank| rank as c_int);
            // SAFETY: the program promises that the function may be called on any thread; the texts outlive
            // the call.
            unsafe { function(user.0, number(record.level), rank, target.as_ptr(), message.as_ptr()) }
        };
        if set_handler(Some((level, Arc::new(handle)))) {
            return Ok(());
        }
        Err(Failure::usage("the program has a subscriber of the Rust crate tracing, which gets all events"))
    })
}
