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
use std::ptr::null_mut;
use tbccl::{CallByAddress, CallOptions, Communicator, SharedCommunicator};

/// Incomplete type that a tbcclComm_t points to. The pointer is a number and no address.
#[derive(Debug)]
pub enum tbcclComm {}

/// Handle of a communicator, as one of its ranks.
pub type tbcclComm_t = *mut tbcclComm;

/// Null handle, for ranks without a communicator.
pub(crate) const NONE: tbcclComm_t = null_mut();

/// The value of a handle: a communicator, and the options of calls that are made with this handle.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) shared: SharedCommunicator,
    pub(crate) options: CallOptions,
    /// Key of the first handle, if this handle was made from another one.
    pub(crate) of: Option<Key>,
}

static COMMS: Table<Comm> = Table::new();

impl Comm {
    pub(crate) fn new(communicator: Communicator) -> Comm {
        Comm { shared: SharedCommunicator::new(communicator), options: CallOptions::default(), of: None }
    }

    /// Makes another handle of the same communicator.
    pub(crate) fn view(found: &HeldComm, options: CallOptions) -> Comm {
        Comm { shared: found.shared.clone(), options, of: Some(found.first()) }
    }
}

/// Communicator found by its handle, which keeps the communicator alive.
#[derive(Debug)]
pub(crate) struct HeldComm {
    pub(crate) held: Held<Comm>,
    key: Key,
}

impl std::ops::Deref for HeldComm {
    type Target = Comm;

    #[inline]
    fn deref(&self) -> &Comm {
        &self.held
    }
}

/// Communicator and the key that it was found by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommRef<'c> {
    comm: &'c Comm,
    key: Key,
}

impl std::ops::Deref for CommRef<'_> {
    type Target = Comm;

    #[inline]
    fn deref(&self) -> &Comm {
        self.comm
    }
}

impl CommRef<'_> {
    /// Returns the key of the communicator's first handle.
    pub(crate) fn first(self) -> Key {
        self.comm.of.unwrap_or(self.key)
    }
}

impl HeldComm {
    #[inline]
    pub(crate) fn at(&self) -> CommRef<'_> {
        CommRef { comm: &self.held, key: self.key }
    }

    /// Returns the key of the communicator's first handle.
    pub(crate) fn first(&self) -> Key {
        self.at().first()
    }
}

/// Makes a call at once, if the handle is the communicator's first one and the communicator is idle.
///
/// Otherwise returns `None` and calls nothing. The first handle has no call options.
///
/// # Safety
/// The memory of the call is as [`tbccl::RawCall`] asks until this returns.
#[inline(always)] // As `tbccl::RawAllReduce`.
pub(crate) unsafe fn try_call<C: CallByAddress>(
    handle: tbcclComm_t,
    describe: impl FnOnce(CommRef<'_>) -> Outcome<C>,
) -> Option<Outcome> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm)?;
    let mut locked = COMMS.lock(key)?;
    let (comm, biased_lock) = locked.split();
    // Stays in this frame: moving a call that was just written in parts takes as long as the lock.
    let described = describe(CommRef { comm, key });
    let Ok(call) = &described else { return Some(described.map(drop)) };
    // SAFETY: the caller's promise.
    match unsafe { comm.shared.call_locked(biased_lock, call) }? {
        Ok(()) => Some(Ok(())),
        Err(error) => Some(Err((*error).into())),
    }
}

/// Returns the communicator of a handle.
#[inline]
pub(crate) fn find(handle: tbcclComm_t) -> Outcome<HeldComm> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm);
    let found = key.and_then(|key| Some(HeldComm { held: COMMS.get(key)?, key }));
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

/// Returns a new handle of a communicator.
pub(crate) fn give(comm: Comm) -> Outcome<tbcclComm_t> {
    // Only the first handle has the lock: that is waited for when a handle is ended, and another one may be
    // ended while a call is in progress.
    let biased_lock = comm.of.is_none().then(|| comm.shared.biased_lock());
    let key = COMMS.insert_with(comm, biased_lock);
    let key = key.ok_or_else(|| Failure::usage("there are too many communicators"))?;
    Ok(handle_of(key, Kind::Comm))
}

/// As [`find`], but also a handle whose communicator was destroyed.
pub(crate) fn find_any(handle: tbcclComm_t) -> Outcome<HeldComm> {
    let key = Key::from_bits(bits_of(handle), Kind::Comm);
    let found = key.and_then(|key| Some(HeldComm { held: COMMS.get(key)?, key }));
    found.ok_or_else(|| unknown(handle))
}
