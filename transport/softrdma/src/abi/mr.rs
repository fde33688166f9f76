//! Memory registration.
//!
//! # Safety
//! See the module above. Sharing pages replaces them by others with the same content; `remap` documents the
//! conditions.

use super::{
    Object,
    context::ContextObject,
    errno,
    pd::{PdObject, UseGuard},
    pointer_of, status_of,
};
use crate::{
    log,
    nic::Nic,
    remap,
    shm::{MRS, MrRecord},
};
use rustix::io::Errno;
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
};
use verbs_sys::{AccessFlags, Mr, Pd};

/// A memory region.
#[derive(Debug)]
#[repr(C)]
struct MrObject {
    mr: Mr,
    nic: Arc<Nic>,
    index: u32,
    _pd: UseGuard,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<Mr> for MrObject {}

const SUPPORTED: AccessFlags = AccessFlags::LOCAL_WRITE
    .with(AccessFlags::REMOTE_WRITE)
    .with(AccessFlags::REMOTE_READ)
    .with(AccessFlags::REMOTE_ATOMIC)
    .with(AccessFlags::MW_BIND)
    .with(AccessFlags::ZERO_BASED)
    .with(AccessFlags::HUGETLB)
    .with(AccessFlags(0x3ff << 20));

/// Checks a registration against the device's profile.
fn check(context: &ContextObject, start: u64, len: u64, iova: u64, access: AccessFlags) -> Result<(), Errno> {
    let profile = context.profile();
    let is_known = access.without(SUPPORTED) == AccessFlags::NONE;
    let writes = access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC);
    let end = start.checked_add(len).ok_or(Errno::INVAL)?;
    iova.checked_add(len).ok_or(Errno::INVAL)?;
    if access.contains(AccessFlags::ON_DEMAND) || !is_known {
        return Err(errno(profile.errnos.unsupported));
    }
    if len == 0 || writes && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    if iova != start && !profile.zero_based {
        return Err(errno(profile.errnos.unsupported));
    }
    if profile.enforces_max_mr_bytes && len > profile.max_mr_bytes {
        return Err(Errno::INVAL);
    }
    if remap::is_mapped(start, end) { Ok(()) } else { Err(Errno::FAULT) }
}

fn register(
    pd: *mut Pd,
    start: *mut c_void,
    len: usize,
    iova: u64,
    access: AccessFlags,
) -> Result<*mut Mr, Errno> {
    let domain = PdObject::from_c(pd)?;
    let context = domain.context()?;
    let (profile, nic) = (context.profile(), &context.nic);
    let address = start as u64;
    check(context, address, len as u64, iova, access)?;
    let wraps = profile.crosses_4gib_line(address, len as u64);
    if wraps {
        log::warn(format_args!(
            "{len} bytes at {address:#x} cross a 4 GiB line: what lies beyond it is written 4 GiB lower"
        ));
    }
    let guard = nic.tables().lock();
    let own = nic.process().own();
    let is_ours =
        |record: &&MrRecord| record.key.load(Relaxed) != 0 && record.port.load(Relaxed) == context.port;
    // On devices with few regions, those of other processes count, too.
    let taken = if profile.max_mr < MRS {
        let all = nic.process().live_views().flat_map(|view| (0..MRS).filter_map(|index| view.mr(index)));
        all.filter(is_ours).count()
    } else {
        0
    };
    if taken >= profile.max_mr as usize {
        return Err(errno(profile.errnos.no_registration));
    }
    // Index 0 would make the first keys small numbers, which are easy to guess.
    let free = (1..MRS).find(|&index| own.mr(index).is_some_and(|record| record.key.load(Relaxed) == 0));
    let index = free.ok_or(errno(profile.errnos.no_registration))?;
    let record = own.mr(index).ok_or(Errno::NOMEM)?;
    let shared_at = if nic.shares_pages() { remap::share(nic.process(), address, len as u64) } else { None };
    let serial = nic.tables().next_serial();
    let key = index << 8 | serial & 0xff;
    record.pd.store(domain.number, Relaxed);
    record.access.store(access.0, Relaxed);
    record.serial.store(serial, Relaxed);
    record.iova.store(iova, Relaxed);
    record.address.store(address, Relaxed);
    record.len.store(len as u64, Relaxed);
    record.shared_at.store(shared_at.unwrap_or(u64::MAX), Relaxed);
    record.port.store(context.port, Relaxed);
    record.wraps.store(wraps.into(), Relaxed);
    record.key.store(key, SeqCst);
    drop(guard);
    let mut mr = Mr::zeroed();
    mr.context = context.as_c();
    mr.pd = pd;
    mr.addr = start;
    mr.length = len;
    mr.handle = index;
    mr.lkey = key;
    mr.rkey = if profile.remote_keys { key } else { 0 };
    Ok(MrObject { mr, nic: Arc::clone(nic), index, _pd: domain.used() }.into_c())
}

/// Returns the address by which peers name memory that was registered without one.
fn default_iova(start: *mut c_void, access: AccessFlags) -> u64 {
    if access.contains(AccessFlags::ZERO_BASED) { 0 } else { start as u64 }
}

/// `ibv_reg_mr`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    let access = AccessFlags(access as u32);
    pointer_of(|| register(pd, addr, length, default_iova(addr, access), access))
}

/// `ibv_reg_mr_iova`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    pointer_of(|| register(pd, addr, length, iova, AccessFlags(access as u32)))
}

/// `ibv_reg_mr_iova2`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    let access = AccessFlags(access);
    let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
    pointer_of(|| register(pd, addr, length, iova, access))
}

/// `ibv_dereg_mr`: returns once no process uses the memory.
///
/// # Safety
/// The registration must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    status_of(|| {
        let found = MrObject::from_c(mr)?;
        if found.nic.process().is_inherited() {
            return Err(Errno::INVAL);
        }
        let record = found.nic.process().own().mr(found.index).ok_or(Errno::INVAL)?;
        found.nic.revoke_key(&record.key);
        // SAFETY: made by `register`, and not used again by the caller's promise.
        drop(unsafe { MrObject::take_back(mr) });
        Ok(())
    })
}

/// `ibv_rereg_mr`: not supported, as by many drivers. The result -1 says that the registration stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rereg_mr(
    _mr: *mut Mr,
    _flags: c_int,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    fail_unsupported(-1)
}

/// `ibv_reg_dmabuf_mr`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut Pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut Mr {
    fail_unsupported(std::ptr::null_mut())
}

fn fail_unsupported<T>(result: T) -> T {
    super::set_errno(Errno::OPNOTSUPP);
    result
}
