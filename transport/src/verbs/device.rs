//! Entries of the device list.
//!
//! # Safety
//! Devices are read while their list is alive; names end with zero.

use super::functions::Functions;
use std::{ffi::CStr, ptr::NonNull};
use verbs_sys::{Device, NodeType, TransportType};

/// A device, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the device, for example `mlx5_0` or `rdma_en2`.
    pub name: String,
    /// Globally unique identifier; 0 when the library does not report it.
    pub guid: u64,
    /// Type of the node.
    pub node_type: NodeType,
    /// Type of the transport.
    pub transport_type: TransportType,
}

/// Returns the name of a device.
pub(super) fn name_of(functions: &Functions, device: NonNull<Device>) -> String {
    // SAFETY: the device is in a list that is alive.
    let name = unsafe { (functions.ibv_get_device_name)(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the name is not null and ends with zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Returns the device's entry in the device list.
pub(super) fn describe(functions: &Functions, device: NonNull<Device>) -> DeviceInfo {
    // SAFETY: the device is in a list that is alive; libraries put their own data behind these two members.
    let (node_type, transport_type) = unsafe {
        let device = device.as_ptr();
        ((&raw const (*device).node_type).read(), (&raw const (*device).transport_type).read())
    };
    let guid = functions.ibv_get_device_guid.map_or(0, |ask| {
        // SAFETY: the device is in a list that is alive.
        u64::from_be(unsafe { ask(device.as_ptr()) })
    });
    DeviceInfo { name: name_of(functions, device), guid, node_type, transport_type }
}
