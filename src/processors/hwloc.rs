//! hwloc's library, loaded at run time, asked for its XML.
//!
//! hwloc is a part of many installations, with Open MPI for instance, and nothing is linked, so the program
//! starts without it. The topology crosses the boundary as text, of a documented format; no structure of
//! hwloc's is read, so all versions 2.x fit. Programs of accelerators are not asked: they take seconds, and
//! ranks of a job may be using them.
//!
//! # Safety
//! Loading runs the initializers of a library that the user or the system installed, which is as safe as
//! starting the program. The signatures are those of `hwloc.h` and `hwloc/export.h` of all versions 2.x, and
//! the version is checked before any other call. The topology is a pointer that only hwloc follows;
//! [`Topology`] owns it, and frees it once. The library is never unloaded, so the functions stay valid.

use libloading::Library;
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void},
    ptr,
};

/// Names under which the library is looked for.
#[cfg(target_os = "macos")]
const NAMES: [&str; 3] =
    ["libhwloc.15.dylib", "/opt/homebrew/lib/libhwloc.15.dylib", "/usr/local/lib/libhwloc.15.dylib"];
#[cfg(not(target_os = "macos"))]
const NAMES: [&str; 1] = ["libhwloc.so.15"];

/// Major version of the interface.
const MAJOR: c_uint = 2;
/// `HWLOC_TYPE_FILTER_KEEP_IMPORTANT`: devices such as networks, without bridges.
const KEEP_IMPORTANT: c_int = 3;
/// `HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST`.
const BLACKLIST: c_ulong = 1;
/// Components that start the programs of accelerators.
const ACCELERATORS: [&CStr; 6] = [c"cuda", c"nvml", c"opencl", c"rsmi", c"levelzero", c"gl"];

type Handle = *mut c_void;

/// hwloc's functions. Those that return a number return 0 for success.
struct Functions {
    init: unsafe extern "C" fn(*mut Handle) -> c_int,
    set_components: unsafe extern "C" fn(Handle, c_ulong, *const c_char) -> c_int,
    set_io_types_filter: unsafe extern "C" fn(Handle, c_int) -> c_int,
    load: unsafe extern "C" fn(Handle) -> c_int,
    export: unsafe extern "C" fn(Handle, *mut *mut c_char, *mut c_int, c_ulong) -> c_int,
    free_export: unsafe extern "C" fn(Handle, *mut c_char),
    destroy: unsafe extern "C" fn(Handle),
}

impl Functions {
    /// Loads the library.
    fn load() -> Result<Functions, String> {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: see the module's documentation.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let functions = Functions::find(&library).map_err(|error| format!("{name}: {error}"));
                    // The library is never unloaded.
                    std::mem::forget(library);
                    return functions;
                }
                Err(error) => reason = format!("{name}: {error}"),
            }
        }
        Err(reason)
    }

    /// Finds the functions, if the version fits.
    fn find(library: &Library) -> Result<Functions, String> {
        let find = |error: libloading::Error| error.to_string();
        // SAFETY: the function has this signature in all versions.
        let version = unsafe { library.get::<unsafe extern "C" fn() -> c_uint>(b"hwloc_get_api_version\0") };
        // SAFETY: the function takes no argument, and may be called at any time.
        let version = unsafe { version.map_err(find)?() };
        if version >> 16 != MAJOR {
            return Err(format!("version {}.{}, and 2.x is used here", version >> 16, version >> 8 & 0xff));
        }
        // SAFETY: the signatures are those of version 2.x, see the module's documentation.
        unsafe {
            Ok(Functions {
                init: *library.get(b"hwloc_topology_init\0").map_err(find)?,
                set_components: *library.get(b"hwloc_topology_set_components\0").map_err(find)?,
                set_io_types_filter: *library.get(b"hwloc_topology_set_io_types_filter\0").map_err(find)?,
                load: *library.get(b"hwloc_topology_load\0").map_err(find)?,
                export: *library.get(b"hwloc_topology_export_xmlbuffer\0").map_err(find)?,
                free_export: *library.get(b"hwloc_free_xmlbuffer\0").map_err(find)?,
                destroy: *library.get(b"hwloc_topology_destroy\0").map_err(find)?,
            })
        }
    }
}

/// A topology, destroyed when dropped.
struct Topology {
    functions: Functions,
    handle: Handle,
}

impl Topology {
    /// Returns the topology of this machine.
    fn of_this_machine(functions: Functions) -> Result<Topology, String> {
        let mut handle = ptr::null_mut();
        // SAFETY: the argument points to a variable for the handle.
        if unsafe { (functions.init)(&raw mut handle) } != 0 || handle.is_null() {
            return Err("hwloc_topology_init has failed".to_owned());
        }
        let topology = Topology { functions, handle };
        for component in ACCELERATORS {
            // A component that this build of hwloc lacks is no reason to fail.
            // SAFETY: the handle is not loaded yet, as required, and the name ends with a null byte.
            let _ = unsafe { (topology.functions.set_components)(handle, BLACKLIST, component.as_ptr()) };
        }
        // SAFETY: the handle is not loaded yet, as required.
        let _ = unsafe { (topology.functions.set_io_types_filter)(handle, KEEP_IMPORTANT) };
        // SAFETY: the handle is initialized, and loaded once.
        match unsafe { (topology.functions.load)(handle) } {
            0 => Ok(topology),
            _ => Err("hwloc_topology_load has failed".to_owned()),
        }
    }

    /// Returns the XML of the topology.
    fn xml(&self) -> Result<String, String> {
        let (mut text, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the topology is loaded, and both pointers point to variables of the right types.
        let failed = unsafe { (self.functions.export)(self.handle, &raw mut text, &raw mut length, 0) } != 0;
        if failed || text.is_null() {
            return Err("hwloc_topology_export_xmlbuffer has failed".to_owned());
        }
        // SAFETY: after success the text ends with a null byte, and lives until it is freed below.
        let xml = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: the text comes from the same topology, is freed once, and nothing borrows it.
        unsafe { (self.functions.free_export)(self.handle, text) };
        Ok(xml)
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        // SAFETY: the handle is initialized, and destroyed once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// Returns hwloc's XML for this machine, or in one line why there is none.
pub(super) fn xml() -> Result<String, String> {
    Topology::of_this_machine(Functions::load()?)?.xml()
}

#[cfg(test)]
mod tests {
    use super::xml;

    #[test]
    fn the_xml_has_the_threads_of_this_process_or_the_reason_names_the_library() {
        match xml() {
            Ok(xml) => {
                let mut recording = inventory::Recording::new("linux");
                recording.outputs.insert(inventory::HWLOC.to_owned(), xml);
                let read = inventory::Processors::read(&recording).expect("readable").expect("processors");
                assert!(read.source.starts_with("hwloc 2."), "{}", read.source);
                let threads = std::thread::available_parallelism().expect("a number").get();
                assert!(read.machine.cpus.len() >= threads, "{:?}", read.machine);
            }
            Err(reason) => assert!(reason.contains("hwloc"), "{reason}"),
        }
    }
}
