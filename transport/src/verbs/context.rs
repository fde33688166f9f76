//! Open devices.
//!
//! # Safety
//! The context is open from [`Context::open`] until the last owner is dropped, and every object made from it
//! owns a [`Context`]. Verbs allow several threads to use a context at the same time. Structures passed to
//! the library live until the call returns. Asynchronous events are acknowledged exactly once, and only after
//! they were fetched.

use super::{
    Action, AsyncEvent, Cause, DeviceInfo, Gid, Library, Refusal, VerbsError, answer,
    errno::{Errno, check},
    functions::Functions,
    port::PORT,
};
use crate::forks::Origin;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    ffi::c_int,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};
use verbs_sys::{Device, DeviceAttr, GidEntry, GidType, PortAttr, PortState, TransportType};

/// An open device. Clones share it.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<verbs_sys::Context>,
    info: DeviceInfo,
    attributes: Option<DeviceAttr>,
    /// Descriptor of asynchronous events, if it could be made non-blocking.
    async_fd: Option<RawFd>,
    library: Library,
    origin: Origin,
}

// SAFETY: verbs allow any thread to use a context, several at a time; the other fields are immutable.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Library {
    /// Opens a device.
    ///
    /// # Errors
    /// - [`VerbsError::UnknownDevice`], with the most similar name and all names.
    /// - [`VerbsError::Refused`] when the device can't be opened.
    /// - [`VerbsError::Symbol`] when its operations table is incomplete.
    /// - [`VerbsError::Hangs`] when the device does not answer.
    pub fn open(&self, name: &str) -> Result<Context, VerbsError> {
        let (library, of) = (self.clone(), name.to_owned());
        answer::within(answer::LIMIT, name, Action::Open, move || {
            library.with_device(&of, |info, device| Context::open(&library, info, device))
        })
    }
}

impl Context {
    fn open(library: &Library, info: DeviceInfo, device: NonNull<Device>) -> Result<Context, VerbsError> {
        let functions = library.functions();
        Errno::clear();
        // SAFETY: the device is in a list that is alive.
        let raw = unsafe { (functions.ibv_open_device)(device.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| VerbsError::of_library(&info.name, Action::Open, Errno::last()))?;
        // From here on, dropping `inner` closes the device on every path.
        let mut inner = Inner {
            raw,
            info,
            attributes: None,
            async_fd: None,
            library: library.clone(),
            origin: Origin::here(),
        };
        inner.check_operations()?;
        inner.attributes = inner.query_attributes();
        inner.async_fd = inner.nonblocking_async_fd();
        Ok(Context(Arc::new(inner)))
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Returns the device's entry in the device list.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Returns the device's limits, if it reports any. Some devices report wrong limits.
    #[must_use]
    pub fn attributes(&self) -> Option<&DeviceAttr> {
        self.0.attributes.as_ref()
    }

    /// Queries the port's attributes.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not answer.
    pub fn port(&self) -> Result<PortAttr, VerbsError> {
        self.0.port().map_err(|errno| VerbsError::of_library(self.name(), Action::QueryPort, errno))
    }

    /// Reads the port's GID table; returns the non-empty entries with their indices.
    #[must_use]
    pub fn gids(&self) -> Vec<(u8, Gid)> {
        let len = self.0.port().map_or(0, |port| port.gid_tbl_len.clamp(0, 256));
        let table = (0..len).filter_map(|index| Some((u8::try_from(index).ok()?, self.0.gid(index)?)));
        table.filter(|(_, gid)| !gid.is_empty()).collect()
    }

    /// Returns the index of an address that was at an index before, which the system may have moved: the old
    /// index if it is gone. An adapter that has an address for RoCE v1 and v2 has it at two indices; the one
    /// for v2 counts.
    #[must_use]
    pub fn gid_index(&self, (index, address): (u8, Gid)) -> u8 {
        let same = self.gids().into_iter().filter(|(_, gid)| *gid == address);
        let best = same.min_by_key(|(at, _)| (self.is_roce_v1(*at), *at != index));
        best.map_or(index, |(index, _)| index)
    }

    /// Whether an entry of the GID table is for RoCE v1, whose packets no router forwards. False where the
    /// library does not tell.
    #[must_use]
    pub fn is_roce_v1(&self, index: u8) -> bool {
        self.0.gid_type(index.into()) == Some(GidType::ROCE_V1)
    }

    /// Returns the reason why connections through the port would fail, if one is known.
    #[must_use]
    pub fn port_problem(&self) -> Option<Cause> {
        match self.port() {
            Ok(port) if port.state == PortState::ACTIVE => {
                Cause::of_addresses(&self.gids(), self.is_thunderbolt())
            }
            Ok(_) => Some(Cause::PortDown),
            Err(error) => error.cause(),
        }
    }

    /// Returns the descriptor of asynchronous events, which is readable when an event is pending.
    ///
    /// `None` where a device has none, or where the descriptor could not be made non-blocking.
    #[must_use]
    pub fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open as long as the device, which outlives the borrow.
        self.0.async_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Fetches and acknowledges a pending event, if there is one. Does not wait.
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.0.async_fd?;
        let (get, acknowledge) =
            (self.functions().ibv_get_async_event?, self.functions().ibv_ack_async_event?);
        let mut event = verbs_sys::AsyncEvent::zeroed();
        // SAFETY: the device is open; its descriptor does not block.
        if unsafe { get(self.raw(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: both members are plain data, valid for all bits that the library may have written over the
        // zeroes.
        let (port, object) = unsafe { (event.element.port_num, event.element.qp.addr()) };
        let fetched = AsyncEvent::of(event.event_type, port, object);
        // SAFETY: the event was fetched above and is acknowledged once.
        unsafe { acknowledge(&raw mut event) };
        Some(fetched)
    }

    /// Whether the device's transport is Thunderbolt, whose devices differ from all others.
    #[must_use]
    pub fn is_thunderbolt(&self) -> bool {
        self.0.info.transport_type == TransportType::THUNDERBOLT
    }

    pub(super) fn raw(&self) -> *mut verbs_sys::Context {
        self.0.raw.as_ptr()
    }

    /// Whether this process is a forked child of the one that opened the device and has the objects on it.
    pub(super) fn is_inherited(&self) -> bool {
        !self.0.origin.is_here()
    }

    pub(super) fn functions(&self) -> &Functions {
        self.0.library.functions()
    }

    /// Returns the error of a failed call, with the port's present state and GIDs.
    #[cold]
    pub(super) fn refused(&self, action: Action, errno: Errno) -> VerbsError {
        VerbsError::Refused(Box::new(Refusal {
            action,
            device: self.name().to_owned(),
            port: PORT,
            errno,
            state: self.0.port().ok().map(|port| port.state),
            gids: self.gids(),
            is_thunderbolt: self.is_thunderbolt(),
        }))
    }
}

impl Inner {
    /// Checks the operations that have no symbol and must be in the operations table.
    fn check_operations(&self) -> Result<(), VerbsError> {
        // SAFETY: the device is open.
        let ops = unsafe { (&raw const (*self.raw.as_ptr()).ops).read() };
        let missing = [
            ("ibv_poll_cq", ops.poll_cq.is_none()),
            ("ibv_post_send", ops.post_send.is_none()),
            ("ibv_post_recv", ops.post_recv.is_none()),
        ];
        match missing.into_iter().find(|(_, is_missing)| *is_missing) {
            Some((symbol, _)) => Err(VerbsError::Symbol { library: self.library.name().to_owned(), symbol }),
            None => Ok(()),
        }
    }

    fn query_attributes(&self) -> Option<DeviceAttr> {
        let mut attr = DeviceAttr::zeroed();
        // SAFETY: the device is open, and there is room for the answer.
        check(unsafe { self.library.functions().ibv_query_device?(self.raw.as_ptr(), &raw mut attr) })
            .ok()?;
        Some(attr)
    }

    fn nonblocking_async_fd(&self) -> Option<RawFd> {
        // SAFETY: the device is open.
        let fd: c_int = unsafe { (&raw const (*self.raw.as_ptr()).async_fd).read() };
        if fd < 0 {
            return None;
        }
        // SAFETY: the library keeps it open as long as the device.
        set_nonblocking(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
        Some(fd)
    }

    fn port(&self) -> Result<PortAttr, Errno> {
        let mut attr = PortAttr::zeroed();
        // SAFETY: the device is open, and there is room for the answer.
        check(unsafe { (self.library.functions().ibv_query_port)(self.raw.as_ptr(), PORT, &raw mut attr) })?;
        Ok(attr)
    }

    fn gid(&self, index: c_int) -> Option<Gid> {
        let mut gid = verbs_sys::Gid::default();
        let ask = self.library.functions().ibv_query_gid;
        // SAFETY: the device is open, and there is room for the answer.
        check(unsafe { ask(self.raw.as_ptr(), PORT, index, &raw mut gid) }).ok()?;
        Some(gid.into())
    }
}

impl Inner {
    /// Returns the type of a GID, where the library tells it: libibverbs does from 1.11 (rdma-core 34) on.
    fn gid_type(&self, index: u32) -> Option<GidType> {
        let mut entry = GidEntry::zeroed();
        let ask = self.library.functions()._ibv_query_gid_ex?;
        // SAFETY: the device is open, and there is room for an entry of the size that is told.
        check(unsafe {
            ask(self.raw.as_ptr(), PORT.into(), index, &raw mut entry, 0, size_of::<GidEntry>())
        })
        .ok()?;
        Some(entry.gid_type)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // SAFETY: the device is open, and no object made from it is left, since each one owns a `Context`.
        unsafe { (self.library.functions().ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// Makes a descriptor nonblocking.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|error| Errno(error.raw_os_error()))
}
