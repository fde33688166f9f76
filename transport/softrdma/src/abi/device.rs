//! The list of devices.
//!
//! Devices are never freed: their number is that of the fabric file, and programs keep pointers to them.
//!
//! # Safety
//! See the module above. Lists are null-terminated arrays, allocated and freed here.

use super::{Object, errno, pointer_of, value_of};
use crate::{config::Config, fabric::Device as Description, local_node::LocalNode};
use rustix::io::Errno;
use std::{
    ffi::{c_char, c_int},
    path::PathBuf,
    ptr,
    sync::{Arc, Mutex, Once, PoisonError},
};
use verbs_sys::Device;

/// A device of this process's node.
#[derive(Debug)]
#[repr(C)]
pub(super) struct DeviceObject {
    device: Device,
    pub(super) node: Arc<LocalNode>,
    /// The fabric's number of the device's port.
    pub(super) port: u32,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<Device> for DeviceObject {}
// SAFETY: immutable once created; its only raw pointers are unused members.
unsafe impl Sync for DeviceObject {}
// SAFETY: as above.
unsafe impl Send for DeviceObject {}

impl DeviceObject {
    pub(super) fn description(&self) -> &Description {
        self.node.fabric_view.device(self.port)
    }

    /// Returns the device's GUID in network byte order.
    pub(super) fn guid(&self) -> u64 {
        self.description().guid().to_be()
    }
}

/// Identity of a list of devices: the fabric's digest, the node, the folder, and whether pages are shared.
type Identity = (u64, usize, Option<PathBuf>, bool);

/// Makes this process leave its fabrics at its exit, in case it does not close its devices.
pub(super) fn leave_at_exit() {
    extern "C" fn leave() {
        // If another thread holds the lock, it will not continue after the exit.
        let Ok(known) = KNOWN_LISTS.try_lock() else { return };
        for device in known.iter().filter_map(|(_, devices)| devices.first()) {
            device.node.leave();
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler may run at the end of any process that has loaded this library, which stays
        // loaded.
        let _ = unsafe { libc::atexit(leave) };
    });
}

/// The lists that were created so far.
static KNOWN_LISTS: Mutex<Vec<(Identity, &'static [DeviceObject])>> = Mutex::new(Vec::new());

/// The devices of a node.
#[derive(Debug)]
pub(crate) struct DeviceList;

impl DeviceList {
    /// Returns the devices of the node that `config` names.
    #[allow(
        clippy::print_stderr,
        reason = "the caller sees only an errno; this is the one place that can say more"
    )]
    pub(crate) fn of(config: &Config) -> Result<&'static [DeviceObject], Errno> {
        let node = LocalNode::new(config).map_err(|message| {
            eprintln!("softrdma: {message}");
            Errno::INVAL
        })?;
        let fabric_view = &node.fabric_view;
        let identity = (fabric_view.fabric.digest, fabric_view.node, config.folder.clone(), config.remap);
        let mut known = KNOWN_LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, devices)) = known.iter().find(|(known, _)| *known == identity) {
            return Ok(devices);
        }
        let node = Arc::new(node);
        let devices = node.fabric_view.fabric.devices_of(node.fabric_view.node).iter().enumerate();
        let devices: Vec<DeviceObject> =
            devices.map(|(index, device)| new_device(&node, device, index)).collect();
        let devices: &'static [DeviceObject] = Vec::leak(devices);
        known.push((identity, devices));
        Ok(devices)
    }
}

fn new_device(node: &Arc<LocalNode>, description: &Description, index: usize) -> DeviceObject {
    let mut device = Device::zeroed();
    device.node_type = description.profile.node_type;
    device.transport_type = description.profile.transport_type;
    write_c_str(&mut device.name, &description.name);
    write_c_str(&mut device.dev_name, &format!("uverbs{index}"));
    write_c_str(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
    write_c_str(&mut device.ibdev_path, &format!("/sys/class/infiniband/{}", description.name));
    DeviceObject { device, node: Arc::clone(node), port: description.port as u32 }
}

/// Writes a text with its terminating zero, truncated to the room.
pub(super) fn write_c_str(room: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(room.len() - 1).chain([0]);
    for (place, byte) in room.iter_mut().zip(bytes) {
        *place = byte as c_char;
    }
}

/// `ibv_get_device_list`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut Device {
    pointer_of(|| list(&Config::from_env(), num_devices))
}

/// Lists the devices of a node as `ibv_get_device_list` would if `config` came from the environment.
///
/// Serves tests whose process is on several nodes at once.
///
/// # Errors
/// `EINVAL` when the fabric file or the node does not exist; a line on standard error says why.
pub fn device_list(config: &Config) -> std::io::Result<*mut *mut Device> {
    Ok(list(config, ptr::null_mut())?)
}

/// Returns the devices of the node that `config` names, as a null-terminated array for C programs.
fn list(config: &Config, count: *mut c_int) -> Result<*mut *mut Device, Errno> {
    let devices = DeviceList::of(config)?;
    // SAFETY: null or the place of a number.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = devices.len() as c_int;
    }
    // SAFETY: allocates zeroed room for the pointers and the null behind them.
    let array: *mut *mut Device = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut Device>()) }.cast();
    if array.is_null() {
        return Err(errno(libc::ENOMEM));
    }
    for (index, device) in devices.iter().enumerate() {
        // SAFETY: the array has room for one more than there are devices.
        unsafe { *array.add(index) = (&raw const *device).cast_mut().cast() };
    }
    Ok(array)
}

/// `ibv_free_device_list`
///
/// # Safety
/// The list must come from `ibv_get_device_list` and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: allocated by `calloc`, or null.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    value_of(ptr::null(), || {
        DeviceObject::from_c(device).map_or(ptr::null(), |found| found.device.name.as_ptr())
    })
}

/// `ibv_get_device_guid`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut Device) -> u64 {
    value_of(0, || DeviceObject::from_c(device).map_or(0, DeviceObject::guid))
}

/// `ibv_get_device_index`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut Device) -> c_int {
    value_of(-1, || DeviceObject::from_c(device).map_or(-1, |found| found.port as c_int))
}

/// `ibv_fork_init`: has nothing to do, since forked children inherit no usable objects.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: 2, not needed (`IBV_FORK_UNNEEDED`).
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_read_sysfs_file`: attributes that adapters have under `/sys`.
///
/// # Safety
/// The texts must end with zero, and `buf` must have room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    value_of(-1, || {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return -1;
        }
        // SAFETY: texts that end with zero, by the caller's promise.
        let (dir, file) = unsafe { (std::ffi::CStr::from_ptr(dir), std::ffi::CStr::from_ptr(file)) };
        let (dir, file) = (dir.to_string_lossy(), file.to_string_lossy());
        let known = KNOWN_LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        let device =
            known.iter().flat_map(|(_, devices)| devices.iter()).map(DeviceObject::description).find(
                |device| dir.strip_prefix("/sys/class/infiniband/").is_some_and(|name| name == device.name),
            );
        let Some(device) = device else { return -1 };
        let text = match &*file {
            "board_id" => device.profile.board,
            "fw_ver" => device.profile.firmware,
            "hca_type" => device.profile.name,
            _ => return -1,
        };
        // SAFETY: `buf` has room for `size` bytes, by the caller's promise.
        let room = unsafe { std::slice::from_raw_parts_mut(buf, size) };
        write_c_str(room, text);
        text.len().min(size - 1) as c_int
    })
}

/// `ibv_get_sysfs_path`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
