//! Verbs libraries, loaded at run time.
//!
//! The library is loaded from its usual place or from a path that the caller passes. Nothing is linked, so a
//! program starts on machines without the library. A loaded library is never unloaded, because its providers
//! have threads and handlers of their own.
//!
//! # Safety
//! Loading runs the initializers of a library that the user or the system installed, which is as safe as
//! starting the program. Device lists are freed once, after everything read from them was copied.

use super::{
    Action, Cause, DeviceInfo, VerbsError, answer,
    device::{describe, name_of},
    errno::Errno,
    error::advice,
    functions::Functions,
};
use std::{
    error::Error,
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    sync::Arc,
};
use verbs_sys::Device;

/// Default name of the library.
const DEFAULT_NAME: &str = if cfg!(target_os = "macos") { "librdma.dylib" } else { "libibverbs.so.1" };

/// A verbs library. Clones share it.
#[derive(Clone, Debug)]
pub struct Library(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    functions: Functions,
}

impl Library {
    /// Loads the library at a path, or the system's.
    ///
    /// # Errors
    /// [`VerbsError::Library`] when it can't be loaded, [`VerbsError::Symbol`] when it lacks a function.
    pub fn load(path: Option<&Path>) -> Result<Library, VerbsError> {
        let path = path.map_or_else(|| PathBuf::from(DEFAULT_NAME), Path::to_owned);
        let name = path.display().to_string();
        // SAFETY: see the module's documentation.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.map_err(|error| {
            // The loader's message is the error's source.
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            VerbsError::Library { library: name.clone(), reason }
        })?;
        let functions = Functions::find(&library, &name)?;
        // The library is never unloaded.
        std::mem::forget(library);
        if let Some(fork_init) = functions.ibv_fork_init {
            // Precedes the first registration. On kernels that don't copy pinned pages at a fork (before
            // 5.12), a device would otherwise go on with pages that the parent no longer has. An error means
            // that another user of the library has registered memory already; then the choice was that
            // user's.
            // SAFETY: the function takes no argument, and may be called at any time.
            let _ = unsafe { fork_init() };
        }
        Ok(Library(Arc::new(Inner { name, functions })))
    }

    /// Returns a library of these functions.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_functions(functions: Functions) -> Library {
        Library(Arc::new(Inner { name: "null".to_owned(), functions }))
    }

    /// Returns the name or path from which the library was loaded.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the library's devices, in its order.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when it can't list them, [`VerbsError::Hangs`] when it does not return.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let library = self.clone();
        let list = move || {
            let list = DeviceList::of(&library)?;
            Ok(list.iter().map(|device| describe(library.functions(), device)).collect())
        };
        match answer::within(answer::LIMIT, self.name(), Action::ListDevices, list) {
            Ok(devices) => Ok(devices),
            // libibverbs returns no list on systems without any RDMA driver.
            Err(VerbsError::Refused(refusal)) if refusal.errno.is_unsupported() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the error of an empty device list.
    ///
    /// `is_enabled` is the answer of `rdma_ctl status`, where that program exists.
    #[must_use]
    pub fn no_devices(&self, is_enabled: Option<bool>) -> VerbsError {
        VerbsError::NoDevices { library: self.name().to_owned(), cause: Cause::of_no_devices(is_enabled) }
    }

    /// Calls `open` with the named device while the device list is alive.
    pub(super) fn with_device<T>(
        &self,
        name: &str,
        open: impl FnOnce(DeviceInfo, NonNull<Device>) -> Result<T, VerbsError>,
    ) -> Result<T, VerbsError> {
        let list = DeviceList::of(self)?;
        let functions = self.functions();
        let Some(device) = list.iter().find(|device| name_of(functions, *device) == name) else {
            let known: Vec<String> = list.iter().map(|device| name_of(functions, device)).collect();
            let advice = advice(name, &known);
            return Err(VerbsError::UnknownDevice { name: name.to_owned(), advice });
        };
        open(describe(functions, device), device)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.0.functions
    }
}

/// A device list, freed when dropped. An open device no longer needs it.
struct DeviceList<'a> {
    library: &'a Library,
    list: NonNull<*mut Device>,
}

impl DeviceList<'_> {
    fn of(library: &Library) -> Result<DeviceList<'_>, VerbsError> {
        Errno::clear();
        // SAFETY: the argument for the count is optional.
        let list = unsafe { (library.functions().ibv_get_device_list)(ptr::null_mut()) };
        match NonNull::new(list) {
            Some(list) => Ok(DeviceList { library, list }),
            None => Err(VerbsError::of_library(library.name(), Action::ListDevices, Errno::last())),
        }
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<Device>> {
        (0..).map_while(|index| {
            // SAFETY: the list ends with null, where this iteration ends.
            NonNull::new(unsafe { *self.list.as_ptr().add(index) })
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the library made the list, and it is freed once.
        unsafe { (self.library.functions().ibv_free_device_list)(self.list.as_ptr()) };
    }
}
