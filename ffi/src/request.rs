//! Requests: calls that are waited for later.
//!
//! # Safety
//! The only unsafe act here is to export a name.

use crate::{
    boundary::{Outcome, boundary},
    cast::{bits_of, handle_of, out},
    failure::Failure,
    handle::{Held, Key, Kind, Table},
    tbcclResult_t,
};
use std::{
    ffi::c_int,
    mem::MaybeUninit,
    ptr::null_mut,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tbccl::Pending;

/// Incomplete type that a tbcclRequest_t points to. The pointer is a number and no address.
#[derive(Debug)]
pub enum tbcclRequest {}

/// A call that was issued, and may be in progress.
pub type tbcclRequest_t = *mut tbcclRequest;

/// No request.
pub(crate) const NONE: tbcclRequest_t = null_mut();

/// State of a call: in progress with others of its group, or refused. Empty while its group is open.
#[derive(Debug, Default)]
pub(crate) struct RequestState(OnceLock<Result<Arc<Pending>, Failure>>);

impl RequestState {
    /// Sets the state once the call has been issued or refused.
    pub(crate) fn settle(&self, issued: Result<Arc<Pending>, Failure>) {
        // The issuing function sets it once.
        let _ = self.0.set(issued);
    }

    fn pending(&self) -> Outcome<&Pending> {
        match self.0.get() {
            Some(Ok(pending)) => Ok(&**pending),
            Some(Err(failure)) => Err(failure.clone()),
            None => {
                Err(Failure::usage("the call is in a group that has not ended; call tbcclGroupEnd first"))
            }
        }
    }
}

static REQUESTS: Table<Arc<RequestState>> = Table::new();

fn find(handle: tbcclRequest_t) -> Outcome<Held<Arc<RequestState>>> {
    let found = Key::from_bits(bits_of(handle), Kind::Request).and_then(|key| REQUESTS.get(key));
    found.ok_or_else(|| {
        Failure::argument(match handle.is_null() {
            true => "request is NULL",
            false => "request is not a request, or was freed",
        })
    })
}

/// Makes a handle of a request.
pub(crate) fn give(state: Arc<RequestState>) -> Outcome<tbcclRequest_t> {
    let key =
        REQUESTS.insert(state).ok_or_else(|| Failure::usage("there are too many requests; free some"))?;
    Ok(handle_of(key, Kind::Request))
}

/// Tells whether a call is done: done becomes 1 or 0. Returns the call's result when it is done. Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRequestTest(
    request: tbcclRequest_t,
    done: Option<&mut MaybeUninit<c_int>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("done", done)?;
        place.write(0);
        let found = find(request)?;
        match found.0.get() {
            None => Ok(()),
            Some(Err(failure)) => {
                place.write(1);
                Err(failure.clone())
            }
            Some(Ok(pending)) => match pending.test() {
                None => Ok(()),
                Some(result) => {
                    place.write(1);
                    Ok(result?)
                }
            },
        }
    })
}

/// Waits until a call is done, and returns its result; tbcclInProgress if it is not done after timeoutMs
/// milliseconds. A negative timeoutMs waits as long as the call takes, which has a timeout of its own; this
/// thread makes the call then if no other one has begun it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRequestWait(request: tbcclRequest_t, timeoutMs: i64) -> tbcclResult_t {
    boundary(|| {
        let found = find(request)?;
        let most = u64::try_from(timeoutMs).ok().map(Duration::from_millis);
        match found.pending()?.wait(most) {
            Some(result) => Ok(result?),
            None => Err(Failure::in_progress(format!("the call is not done after {timeoutMs} ms"))),
        }
    })
}

/// Ends the handle of a request. A call in progress goes on, and needs its memory until it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRequestFree(request: tbcclRequest_t) -> tbcclResult_t {
    boundary(|| {
        let found = find(request)?;
        // Of two threads that free a request, the later one gets an error.
        if Table::close(&found) { Ok(()) } else { Err(Failure::argument("request was freed")) }
    })
}
