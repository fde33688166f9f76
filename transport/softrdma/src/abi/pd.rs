//! Protection domains and address handles.
//!
//! # Safety
//! See the module above.

use super::{Object, context::ContextObject, errno, input, output, pointer_of, status_of};
use crate::shm::View;
use rustix::io::Errno;
use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};
use verbs_sys::{Ah, AhAttr, Context, GlobalRoute, Grh, LinkLayer, Pd, Wc, WcFlags};

/// Devices with at least this many protection domains count them for each process separately.
const PER_PROCESS_MIN: u32 = 1024;

/// A protection domain.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PdObject {
    pd: Pd,
    /// Number of the domain, unique in the process.
    pub(super) number: u32,
    /// Number of objects in the domain.
    pub(super) users: Arc<AtomicU32>,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<Pd> for PdObject {}

impl PdObject {
    pub(super) fn context(&self) -> Result<&ContextObject, Errno> {
        ContextObject::from_c(self.pd.context)
    }

    /// Counts a user of the domain until the guard is dropped.
    pub(super) fn used(&self) -> UseGuard {
        self.users.fetch_add(1, Relaxed);
        UseGuard(Arc::clone(&self.users))
    }
}

/// Keeps an object from being destroyed, until it is dropped.
#[derive(Debug)]
pub(super) struct UseGuard(pub(super) Arc<AtomicU32>);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// `ibv_alloc_pd`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    pointer_of(|| {
        let found = ContextObject::from_c(context)?;
        let profile = found.profile();
        let leaked = found.nic.control().ports[found.port as usize].leaked_pds.load(Relaxed);
        let _guard = found.nic.tables().lock();
        let of = |view: &View| view.header().domains[found.port as usize].load(Relaxed);
        // On devices with few domains, those of other processes count, too.
        let taken = if profile.max_pd < PER_PROCESS_MIN {
            found.nic.process().live_views().map(of).sum()
        } else {
            of(found.nic.process().own())
        };
        if leaked.saturating_add(taken) >= profile.max_pd || !profile.allocates_pd_when_down && !found.is_up()
        {
            return Err(errno(profile.errnos.no_domain));
        }
        found.nic.process().own().header().domains[found.port as usize].fetch_add(1, Relaxed);
        let number = found.nic.tables().next_serial();
        let pd = Pd { context, handle: number };
        Ok(PdObject { pd, number, users: Arc::default() }.into_c())
    })
}

/// `ibv_dealloc_pd`
///
/// # Safety
/// The domain must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    status_of(|| {
        let found = PdObject::from_c(pd)?;
        let context = found.context()?;
        if found.users.load(Relaxed) != 0 {
            return Err(Errno::BUSY);
        }
        context.nic.process().own().header().domains[context.port as usize].fetch_sub(1, Relaxed);
        // SAFETY: made by `ibv_alloc_pd`, and not used again by the caller's promise.
        drop(unsafe { PdObject::take_back(pd) });
        Ok(())
    })
}

/// An address handle.
#[derive(Debug)]
#[repr(C)]
pub(super) struct AhObject {
    ah: Ah,
    /// The fabric's number of the port; `u32::MAX` if no port has the address.
    pub(super) port: u32,
    /// Index of the source address plus one; 0 without a global route.
    pub(super) source_gid: u32,
    /// Index of the address in the destination port's table.
    pub(super) dest_gid: u32,
    _pd: UseGuard,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<Ah> for AhObject {}

/// Returns the port that an address names, as seen from `context`; `u32::MAX` for none.
pub(super) fn resolve(context: &ContextObject, attr: &AhAttr) -> Result<u32, Errno> {
    let profile = context.profile();
    let (world, control) = (context.nic.fabric(), context.nic.control());
    if attr.is_global == 0 {
        if profile.link_layer != LinkLayer::INFINIBAND {
            return Err(errno(profile.errnos.no_address));
        }
        return Ok(world.find_lid(attr.dlid).unwrap_or(u32::MAX));
    }
    let own = world.gids(control, context.port);
    let source = own.get(usize::from(attr.grh.sgid_index)).ok_or(errno(profile.errnos.no_address))?;
    if source.is_empty() {
        return Err(errno(profile.errnos.no_address));
    }
    Ok(world.find(control, context.port, attr.grh.dgid).unwrap_or(u32::MAX))
}

/// Returns the index of an address in its port's table.
fn gid_index(context: &ContextObject, port: u32, attr: &AhAttr) -> u32 {
    let table = context.nic.fabric().gids(context.nic.control(), port);
    table.iter().position(|gid| *gid == attr.grh.dgid).unwrap_or_default() as u32
}

/// `ibv_create_ah`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    pointer_of(|| {
        let domain = PdObject::from_c(pd)?;
        let context = domain.context()?;
        let attr = input(attr)?;
        if !context.profile().ud {
            return Err(errno(context.profile().errnos.unsupported));
        }
        if attr.port_num != 1 {
            return Err(Errno::INVAL);
        }
        let port = resolve(context, attr)?;
        let source_gid = if attr.is_global == 0 { 0 } else { u32::from(attr.grh.sgid_index) + 1 };
        let dest_gid = if port == u32::MAX { 0 } else { gid_index(context, port, attr) };
        let ah = Ah { context: context.as_c(), pd, handle: port };
        Ok(AhObject { ah, port, source_gid, dest_gid, _pd: domain.used() }.into_c())
    })
}

/// `ibv_destroy_ah`
///
/// # Safety
/// The address must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    status_of(|| {
        AhObject::from_c(ah)?;
        // SAFETY: made by `ibv_create_ah`, and not used again by the caller's promise.
        drop(unsafe { AhObject::take_back(ah) });
        Ok(())
    })
}

/// `ibv_init_ah_from_wc`: the address of a datagram's sender.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_init_ah_from_wc(
    context: *mut Context,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    status_of(|| {
        let found = ContextObject::from_c(context)?;
        let (wc, attr) = (input(wc)?, output(attr)?);
        *attr = AhAttr::zeroed();
        attr.dlid = wc.slid;
        attr.sl = wc.sl;
        attr.port_num = port;
        if WcFlags(wc.wc_flags).contains(WcFlags::GRH) {
            let grh = input(grh)?;
            let own = found.nic.fabric().gids(found.nic.control(), found.port);
            let index = own.iter().position(|gid| *gid == grh.dgid).ok_or(Errno::INVAL)?;
            attr.is_global = 1;
            attr.grh = GlobalRoute {
                dgid: grh.sgid,
                flow_label: 0,
                sgid_index: index as u8,
                hop_limit: 64,
                traffic_class: 0,
            };
        }
        Ok(())
    })
}

/// `ibv_create_ah_from_wc`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah_from_wc(pd: *mut Pd, wc: *mut Wc, grh: *mut Grh, port: u8) -> *mut Ah {
    let mut attr = AhAttr::zeroed();
    let context = PdObject::from_c(pd).map_or(std::ptr::null_mut(), |found| found.pd.context);
    if ibv_init_ah_from_wc(context, port, wc, grh, &raw mut attr) != 0 {
        return std::ptr::null_mut();
    }
    ibv_create_ah(pd, &raw mut attr)
}
