//! Open devices, and queries about them.
//!
//! # Safety
//! See the module above. A context's structure ends a larger one, so its object begins a known distance
//! before it.

use super::{device::write_c_str, output, status_of, watched::Watched};
use crate::{nic::Nic, profile::Profile, shm::fork_epoch};
use rustix::{fd::OwnedFd, io::Errno};
use std::{
    ffi::c_int,
    mem, ptr,
    sync::{Arc, Mutex, PoisonError},
};
use verbs_sys::{
    Clock, Context, DeviceAttr, DeviceAttrEx, DeviceCapFlags, Gid, GidEntry, GidType, LinkLayer, PortAttr,
    PortCapFlags, PortState, QueryDeviceExInput, ValuesEx, VerbsContext,
};

/// An open device.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextObject {
    verbs: VerbsContext,
    pub(super) nic: Arc<Nic>,
    /// The fabric's number of the device's port.
    pub(super) port: u32,
    epoch: u32,
    /// The channel on which asynchronous events are reported.
    pub(super) async_channel: u32,
    pub(super) async_fd: OwnedFd,
    /// Objects that asynchronous events can be about.
    pub(super) watched: Mutex<Watched>,
}

impl ContextObject {
    const OFFSET: usize = mem::offset_of!(VerbsContext, context);

    /// Creates the object of a newly opened device. Adds this file's queries to `verbs`.
    pub(super) fn new(
        mut verbs: VerbsContext,
        nic: Arc<Nic>,
        port: u32,
        async_channel: u32,
        async_fd: OwnedFd,
    ) -> ContextObject {
        verbs.query_port = Some(query_port_by_size);
        verbs.query_rt_values = Some(query_rt_values);
        verbs.query_device_ex = Some(query_device_ex);
        let watched = Mutex::default();
        ContextObject { verbs, nic, port, epoch: fork_epoch(), async_channel, async_fd, watched }
    }

    /// Returns the object that a C program names. Refuses devices that were opened before a fork.
    #[inline]
    pub(super) fn from_c<'a>(pointer: *mut Context) -> Result<&'a ContextObject, Errno> {
        if pointer.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: contexts of C programs end such objects.
        let context = unsafe { &*pointer.cast::<u8>().sub(Self::OFFSET).cast::<ContextObject>() };
        if context.epoch == fork_epoch() { Ok(context) } else { Err(Errno::INVAL) }
    }

    pub(super) fn as_c(&self) -> *mut Context {
        (&raw const self.verbs.context).cast_mut()
    }

    #[inline]
    pub(super) fn profile(&self) -> &'static Profile {
        self.nic.fabric().profile(self.port)
    }

    fn check_port(&self, number: u8) -> Result<(), Errno> {
        if number == 1 { Ok(()) } else { Err(Errno::INVAL) }
    }

    pub(super) fn is_up(&self) -> bool {
        self.nic.fabric().has_link(self.nic.control(), self.port)
    }

    fn gid(&self, port: u8, index: u32) -> Result<Gid, Errno> {
        self.check_port(port)?;
        let table = self.nic.fabric().gids(self.nic.control(), self.port);
        table.get(index as usize).copied().ok_or(Errno::INVAL)
    }

    fn port_attr(&self) -> PortAttr {
        let profile = self.profile();
        let mut attr = PortAttr::zeroed();
        let is_up = self.is_up();
        attr.state = if is_up { PortState::ACTIVE } else { PortState::DOWN };
        attr.max_mtu = profile.max_mtu;
        attr.active_mtu = profile.active_mtu;
        attr.gid_tbl_len = crate::fabric::GID_TABLE_LEN as c_int;
        attr.port_cap_flags = (PortCapFlags::CM_SUP | PortCapFlags::IP_BASED_GIDS).0;
        attr.max_msg_sz = profile.max_message_bytes;
        attr.pkey_tbl_len = 1;
        attr.max_vl_num = 1;
        attr.active_width = profile.active_width;
        attr.active_speed = profile.active_speed;
        attr.phys_state = if is_up { 5 } else { 3 };
        attr.link_layer = profile.link_layer;
        if profile.link_layer == LinkLayer::INFINIBAND {
            attr.lid = self.nic.fabric().lid(self.port);
            attr.sm_lid = 1;
        }
        attr
    }

    fn device_attr(&self) -> DeviceAttr {
        let profile = self.profile();
        let guid = self.nic.fabric().device(self.port).guid().to_be();
        let mut attr = DeviceAttr::zeroed();
        write_c_str(&mut attr.fw_ver, profile.firmware);
        attr.node_guid = guid;
        attr.sys_image_guid = guid;
        attr.max_mr_size = profile.max_mr_bytes;
        attr.page_size_cap = !(rustix::param::page_size() as u64 - 1);
        attr.vendor_id = profile.vendor_id;
        attr.vendor_part_id = profile.vendor_part_id;
        // The device reports as many more than it has as its profile does.
        let surplus = profile.reported_qps - profile.usable_qps;
        attr.max_qp = (self.nic.fabric().device(self.port).usable_queue_pairs + surplus) as c_int;
        attr.max_qp_wr = profile.max_wr as c_int;
        attr.device_cap_flags = (DeviceCapFlags::CURR_QP_STATE_MOD
            | DeviceCapFlags::PORT_ACTIVE_EVENT
            | DeviceCapFlags::SYS_IMAGE_GUID
            | DeviceCapFlags::RC_RNR_NAK_GEN)
            .0;
        attr.max_sge = profile.max_sge as c_int;
        attr.max_sge_rd = profile.max_sge as c_int;
        attr.max_cq = profile.max_cq as c_int;
        attr.max_cqe = profile.max_cqe as c_int;
        attr.max_mr = profile.max_mr as c_int;
        attr.max_pd = profile.max_pd as c_int;
        attr.max_qp_rd_atom = c_int::from(profile.max_rd_atomic);
        attr.max_qp_init_rd_atom = c_int::from(profile.max_rd_atomic);
        attr.max_res_rd_atom = c_int::from(profile.max_rd_atomic) * profile.reported_qps as c_int;
        attr.atomic_cap = profile.atomic_cap;
        attr.max_ah = if profile.ud { 65_536 } else { 0 };
        attr.max_srq = profile.max_srq as c_int;
        if profile.max_srq > 0 {
            attr.max_srq_wr = profile.max_wr as c_int;
            attr.max_srq_sge = profile.max_sge as c_int;
        }
        attr.max_pkeys = 1;
        attr.local_ca_ack_delay = 15;
        attr.phys_port_cnt = 1;
        attr
    }

    /// Changes the lists of objects.
    pub(super) fn watch(&self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// `ibv_close_device`
///
/// # Safety
/// The context must not be used again, nor what was made with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    status_of(|| {
        let found = ContextObject::from_c(context)?;
        found.nic.process().waker.forget(found.nic.process().me.slot, found.async_channel);
        let start = (&raw const *found).cast_mut();
        // SAFETY: made by `open` in a box, and not used again by the caller's promise.
        drop(unsafe { Box::from_raw(start) });
        Ok(())
    })
}

/// `ibv_query_device`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    status_of(|| {
        *output(attr)? = ContextObject::from_c(context)?.device_attr();
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    _input: *const QueryDeviceExInput,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    status_of(|| {
        let found = ContextObject::from_c(context)?;
        let mut all = DeviceAttrEx::zeroed();
        all.orig_attr = found.device_attr();
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = 1_000_000;
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags);
        all.phys_port_cnt_ex = 1;
        output(attr)?;
        // SAFETY: the caller has room for `size` bytes.
        unsafe { copy_prefix(&all, attr, size) };
        Ok(())
    })
}

/// `ibv_query_port` for its oldest callers: without the members that were added later.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: callers have room for that many bytes.
    unsafe { query_port_by_size(context, port, attr, PortAttr::COMPAT_BYTES) }
}

unsafe extern "C" fn query_port_by_size(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    size: usize,
) -> c_int {
    status_of(|| {
        let found = ContextObject::from_c(context)?;
        found.check_port(port)?;
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller has room for `size` bytes.
        unsafe { copy_prefix(&found.port_attr(), attr, size) };
        Ok(())
    })
}

/// Writes as much of a structure as its caller knows, and zeros into the members that only the caller knows.
///
/// # Safety
/// `to` must have room for `size` bytes.
unsafe fn copy_prefix<T>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are in both; `size` bytes are at `to`.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
    }
}

unsafe extern "C" fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
    status_of(|| {
        ContextObject::from_c(context)?;
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        output(values)?.raw_clock = Clock(libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        Ok(())
    })
}

/// `ibv_query_gid`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int {
    let asked = status_of(|| {
        let found = ContextObject::from_c(context)?.gid(port, index as u32)?;
        *output(gid)? = found;
        Ok(())
    });
    if asked == 0 { 0 } else { -1 }
}

fn gid_type(found: &ContextObject, gid: Gid) -> GidType {
    match found.profile().link_layer {
        LinkLayer::INFINIBAND => GidType::IB,
        _ if gid.to_ipv4().is_some() => GidType::ROCE_V2,
        _ => GidType::ROCE_V1,
    }
}

/// `ibv_query_gid_type`: for its oldest callers, with two values.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_gid_type(context: *mut Context, port: u8, index: u32, kind: *mut u32) -> c_int {
    let asked = status_of(|| {
        let found = ContextObject::from_c(context)?;
        let gid = found.gid(port, index)?;
        *output(kind)? = u32::from(gid_type(found, gid) == GidType::ROCE_V2);
        Ok(())
    });
    if asked == 0 { 0 } else { -1 }
}

fn gid_entry(found: &ContextObject, index: u32) -> Result<GidEntry, Errno> {
    let gid = found.gid(1, index)?;
    let kind = gid_type(found, gid);
    Ok(GidEntry { gid, gid_index: index, port_num: 1, gid_type: kind, ndev_ifindex: 0 })
}

/// `ibv_query_gid_ex`
#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    _flags: u32,
    size: usize,
) -> c_int {
    status_of(|| {
        let found = ContextObject::from_c(context)?;
        found.check_port(u8::try_from(port).map_err(|_| Errno::INVAL)?)?;
        let known = gid_entry(found, index)?;
        if known.gid.is_empty() {
            return Err(Errno::NODATA);
        }
        output(entry)?;
        // SAFETY: the caller has room for `size` bytes.
        unsafe { copy_prefix(&known, entry, size) };
        Ok(())
    })
}

/// `ibv_query_gid_table`: returns the addresses that are not empty.
///
/// # Safety
/// `entries` must have room for `room` entries of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    room: usize,
    _flags: u32,
    size: usize,
) -> isize {
    super::value_of(-(libc::EIO as isize), || {
        let Ok(found) = ContextObject::from_c(context) else { return -(libc::EINVAL as isize) };
        let known = (0..crate::fabric::GID_TABLE_LEN as u32).filter_map(|index| gid_entry(found, index).ok());
        let mut count = 0;
        for entry in known.filter(|entry| !entry.gid.is_empty()) {
            if count == room || entries.is_null() {
                return -(libc::EINVAL as isize);
            }
            // SAFETY: `count` is less than `room`, by the caller's promise.
            unsafe { copy_prefix(&entry, entries.cast::<u8>().add(count * size).cast(), size) };
            count += 1;
        }
        count as isize
    })
}

/// `ibv_query_pkey`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_pkey(context: *mut Context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    let asked = status_of(|| {
        ContextObject::from_c(context)?.check_port(port)?;
        if index != 0 {
            return Err(Errno::INVAL);
        }
        *output(pkey)? = 0xffff;
        Ok(())
    });
    if asked == 0 { 0 } else { -1 }
}

/// `ibv_get_pkey_index`: `pkey` is in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_context: *mut Context, _port: u8, pkey: u16) -> c_int {
    if pkey == 0xffff { 0 } else { -1 }
}
