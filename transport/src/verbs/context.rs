//! An open device.
//!
//! # Safety
//! The context is open from [`Context::open`] until the last owner is dropped, and every object made from it owns a
//! [`Context`]. Verbs promise that contexts may be used by several threads at a time. Structures that are passed live
//! until the call returns; asynchronous events are acknowledged exactly once, and only after they were fetched.

use super::{
    Action, AsyncEvent, Cause, DeviceInfo, Gid, Library, Refusal, VerbsError,
    errno::{Errno, check},
    functions::Functions,
    port::PORT,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    ffi::c_int,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};
use verbs_sys::{Device, DeviceAttr, PortAttr, PortState, TransportType};

/// An open device. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<verbs_sys::Context>,
    info: DeviceInfo,
    attributes: Option<DeviceAttr>,
    /// Where events are announced, if that can be looked at without blocking.
    async_fd: Option<RawFd>,
    library: Library,
}

// SAFETY: verbs promise that contexts may be used by any thread, several at a time; the rest does not change.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Library {
    /// Opens a device.
    ///
    /// # Errors
    /// [`VerbsError::UnknownDevice`] with the nearest name and all of them; [`VerbsError::Refused`].
    pub fn open(&self, name: &str) -> Result<Context, VerbsError> {
        self.with_device(name, |info, device| Context::open(self, info, device))
    }
}

impl Context {
    fn open(library: &Library, info: DeviceInfo, device: NonNull<Device>) -> Result<Context, VerbsError> {
        let functions = library.functions();
        Errno::clear();
        // SAFETY: a device of a living list.
        let raw = unsafe { (functions.ibv_open_device)(device.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| VerbsError::of_library(&info.name, Action::Open, Errno::last()))?;
        // From here on it is closed whatever happens.
        let mut inner = Inner { raw, info, attributes: None, async_fd: None, library: library.clone() };
        inner.check_operations()?;
        inner.attributes = inner.query_attributes();
        inner.async_fd = inner.unblocked_async_fd();
        Ok(Context(Arc::new(inner)))
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// What the list of devices said.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The device's limits, if it tells any. Not all of them can be believed.
    #[must_use]
    pub fn attributes(&self) -> Option<&DeviceAttr> {
        self.0.attributes.as_ref()
    }

    /// The port as it is now.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not answer.
    pub fn port(&self) -> Result<PortAttr, VerbsError> {
        self.0.port().map_err(|errno| VerbsError::of_library(self.name(), Action::QueryPort, errno))
    }

    /// The addresses of the port as they are now, with their places in its table. Places without one are left out.
    #[must_use]
    pub fn gids(&self) -> Vec<(u8, Gid)> {
        let len = self.0.port().map_or(0, |port| port.gid_tbl_len.clamp(0, 256));
        let table = (0..len).filter_map(|index| Some((u8::try_from(index).ok()?, self.0.gid(index)?)));
        table.filter(|(_, gid)| !gid.is_empty()).collect()
    }

    /// What will keep the port from being connected, if something will.
    #[must_use]
    pub fn doubt(&self) -> Option<Cause> {
        match self.port() {
            Ok(port) if port.state == PortState::ACTIVE => {
                Cause::of_addresses(&self.gids(), self.is_thunderbolt())
            }
            Ok(_) => Some(Cause::PortDown),
            Err(error) => error.cause(),
        }
    }

    /// Readable when there is an event to fetch; `None` where a device has none, or could not be asked without
    /// blocking.
    #[must_use]
    pub fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: open as long as the device, which outlives the borrow.
        self.0.async_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Fetches and acknowledges an event, if there is one. Does not wait.
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
        // SAFETY: both members are plain data, valid in whatever bits the library wrote over zeroes.
        let (port, object) = unsafe { (event.element.port_num, event.element.qp.addr()) };
        let told = AsyncEvent::of(event.event_type, port, object);
        // SAFETY: fetched above, acknowledged once.
        unsafe { acknowledge(&raw mut event) };
        Some(told)
    }

    /// Does Thunderbolt run on its wire, whose devices differ from all others?
    #[must_use]
    pub fn is_thunderbolt(&self) -> bool {
        self.0.info.transport_type == TransportType::THUNDERBOLT
    }

    pub(super) fn raw(&self) -> *mut verbs_sys::Context {
        self.0.raw.as_ptr()
    }

    pub(super) fn functions(&self) -> &Functions {
        self.0.library.functions()
    }

    /// The error for a refused call, with what can be known now.
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
    /// What has no name must be in the table of operations.
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

    fn unblocked_async_fd(&self) -> Option<RawFd> {
        // SAFETY: the device is open.
        let fd: c_int = unsafe { (&raw const (*self.raw.as_ptr()).async_fd).read() };
        if fd < 0 {
            return None;
        }
        // SAFETY: the library keeps it open as long as the device.
        unblock(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
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

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: open, and the last owner goes: all that was made from it owned a `Context`.
        unsafe { (self.library.functions().ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// Lets reads from a descriptor return at once.
pub(super) fn unblock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|error| Errno(error.raw_os_error()))
}
