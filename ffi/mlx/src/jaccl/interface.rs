//! Functions that the C++ side calls: joining, the calls of a group, leaving.
//!
//! `ffi/jaccl/cpp/core.h` declares them. A function that can fail returns null, or a message that the C++
//! side frees by [`tbccl_jaccl_free_message`] and throws.
//!
//! A world is never freed, since calls may be in progress on other threads when the program drops its group:
//! they find out by its state that it has been left.
//!
//! # Safety
//! The C++ side passes addresses that are valid while a call lasts, and worlds that a function of this module
//! has returned. Buffers are as large as the program says.
#![allow(clippy::missing_safety_doc)] // It is the same for all of them, and said above.

use super::devices::{self, DeviceList, matrix};
use crate::{
    Failure, Group, JobSpec, Messages, Outcome, Rendezvous, World,
    boundary::{message_of, or_code},
    dtypes,
};
use mlx_table::jaccl::{Devices, ID_BYTES, Job, World as WorldHandle};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr::null_mut,
    sync::{Arc, PoisonError, RwLock},
};
use tbccl::{Collective, DType, Operation, RawCall, ReduceOp, UniqueId, bootstrap};

/// A joined job, as the C++ side holds it.
#[derive(Debug)]
pub(super) struct JoinedWorld {
    rank: c_int,
    size: c_int,
    /// The world; `None` once it is left.
    world: RwLock<Option<World>>,
}

/// Tag of all messages.
const TAG: i32 = 0;

impl JoinedWorld {
    fn leak(world: World) -> WorldHandle {
        let (rank, size) = (world.group().rank().0 as c_int, world.group().size() as c_int);
        let joined = JoinedWorld { rank, size, world: RwLock::new(Some(world)) };
        Box::into_raw(Box::new(joined)).cast_const().cast()
    }

    /// Returns a part of the world that outlives the lock.
    fn part<T>(&self, of: impl FnOnce(&World) -> &Arc<T>) -> Outcome<Arc<T>> {
        let world = self.world.read().unwrap_or_else(PoisonError::into_inner);
        let part = world.as_ref().map(|world| Arc::clone(of(world)));
        part.ok_or_else(|| Failure::usage("this group has been dropped"))
    }

    fn group(&self) -> Outcome<Arc<Group>> {
        self.part(World::group)
    }

    fn messages(&self) -> Outcome<Arc<Messages>> {
        self.part(World::messages)
    }
}

/// Returns the world of a handle.
///
/// # Safety
/// A function of this module has returned the handle.
unsafe fn joined<'w>(world: WorldHandle) -> &'w JoinedWorld {
    // SAFETY: by this function's contract; worlds are never freed.
    unsafe { &*world.cast::<JoinedWorld>() }
}

/// Returns the text at an address.
///
/// # Safety
/// A text that ends with a zero is there.
unsafe fn text<'t>(at: *const c_char) -> Outcome<&'t str> {
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::usage(format!("{} is not UTF-8", text.to_string_lossy())))
}

/// Frees a message.
pub(super) unsafe extern "C" fn tbccl_jaccl_free_message(message: *mut c_char) {
    // SAFETY: `message_of` has made it, and the C++ side frees it once.
    drop(unsafe { CString::from_raw(message) });
}

/// Reads a file with devices.
pub(super) unsafe extern "C" fn tbccl_jaccl_read_devices(
    path: *const c_char,
    output: *mut Devices,
) -> *mut c_char {
    message_of("jaccl::init", || {
        // SAFETY: the C++ side keeps to the module's rules.
        let path = unsafe { text(path)? };
        let list = DeviceList::read(Path::new(path)).map_err(Failure::usage)?;
        // SAFETY: as above.
        unsafe { output.write(list.into_c()) };
        Ok(())
    })
}

/// Frees the devices of a file.
pub(super) unsafe extern "C" fn tbccl_jaccl_free_devices(devices: *mut Devices) {
    // SAFETY: the C++ side passes what `tbccl_jaccl_read_devices` has written, or zeros.
    unsafe { devices::free(&devices.replace(Devices::NONE)) };
}

/// Whether `tbccl run` has started this process.
pub(super) extern "C" fn tbccl_jaccl_is_launched() -> bool {
    std::env::var_os("TBCCL_RANK").is_some_and(|rank| !rank.is_empty())
}

/// Joins the job of `tbccl run`. Writes no world for a job of one rank.
pub(super) unsafe extern "C" fn tbccl_jaccl_join_launched(output: *mut WorldHandle) -> *mut c_char {
    message_of("jaccl::init", || {
        if tbccl::ranks_of_env() == Some(1) {
            return Ok(());
        }
        let world = JoinedWorld::leak(World::join()?);
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { output.write(world) };
        Ok(())
    })
}

/// Joins the job that the program describes, whose ranks meet at this address of rank 0.
pub(super) unsafe extern "C" fn tbccl_jaccl_join_at(
    job: *const Job,
    coordinator: *const c_char,
    output: *mut WorldHandle,
) -> *mut c_char {
    message_of("jaccl::init", || {
        // SAFETY: the C++ side keeps to the module's rules.
        let (job, coordinator) = unsafe { (&*job, text(coordinator)?) };
        let (host, port) = bootstrap::host_and_port(coordinator).ok_or_else(|| {
            Failure::usage(format!(
                "the coordinator `{coordinator}` is not HOST:PORT, with an address of rank 0 and a free port \
                 there (JACCL_COORDINATOR, MLX_JACCL_COORDINATOR)"
            ))
        })?;
        // SAFETY: as above.
        unsafe { join(job, Rendezvous::Root { host, port }, output) }
    })
}

/// Creates the id of a job.
pub(super) unsafe extern "C" fn tbccl_jaccl_create_id(output: *mut [u8; ID_BYTES]) -> *mut c_char {
    message_of("jaccl::init", || {
        let id = UniqueId::create_for_channel().map_err(tbccl::Error::from)?;
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { output.write(id) };
        Ok(())
    })
}

/// Gives up an id that has been created and not been passed on.
pub(super) unsafe extern "C" fn tbccl_jaccl_discard_id(id: *const [u8; ID_BYTES]) {
    or_code(|| {
        // SAFETY: the C++ side keeps to the module's rules.
        if let Ok(id) = UniqueId::from_channel(unsafe { id.read() }) {
            id.discard("rank 0 could not pass on the id of its job");
        }
        Ok(())
    });
}

/// Joins the job that the program describes, by the id that rank 0 has created.
pub(super) unsafe extern "C" fn tbccl_jaccl_join_by(
    job: *const Job,
    id: *const [u8; ID_BYTES],
    output: *mut WorldHandle,
) -> *mut c_char {
    message_of("jaccl::init", || {
        // SAFETY: the C++ side keeps to the module's rules.
        let (job, id) = unsafe { (&*job, id.read()) };
        let id = UniqueId::from_channel(id).map_err(|error| {
            Failure::usage(format!(
                "the all-gather function of the program did not pass rank 0's id on: {error}"
            ))
        })?;
        // SAFETY: as above.
        unsafe { join(job, Rendezvous::Id(id), output) }
    })
}

/// # Safety
/// As the module says.
unsafe fn join(job: &Job, rendezvous: Rendezvous, output: *mut WorldHandle) -> Outcome {
    // SAFETY: the C++ side keeps to the module's rules.
    let list = unsafe { devices::list_of(&job.devices)? };
    let matrix_of_job = matrix(&list, job.ring).map_err(Failure::usage)?;
    let world =
        World::join_job(JobSpec { rank: job.rank, size: list.ranks(), rendezvous, devices: matrix_of_job })?;
    // SAFETY: as above.
    unsafe { output.write(JoinedWorld::leak(world)) };
    Ok(())
}

/// Leaves the job, once no rank waits for a call of this one any more.
pub(super) unsafe extern "C" fn tbccl_jaccl_leave(world: WorldHandle) {
    or_code(|| {
        // SAFETY: the C++ side keeps to the module's rules.
        let joined = unsafe { joined(world) };
        let world = joined.world.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(world) = world {
            // Other threads may still make calls while it waits, which MLX has queued.
            world.prepare_to_leave([]);
        }
        let left = joined.world.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(left);
        Ok(())
    });
}

/// Returns this rank.
pub(super) unsafe extern "C" fn tbccl_jaccl_rank(world: WorldHandle) -> c_int {
    // SAFETY: the C++ side keeps to the module's rules.
    unsafe { joined(world) }.rank
}

/// Returns the number of ranks.
pub(super) unsafe extern "C" fn tbccl_jaccl_size(world: WorldHandle) -> c_int {
    // SAFETY: the C++ side keeps to the module's rules.
    unsafe { joined(world) }.size
}

/// Returns the element type, and the number of elements in some bytes.
fn elements(bytes: usize, dtype: c_int) -> Outcome<(DType, usize)> {
    let dtype = dtypes::from_number(dtype)?;
    if !bytes.is_multiple_of(dtype.size()) {
        let size = dtype.size();
        return Err(Failure::usage(format!(
            "{bytes} bytes are not whole elements of {dtype}, which have {size}"
        )));
    }
    Ok((dtype, bytes / dtype.size()))
}

/// Makes a call of all ranks.
///
/// # Safety
/// The buffers are as large as the operation says.
unsafe fn call(
    world: WorldHandle,
    operation: Operation<'static>,
    (dtype, count): (DType, usize),
    (send, recv): (*const c_void, *mut c_void),
) -> Outcome {
    // SAFETY: the C++ side keeps to the module's rules.
    let group = unsafe { joined(world) }.group()?;
    let call = RawCall { operation, dtype, count, send: send.cast(), recv: recv.cast() };
    // SAFETY: by this function's contract.
    unsafe { group.call(&call) }
}

/// Defines functions that reduce elements of all ranks.
macro_rules! reductions {
    ($($(#[$doc:meta])* $function:ident, $name:literal: $collective:ident, $op:ident;)*) => {
        $(
            $(#[$doc])*
            pub(super) unsafe extern "C" fn $function(
                world: WorldHandle,
                input: *const c_void,
                output: *mut c_void,
                bytes: usize,
                dtype: c_int,
            ) -> *mut c_char {
                message_of($name, || {
                    let operation = Operation::new(Collective::$collective).with_op(ReduceOp::$op);
                    // SAFETY: the C++ side keeps to the module's rules.
                    unsafe { call(world, operation, elements(bytes, dtype)?, (input, output)) }
                })
            }
        )*
    };
}

reductions! {
    /// Sums elements.
    tbccl_jaccl_all_sum, "all_sum": AllReduce, Sum;
    /// Stores the greatest elements.
    tbccl_jaccl_all_max, "all_max": AllReduce, Max;
    /// Stores the least elements.
    tbccl_jaccl_all_min, "all_min": AllReduce, Min;
    /// Sums a block of elements per rank, and stores the block of this rank.
    tbccl_jaccl_sum_scatter, "sum_scatter": ReduceScatter, Sum;
}

/// Gathers the bytes of all ranks.
pub(super) unsafe extern "C" fn tbccl_jaccl_all_gather(
    world: WorldHandle,
    input: *const c_void,
    output: *mut c_void,
    bytes: usize,
) -> *mut c_char {
    message_of("all_gather", || {
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { call(world, Operation::new(Collective::AllGather), (DType::U8, bytes), (input, output)) }
    })
}

/// Sends bytes to a rank.
pub(super) unsafe extern "C" fn tbccl_jaccl_send(
    world: WorldHandle,
    input: *const c_void,
    bytes: usize,
    to: c_int,
) -> *mut c_char {
    message_of("send", || {
        // SAFETY: the C++ side keeps to the module's rules.
        let world = unsafe { joined(world) };
        let (group, messages) = (world.group()?, world.messages()?);
        // SAFETY: as above.
        unsafe { messages.send(&group, group.world_rank(to)?, TAG, (input.cast(), bytes)) }
    })
}

/// Receives bytes from a rank. Waits until they have arrived.
pub(super) unsafe extern "C" fn tbccl_jaccl_recv(
    world: WorldHandle,
    output: *mut c_void,
    bytes: usize,
    from: c_int,
) -> *mut c_char {
    message_of("recv", || {
        // SAFETY: the C++ side keeps to the module's rules.
        let world = unsafe { joined(world) };
        let (group, messages) = (world.group()?, world.messages()?);
        let source = group.world_rank(from)?;
        // SAFETY: as above.
        let got = unsafe { messages.recv(&group, Some(source), Some(TAG), (output.cast(), bytes))? }.bytes;
        if got == bytes {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "rank {from} sent {got} bytes, and rank {} receives {bytes}: both must name the same number",
            world.rank
        )))
    })
}

/// Waits until all ranks have called it.
pub(super) unsafe extern "C" fn tbccl_jaccl_barrier(world: WorldHandle) -> *mut c_char {
    message_of("barrier", || {
        let nothing = (std::ptr::null(), null_mut());
        // SAFETY: a barrier uses no memory.
        unsafe { call(world, Operation::new(Collective::Barrier), (DType::U8, 0), nothing) }
    })
}
