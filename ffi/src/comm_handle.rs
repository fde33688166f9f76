//! Handles of communicators: the table in which they are looked up.
//!
//! A communicator may have several handles, whose calls have different options. Only the first handle has the
//! communicator's lock.
//!
//! # Safety
//! The issuer of a call promises what `tbccl.h` asks of its memory.

use crate::{
    boundary::Outcome,
    cast::{bits_of, handle_of},
    failure::Failure,
    handle::{Held, Key, Kind, Table},
};
use std::{mem::ManuallyDrop, ptr::null_mut};
use tbccl::{CallOptions, Communicator, RawCall, SharedCommunicator};

/// What a tbcclComm_t points to: nothing. It is a number.
#[derive(Debug)]
pub enum tbcclComm {}

/// A communicator, as one of its ranks.
pub type tbcclComm_t = *mut tbcclComm;

/// No communicator.
pub(crate) const NONE: tbcclComm_t = null_mut();

/// What a handle stands for: a communicator, and the options of calls that are made with this handle.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) shared: SharedCommunicator,
    pub(crate) options: CallOptions,
    /// The handle that the communicator was made with, of one that was made of it.
    pub(crate) of: Option<Key>,
}

static COMMS: Table<Comm> = Table::new();

impl Comm {
    pub(crate) fn new(communicator: Communicator) -> Comm {
        Comm { shared: SharedCommunicator::new(communicator), options: CallOptions::default(), of: None }
    }

    /// Another handle of the same communicator.
    pub(crate) fn view(found: &Found, options: CallOptions) -> Comm {
        Comm { shared: found.shared.clone(), options, of: Some(found.first()) }
    }
}

/// A communicator that was found by its handle, and is there as long as this.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) held: Held<Comm>,
    key: Key,
}

impl std::ops::Deref for Found {
    type Target = Comm;

    #[inline]
    fn deref(&self) -> &Comm {
        &self.held
    }
}

/// A communicator, and the handle that it was found by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'c> {
    comm: &'c Comm,
    key: Key,
}

impl std::ops::Deref for At<'_> {
    type Target = Comm;

    #[inline]
    fn deref(&self) -> &Comm {
        self.comm
    }
}

impl At<'_> {
    /// The handle that the communicator was made with: the same for all of its handles.
    pub(crate) fn first(self) -> Key {
        self.comm.of.unwrap_or(self.key)
    }
}

impl Found {
    #[inline]
    pub(crate) fn at(&self) -> At<'_> {
        At { comm: &self.held, key: self.key }
    }

    /// The handle that the communicator was made with: the same for all of its handles.
    pub(crate) fn first(&self) -> Key {
        self.at().first()
    }
}

/// Makes a call on the communicator of a handle, if that is the first one and the communicator is idle.
///
/// `None` if not: then nothing was called. A first handle has no options of calls.
///
/// # Safety
/// The memory of the call is as [`tbccl::RawCall`] asks until this returns.
#[inline]
pub(crate) unsafe fn call_idle(
    handle: tbcclComm_t,
    describe: impl FnOnce(At<'_>) -> Outcome<RawCall>,
) -> Option<Outcome> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm)?;
    let mut locked = COMMS.lock(key)?;
    let (comm, seat) = locked.split();
    let call = match describe(At { comm, key }) {
        // A panic leaks the counts: dropping them on its way would give every call an address, and write it to memory.
        Ok(call) => ManuallyDrop::new(call),
        Err(failure) => return Some(Err(failure)),
    };
    // SAFETY: the caller's promise.
    let done = unsafe { comm.shared.call_seated(seat, &call) };
    if !call.operation.is_even() {
        drop(ManuallyDrop::into_inner(call));
    }
    match done? {
        Ok(()) => Some(Ok(())),
        Err(error) => Some(Err((*error).into())),
    }
}

/// The communicator of a handle.
#[inline]
pub(crate) fn find(handle: tbcclComm_t) -> Outcome<Found> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm);
    let found = key.and_then(|key| Some(Found { held: COMMS.get(key)?, key }));
    match found {
        Some(found) if found.held.of.is_none_or(|of| COMMS.is_live(of)) => Ok(found),
        _ => Err(unknown(handle)),
    }
}

#[cold]
pub(crate) fn unknown(handle: tbcclComm_t) -> Failure {
    Failure::argument(match handle.is_null() {
        true => "comm is NULL",
        false => "comm is not a communicator, or was destroyed",
    })
}

/// A handle for it.
pub(crate) fn give(comm: Comm) -> Outcome<tbcclComm_t> {
    // Only the first handle has the lock: that is waited for when a handle is ended, and another one may be ended while a call
    // is in progress.
    let seat = comm.of.is_none().then(|| comm.shared.seat());
    let key = COMMS.insert_with(comm, seat);
    let key = key.ok_or_else(|| Failure::usage("there are too many communicators"))?;
    Ok(handle_of(key, Kind::Comm))
}

/// As [`find`], but also a handle whose communicator was destroyed.
pub(crate) fn find_any(handle: tbcclComm_t) -> Outcome<Found> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm);
    let found = key.and_then(|key| Some(Found { held: COMMS.get(key)?, key }));
    found.ok_or_else(|| unknown(handle))
}
