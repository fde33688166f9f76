//! Protection domains and memory regions.
//!
//! # Safety
//! A domain lives until its last owner is dropped; regions and queue pairs own one. Verbs allow several
//! threads to use domains and regions. Registering touches no memory; the caller of `register` promises that
//! the memory stays mapped.

use super::{
    Action, Context, VerbsError,
    errno::{Errno, check},
};
use std::{
    ffi::c_int,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use verbs_sys::{AccessFlags, Mr, Pd};

/// A protection domain. A queue pair uses only the regions of its own domain. Clones share it.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<Pd>,
    /// Whether the device rejected registration with all access rights and accepted `LOCAL_WRITE` alone.
    local_write_only: AtomicBool,
    context: Context,
}

// SAFETY: verbs allow any thread to use a domain, several at a time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Writers that registered memory admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device, for receives.
    Local,
    /// The device, and the connected peer.
    Remote,
}

impl Access {
    /// Returns the access flags of a queue pair: the rights of the peer.
    pub(super) const fn of_queue_pair(self) -> AccessFlags {
        match self {
            Access::Local => AccessFlags::NONE,
            Access::Remote => AccessFlags::REMOTE_WRITE,
        }
    }

    const fn of_region(self) -> AccessFlags {
        AccessFlags::LOCAL_WRITE.with(self.of_queue_pair())
    }
}

/// Rights with which JACCL, llama.cpp and ds4 register memory on Apple's device.
///
/// Other programs work with `LOCAL_WRITE` alone, and one is reported to fail with it. The device has no
/// remote access, so further rights grant nothing.
const ALL_RIGHTS: AccessFlags =
    AccessFlags::LOCAL_WRITE.with(AccessFlags::REMOTE_READ).with(AccessFlags::REMOTE_WRITE);

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when there are too many, or the port is down.
    pub fn domain(&self) -> Result<Domain, VerbsError> {
        Domain::of(self)
    }
}

impl Domain {
    pub(super) fn of(context: &Context) -> Result<Domain, VerbsError> {
        Errno::clear();
        // SAFETY: the device is open.
        let raw = unsafe { (context.functions().ibv_alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| context.refused(Action::Domain, Errno::last()))?;
        Ok(Domain(Arc::new(Inner {
            raw,
            local_write_only: AtomicBool::new(false),
            context: context.clone(),
        })))
    }

    /// Returns the device of the domain.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers memory with the device.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not register it.
    ///
    /// # Safety
    /// The memory must stay mapped as long as the region lives. The device and peers write to it without the
    /// compiler's knowledge. Access it only through pointers, or while no work on it is in progress.
    pub unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<Region, VerbsError> {
        let refused = |errno| self.context().refused(Action::Register { bytes: len as u64 }, errno);
        if self.context().is_thunderbolt() && !self.0.local_write_only.load(Relaxed) {
            match self.try_register(start, len, ALL_RIGHTS) {
                Ok(region) => return Ok(region),
                // These errors are not about access rights.
                Err(errno @ (Errno::ENOMEM | Errno::EFAULT | Errno::EBUSY | Errno::EAGAIN)) => {
                    return Err(refused(errno));
                }
                Err(_) => {}
            }
            let region = self.try_register(start, len, AccessFlags::LOCAL_WRITE).map_err(refused)?;
            self.0.local_write_only.store(true, Relaxed);
            return Ok(region);
        }
        let flags =
            if self.0.local_write_only.load(Relaxed) { AccessFlags::LOCAL_WRITE } else { access.of_region() };
        self.try_register(start, len, flags).map_err(refused)
    }

    fn try_register(&self, start: *mut u8, len: usize, flags: AccessFlags) -> Result<Region, Errno> {
        let register = self.context().functions().ibv_reg_mr;
        Errno::clear();
        // SAFETY: the domain is alive. The device touches the memory only for posted work, and posting is
        // unsafe.
        let raw = unsafe { register(self.raw(), start.cast(), len, flags.0 as c_int) };
        let raw = NonNull::new(raw).ok_or_else(Errno::last)?;
        // SAFETY: the region was created above.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Region { raw, lkey, rkey, start, len, domain: self.clone() })
    }

    pub(super) fn raw(&self) -> *mut Pd {
        self.0.raw.as_ptr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: the last owner is dropped, so no region and no queue pair uses the domain.
        let _ = check(unsafe { (self.context.functions().ibv_dealloc_pd)(self.raw.as_ptr()) });
    }
}

/// A memory region, deregistered when dropped.
///
/// Drop it only after the queue pairs with work on it were reset, failed or dropped: see
/// [`QueuePair::post_send`](super::QueuePair::post_send).
#[derive(Debug)]
pub struct Region {
    raw: NonNull<Mr>,
    lkey: u32,
    rkey: u32,
    start: *mut u8,
    len: usize,
    domain: Domain,
}

// SAFETY: the keys don't change, and verbs allow any thread to deregister.
unsafe impl Send for Region {}
// SAFETY: as above; `start` is returned, never dereferenced.
unsafe impl Sync for Region {}

impl Region {
    /// Returns the local key, which work requests of this process use.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the remote key, which the peer's work requests use; 0 on devices without remote access.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes. Devices don't register such memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.domain.context().is_inherited() {
            return;
        }
        // SAFETY: the region was registered once and is deregistered once. The callers of the post methods
        // promised that no work on it is in progress.
        let _ = check(unsafe { (self.domain.context().functions().ibv_dereg_mr)(self.raw.as_ptr()) });
    }
}
