//! Memory that calls move without copies: allocated here, or the program's own and registered.
//!
//! # Safety
//! Memory is allocated and freed with one layout, kept beside its address. A registration ends before its
//! memory does: `tbccl.h` asks for that, and [`tbcclMemFree`] refuses memory that is still registered.

use crate::{
    boundary::{Outcome, boundary},
    cast::{self, bits_of, out},
    comm_handle::{find, tbcclComm_t},
    failure::Failure,
    handle::{Held, Key, Kind, Table},
    tbcclResult_t,
};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    ffi::c_void,
    mem::MaybeUninit,
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tbccl::{Buffer, Registration};

/// Memory that this module has allocated.
enum Allocation {
    /// From the allocator.
    Own(Layout),
    /// From a communicator's slab.
    Slab(Buffer<u8>),
}

/// Allocated memory, by address.
static ALLOCATIONS: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

fn given() -> MutexGuard<'static, BTreeMap<usize, Allocation>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of the program that is registered with devices.
#[derive(Debug)]
struct Registered {
    /// The communicator that it is registered with.
    comm: Key,
    start: usize,
    size: usize,
    _registration: Mutex<Registration>,
}

static REGISTERED: Table<Registered> = Table::new();

/// Registered ranges of addresses.
static REGISTERED_RANGES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn ranges() -> MutexGuard<'static, Vec<(usize, usize)>> {
    REGISTERED_RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Alignment of large memory: the size of a large page, so that devices and processors map it with few
/// entries.
const LARGE: usize = 2 << 20;

/// Alignment and granularity of all memory, so that it shares no page. Apple's machines have pages of 16 KiB.
const PAGE: usize = 16 << 10;

/// Allocates memory to be registered: whole pages, zeroed. A size of 0 gives NULL. tbcclMemFree frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclMemAlloc(
    ptr: Option<&mut MaybeUninit<*mut c_void>>,
    size: usize,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("ptr", ptr)?;
        place.write(null_mut());
        if size == 0 {
            return Ok(());
        }
        let align = if size >= LARGE { LARGE } else { PAGE };
        let whole = size.checked_next_multiple_of(PAGE);
        let layout = whole.and_then(|size| Layout::from_size_align(size, align).ok());
        let layout = layout.ok_or_else(|| {
            Failure::argument(format!("size is {size}, which is more than memory can hold"))
        })?;
        // SAFETY: the layout has a size above 0.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(Failure::system(format!("can't allocate {size} bytes of memory")));
        }
        given().insert(memory.addr(), Allocation::Own(layout));
        place.write(memory.cast());
        Ok(())
    })
}

/// Allocates memory of a communicator, zeroed; calls on it move it without copies on every transport. A size
/// of 0 gives NULL. tbcclMemFree frees it, also after the communicator has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommMemAlloc(
    comm: tbcclComm_t,
    ptr: Option<&mut MaybeUninit<*mut c_void>>,
    size: usize,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("ptr", ptr)?;
        place.write(null_mut());
        let found = find(comm)?;
        if size == 0 {
            return Ok(());
        }
        let mut buffer = found.shared.with(|comm| comm.alloc::<u8>(size))??;
        let memory = buffer.as_mut_ptr();
        given().insert(memory.addr(), Allocation::Slab(buffer));
        place.write(memory.cast());
        Ok(())
    })
}

/// Frees memory of tbcclMemAlloc or tbcclCommMemAlloc that no call in progress uses and that is not
/// registered. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclMemFree(ptr: *mut c_void) -> tbcclResult_t {
    boundary(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let mut given = given();
        let Some(found) = given.get(&ptr.addr()) else {
            return Err(Failure::argument("ptr is not memory of tbcclMemAlloc, or was freed"));
        };
        if let Allocation::Own(layout) = found {
            let end = ptr.addr() + layout.size();
            if ranges().iter().any(|(start, size)| *start < end && ptr.addr() < start + size) {
                return Err(Failure::usage("ptr is registered; call tbcclCommDeregister first"));
            }
        }
        let freed = given.remove(&ptr.addr());
        drop(given);
        match freed {
            // SAFETY: it was allocated with this layout, and no other thread frees it, since it is out of the
            // list.
            Some(Allocation::Own(layout)) => unsafe { dealloc(ptr.cast(), layout) },
            Some(Allocation::Slab(buffer)) => drop(buffer),
            None => {}
        }
        Ok(())
    })
}

/// Registers memory of the program with the communicator's devices, so that calls on it make no copies, where
/// transport and devices allow that. The memory must stay until tbcclCommDeregister is called with the
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommRegister(
    comm: tbcclComm_t,
    buff: *mut c_void,
    size: usize,
    handle: Option<&mut MaybeUninit<*mut c_void>>,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("handle", handle)?;
        place.write(null_mut());
        let found = find(comm)?;
        let start = buff.addr();
        if buff.is_null() || size == 0 {
            return Err(Failure::argument("buff is NULL or has no bytes"));
        }
        if start.checked_add(size).is_none() {
            return Err(Failure::argument(format!("size is {size}, which is more than memory can hold")));
        }
        // SAFETY: as `tbccl.h` says, the memory is there and writable until it is deregistered.
        let registration = found.shared.with(|comm| unsafe { comm.register_raw(buff.cast(), size) })??;
        let registered =
            Registered { comm: found.first(), start, size, _registration: Mutex::new(registration) };
        let key = REGISTERED
            .insert(registered)
            .ok_or_else(|| Failure::usage("too much memory is registered; deregister some"))?;
        ranges().push((start, size));
        place.write(cast::handle_of(key, Kind::Registration));
        Ok(())
    })
}

/// Ends a registration of this communicator. No call in progress may use the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommDeregister(comm: tbcclComm_t, handle: *mut c_void) -> tbcclResult_t {
    boundary(|| {
        let found = find(comm)?;
        let registered = find_registered(handle)?;
        if registered.comm != found.first() {
            return Err(Failure::argument("handle is of a registration with another communicator"));
        }
        if !Table::close(&registered) {
            return Err(Failure::argument("handle was deregistered"));
        }
        let range = (registered.start, registered.size);
        // Ends the registration, unless another thread holds it; that thread ends it then.
        drop(registered);
        let mut ranges = ranges();
        if let Some(at) = ranges.iter().position(|one| *one == range) {
            ranges.swap_remove(at);
        }
        Ok(())
    })
}

fn find_registered(handle: *mut c_void) -> Outcome<Held<Registered>> {
    let key = Key::from_bits(bits_of(handle.cast_const()), Kind::Registration);
    key.and_then(|key| REGISTERED.get(key))
        .ok_or_else(|| Failure::argument("handle is not one of tbcclCommRegister, or was deregistered"))
}
