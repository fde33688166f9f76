//! DLPack: the protocol by which array libraries lend each other memory.
//!
//! An object's method `__dlpack__` returns a capsule with a tensor. The consumer returns the tensor by
//! calling its deleter. This module consumes and produces ([`export_capsule`]) both kinds of capsules,
//! versioned and unversioned. Source: the header `dlpack.h`, version 1.0, of the DLPack project; the Python
//! part is the array API standard.
//!
//! # Safety
//! The structures are those of the header. A capsule of the right name holds a pointer to one. A consumed
//! capsule is renamed, so that it is consumed once, and its deleter is called once, with the GIL held.

use super::{Layout, type_name};
use crate::{
    elements,
    errors::{internal_error, invalid_argument},
};
use pyo3::{exceptions::PyTypeError, ffi, prelude::*, types::PyDict};
use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
    slice,
};
use tbccl::DType;

/// `kDLCPU`: host memory.
const CPU: i32 = 1;
/// `kDLCUDAHost`: pinned host memory, which a CUDA device can access too.
const PINNED: i32 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    /// In elements; null for contiguous row-major tensors.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// A tensor that an object has lent, returned on drop.
#[derive(Debug)]
pub(crate) enum BorrowedTensor {
    Plain(NonNull<DlManagedTensor>),
    Versioned(NonNull<DlManagedTensorVersioned>),
}

// SAFETY: the contents do not change until the tensor is returned, which happens with the GIL held.
unsafe impl Send for BorrowedTensor {}
// SAFETY: as for `Send`.
unsafe impl Sync for BorrowedTensor {}

impl BorrowedTensor {
    /// Borrows an object's tensor, and reads its layout.
    pub(crate) fn acquire(object: &Bound<'_, PyAny>) -> PyResult<(BorrowedTensor, Layout)> {
        check_device(object)?;
        let capsule = request_capsule(object)?;
        let tensor = BorrowedTensor::take_capsule(&capsule)?;
        let layout = tensor.layout(object)?;
        Ok((tensor, layout))
    }

    fn take_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<BorrowedTensor> {
        let py = capsule.py();
        let rename_if = |name: &CStr, used: &CStr| {
            // SAFETY: these only read and replace the capsule's name; the GIL is held, and the names are
            // static.
            unsafe {
                if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                    return Ok(None);
                }
                let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
                if ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
                    return Err(PyErr::fetch(py));
                }
                Ok(NonNull::new(pointer))
            }
        };
        if let Some(pointer) = rename_if(VERSIONED, USED_VERSIONED)? {
            let tensor = BorrowedTensor::Versioned(pointer.cast());
            return match tensor.major_version() {
                Some(1) => Ok(tensor),
                major => {
                    Err(invalid_argument(format!("DLPack version {} is not supported", major.unwrap_or(0))))
                }
            };
        }
        match rename_if(NAME, USED)? {
            Some(pointer) => Ok(BorrowedTensor::Plain(pointer.cast())),
            None => Err(invalid_argument("__dlpack__ did not return a DLPack capsule")),
        }
    }

    /// Returns the major version of a versioned tensor.
    fn major_version(&self) -> Option<u32> {
        match self {
            BorrowedTensor::Plain(_) => None,
            // SAFETY: the structure begins with the version in all versions of DLPack.
            BorrowedTensor::Versioned(tensor) => Some(unsafe { tensor.as_ref().major }),
        }
    }

    fn layout(&self, object: &Bound<'_, PyAny>) -> PyResult<Layout> {
        // SAFETY: a borrowed tensor stays valid until it is returned.
        let (tensor, flags) = unsafe {
            match self {
                BorrowedTensor::Plain(tensor) => (&tensor.as_ref().tensor, 0),
                BorrowedTensor::Versioned(tensor) => (&tensor.as_ref().tensor, tensor.as_ref().flags),
            }
        };
        if !matches!(tensor.device.kind, CPU | PINNED) {
            return Err(device_error(object, tensor.device.kind));
        }
        let Some(dtype) = dtype_of(tensor.dtype) else {
            let DlDataType { code, bits, lanes } = tensor.dtype;
            return Err(invalid_argument(format!(
                "the elements of {} are of DLPack's type code {code}, {bits} bits, {lanes} lanes, \
                 which tbccl does not support",
                type_name(object)
            )));
        };
        let ndim = tensor.ndim as usize;
        // SAFETY: both have one entry per dimension, or are null.
        let (shape, strides) = unsafe { (entries(tensor.shape, ndim), entries(tensor.strides, ndim)) };
        let bytes = |stride: &i64| *stride as isize * dtype.size() as isize;
        Ok(Layout {
            address: tensor.data as usize + tensor.byte_offset as usize,
            dtype,
            shape: shape.unwrap_or_default().iter().map(|length| *length as usize).collect(),
            strides: strides.map(|strides| strides.iter().map(bytes).collect()),
            is_readonly: flags & READ_ONLY != 0,
        })
    }
}

impl Drop for BorrowedTensor {
    fn drop(&mut self) {
        let release = |_: Python<'_>| {
            // SAFETY: the tensor was borrowed, is returned once, and the GIL is held.
            unsafe {
                match self {
                    BorrowedTensor::Plain(tensor) => {
                        if let Some(deleter) = tensor.as_ref().deleter {
                            deleter(tensor.as_ptr());
                        }
                    }
                    BorrowedTensor::Versioned(tensor) => {
                        if let Some(deleter) = tensor.as_ref().deleter {
                            deleter(tensor.as_ptr());
                        }
                    }
                }
            }
        };
        // Without an interpreter no objects exist any more.
        let _ = Python::try_attach(release);
    }
}

/// Returns the entries at a pointer, or None if it is null.
///
/// # Safety
/// The pointer is null or points to `len` entries, which stay valid and unchanged during `'a`.
unsafe fn entries<'a>(pointer: *const i64, len: usize) -> Option<&'a [i64]> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer, len) })
}

/// Returns a capsule of the object's tensor, versioned if the object supports it.
///
/// A versioned tensor states whether it is read-only.
fn request_capsule<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    let result = match object.call_method("__dlpack__", (), Some(&arguments)) {
        // Libraries older than DLPack 1.0 accept no argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        result => result,
    };
    result.map_err(|cause| export_error(object, &cause))
}

/// Returns the error for an object that exports no tensor, with the object's reason.
fn export_error(object: &Bound<'_, PyAny>, cause: &PyErr) -> PyErr {
    invalid_argument(format!("{} exports no DLPack tensor: {}", type_name(object), cause.value(object.py())))
}

fn check_device(object: &Bound<'_, PyAny>) -> PyResult<()> {
    if !object.hasattr("__dlpack_device__")? {
        return Ok(());
    }
    let device = object.call_method0("__dlpack_device__").map_err(|cause| export_error(object, &cause))?;
    let kind: i32 = device.get_item(0)?.call_method0("__int__")?.extract()?;
    if matches!(kind, CPU | PINNED) { Ok(()) } else { Err(device_error(object, kind)) }
}

fn device_error(object: &Bound<'_, PyAny>, kind: i32) -> PyErr {
    let device = match kind {
        2 => "a CUDA device".to_owned(),
        8 => "a Metal device".to_owned(),
        10 => "a ROCm device".to_owned(),
        other => format!("a device of DLPack's kind {other}"),
    };
    invalid_argument(format!(
        "{} is in the memory of {device}; tbccl moves host memory only: copy it to the host first",
        type_name(object)
    ))
}

fn dtype_of(given: DlDataType) -> Option<DType> {
    if given.lanes != 1 {
        return None;
    }
    elements::from_dlpack(given.code, given.bits)
}

fn dlpack_type(dtype: DType) -> DlDataType {
    DlDataType { code: elements::dlpack_code(dtype), bits: 8 * dtype.size() as u8, lanes: 1 }
}

/// Memory behind an exported tensor, freed by the tensor's deleter.
#[derive(Debug)]
#[expect(dead_code, reason = "tensors point to it")]
struct Export {
    managed: DlManagedTensor,
    versioned: DlManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    owner: Py<PyAny>,
}

/// Exports memory as a capsule. The owner stays alive until the consumer returns the tensor.
pub(crate) fn export_capsule<'py>(
    owner: &Bound<'py, PyAny>,
    address: usize,
    dtype: DType,
    shape: &[usize],
    with_version: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let shape: Vec<i64> = shape.iter().map(|length| *length as i64).collect();
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    let tensor = || DlTensor {
        data: ptr::with_exposed_provenance_mut(address),
        device: DlDevice { kind: CPU, number: 0 },
        ndim: shape.len() as i32,
        dtype: dlpack_type(dtype),
        shape: shape.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let managed =
        DlManagedTensor { tensor: tensor(), context: ptr::null_mut(), deleter: Some(delete_managed) };
    let versioned = DlManagedTensorVersioned {
        major: 1,
        minor: 0,
        context: ptr::null_mut(),
        deleter: Some(delete_versioned),
        flags: 0,
        tensor: tensor(),
    };
    let owner_reference = owner.clone().unbind();
    let export =
        Box::into_raw(Box::new(Export { managed, versioned, shape, strides, owner: owner_reference }));
    // SAFETY: the export was just allocated, and the one deleter that is called drops it. The GIL is held.
    unsafe {
        (*export).managed.context = export.cast();
        (*export).versioned.context = export.cast();
        let (pointer, name): (*mut c_void, &CStr) = match with_version {
            true => ((&raw mut (*export).versioned).cast(), VERSIONED),
            false => ((&raw mut (*export).managed).cast(), NAME),
        };
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy_capsule));
        if capsule.is_null() {
            drop(Box::from_raw(export));
            return Err(PyErr::fetch(owner.py()));
        }
        Bound::from_owned_ptr_or_opt(owner.py(), capsule).ok_or_else(|| internal_error("no capsule"))
    }
}

/// Frees an export.
///
/// # Safety
/// The context is that of [`export_capsule`], and this is called once.
unsafe fn release_export(context: *mut c_void) {
    // SAFETY: the caller's promise.
    let export = unsafe { Box::from_raw(context.cast::<Export>()) };
    // The consumer may return the tensor on any thread, with or without the GIL.
    let _ = Python::try_attach(move |_| drop(export));
}

unsafe extern "C" fn delete_managed(managed: *mut DlManagedTensor) {
    // SAFETY: the tensor is one of `export_capsule`, and DLPack requires that it is returned once.
    unsafe { release_export((*managed).context) }
}

unsafe extern "C" fn delete_versioned(versioned: *mut DlManagedTensorVersioned) {
    // SAFETY: as for `delete_managed`.
    unsafe { release_export((*versioned).context) }
}

/// Destroys a capsule, and frees its export if no consumer has taken it.
unsafe extern "C" fn destroy_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this on a capsule of `export_capsule`, with the GIL held.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete_managed(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
