//! DLPack: how array libraries lend each other their memory.
//!
//! An object's `__dlpack__` gives a capsule with a tensor, which whoever takes it gives back by calling its deleter.
//! Both kinds of capsules are taken, those with a version and those without, and given ([`lend`]).
//! Source: the header `dlpack.h`, version 1.0, of the DLPack project; Python's part of it is the array API standard.
//!
//! # Safety
//! The structures are those of the header. A capsule of the right name holds a pointer to one. Once taken it is renamed,
//! so that it is taken once, and its deleter is called once, with Python's lock.

use super::{Layout, kind_of};
use crate::errors::{defect, invalid};
use pyo3::{exceptions::PyTypeError, ffi, prelude::*, types::PyDict};
use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
    slice,
};
use tbccl::DType;

/// A device of which the processor reads the memory: `kDLCPU`.
const CPU: i32 = 1;
/// Memory of this kind is the processor's, and a device's, too: `kDLCUDAHost`.
const PINNED: i32 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: Type,
    shape: *mut i64,
    /// In elements; null where they lie side by side.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// A tensor that an object has lent, until this is dropped.
#[derive(Debug)]
pub(crate) enum Lent {
    Plain(NonNull<Managed>),
    Versioned(NonNull<Versioned>),
}

// SAFETY: what is in it stays as it is until it is given back, which is done with Python's lock.
unsafe impl Send for Lent {}
// SAFETY: as for `Send`.
unsafe impl Sync for Lent {}

impl Lent {
    /// Takes it, and what it tells.
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<(Lent, Layout)> {
        check_device(object)?;
        let capsule = capsule_of(object)?;
        let lent = Lent::take(&capsule)?;
        let layout = lent.layout(object)?;
        Ok((lent, layout))
    }

    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Lent> {
        let py = capsule.py();
        let named = |name: &CStr, used: &CStr| {
            // SAFETY: these only look at the capsule's name, and rename it; we have Python's lock, and names are for ever.
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
        if let Some(pointer) = named(VERSIONED, USED_VERSIONED)? {
            let lent = Lent::Versioned(pointer.cast());
            return match lent.major() {
                Some(1) => Ok(lent),
                major => Err(invalid(format!("a DLPack capsule of version {}", major.unwrap_or(0)))),
            };
        }
        match named(NAME, USED)? {
            Some(pointer) => Ok(Lent::Plain(pointer.cast())),
            None => Err(invalid("__dlpack__ has given no capsule of DLPack")),
        }
    }

    /// The first number of its version, if it has one.
    fn major(&self) -> Option<u32> {
        match self {
            Lent::Plain(_) => None,
            // SAFETY: every version begins with its number.
            Lent::Versioned(lent) => Some(unsafe { lent.as_ref().major }),
        }
    }

    fn layout(&self, object: &Bound<'_, PyAny>) -> PyResult<Layout> {
        // SAFETY: what was lent is there until it is given back.
        let (tensor, flags) = unsafe {
            match self {
                Lent::Plain(lent) => (&lent.as_ref().tensor, 0),
                Lent::Versioned(lent) => (&lent.as_ref().tensor, lent.as_ref().flags),
            }
        };
        if !matches!(tensor.device.kind, CPU | PINNED) {
            return Err(elsewhere(object, tensor.device.kind));
        }
        let Some(dtype) = dtype_of(tensor.dtype) else {
            let Type { code, bits, lanes } = tensor.dtype;
            return Err(invalid(format!(
                "the elements of {} are of DLPack's type code {code}, {bits} bits, {lanes} lanes, which tbccl does not have",
                kind_of(object)
            )));
        };
        let ndim = tensor.ndim as usize;
        // SAFETY: both have as many entries as there are dimensions, or are null.
        let (shape, strides) = unsafe { (list(tensor.shape, ndim), list(tensor.strides, ndim)) };
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

impl Drop for Lent {
    fn drop(&mut self) {
        let give_back = |_: Python<'_>| {
            // SAFETY: it was taken, is given back once, and we have Python's lock.
            unsafe {
                match self {
                    Lent::Plain(lent) => {
                        if let Some(deleter) = lent.as_ref().deleter {
                            deleter(lent.as_ptr());
                        }
                    }
                    Lent::Versioned(lent) => {
                        if let Some(deleter) = lent.as_ref().deleter {
                            deleter(lent.as_ptr());
                        }
                    }
                }
            }
        };
        // Without an interpreter there are no objects any more.
        let _ = Python::try_attach(give_back);
    }
}

/// # Safety
/// The pointer is null or points to so many entries, which stay as they are.
unsafe fn list<'a>(pointer: *const i64, len: usize) -> Option<&'a [i64]> {
    // SAFETY: as the caller promises.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer, len) })
}

/// The object's tensor: with a version if it can give one, which says whether it may be written.
fn capsule_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let wanted = PyDict::new(py);
    wanted.set_item("max_version", (1, 0))?;
    let given = match object.call_method("__dlpack__", (), Some(&wanted)) {
        // Libraries of before DLPack 1.0.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        given => given,
    };
    given.map_err(|why| refused(object, &why))
}

/// The object gives no tensor, for a reason of its own.
fn refused(object: &Bound<'_, PyAny>, why: &PyErr) -> PyErr {
    invalid(format!("{} gives no tensor: {}", kind_of(object), why.value(object.py())))
}

fn check_device(object: &Bound<'_, PyAny>) -> PyResult<()> {
    if !object.hasattr("__dlpack_device__")? {
        return Ok(());
    }
    let device = object.call_method0("__dlpack_device__").map_err(|why| refused(object, &why))?;
    let kind: i32 = device.get_item(0)?.call_method0("__int__")?.extract()?;
    if matches!(kind, CPU | PINNED) { Ok(()) } else { Err(elsewhere(object, kind)) }
}

fn elsewhere(object: &Bound<'_, PyAny>, kind: i32) -> PyErr {
    let device = match kind {
        2 => "a CUDA device".to_owned(),
        8 => "a Metal device".to_owned(),
        10 => "a ROCm device".to_owned(),
        other => format!("a device of DLPack's kind {other}"),
    };
    invalid(format!(
        "{} is in the memory of {device}; tbccl moves memory of the processor: copy it there first",
        kind_of(object)
    ))
}

fn dtype_of(given: Type) -> Option<DType> {
    let dtype = match (given.code, given.bits, given.lanes) {
        (0, 8, 1) => DType::I8,
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1, 8, 1) => DType::U8,
        (1, 16, 1) => DType::U16,
        (1, 32, 1) => DType::U32,
        (1, 64, 1) => DType::U64,
        (2, 16, 1) => DType::F16,
        (2, 32, 1) => DType::F32,
        (2, 64, 1) => DType::F64,
        (4, 16, 1) => DType::Bf16,
        (5, 64, 1) => DType::Complex64,
        (6, 8, 1) => DType::Bool,
        _ => return None,
    };
    Some(dtype)
}

fn type_of(dtype: DType) -> Type {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::Bf16 => 4,
        DType::Complex64 => 5,
        DType::Bool => 6,
        _ => 2,
    };
    Type { code, bits: 8 * dtype.size() as u8, lanes: 1 }
}

/// What a tensor of ours stands on, until its deleter is called.
#[derive(Debug)]
#[expect(dead_code, reason = "tensors point to it")]
struct Loan {
    managed: Managed,
    versioned: Versioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    owner: Py<PyAny>,
}

/// Lends memory as a capsule; the owner stays alive until it is given back.
pub(crate) fn lend<'py>(
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
    let tensor = || Tensor {
        data: ptr::with_exposed_provenance_mut(address),
        device: Device { kind: CPU, number: 0 },
        ndim: shape.len() as i32,
        dtype: type_of(dtype),
        shape: shape.as_ptr().cast_mut(),
        strides: strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor: tensor(), context: ptr::null_mut(), deleter: Some(returned) };
    let versioned = Versioned {
        major: 1,
        minor: 0,
        context: ptr::null_mut(),
        deleter: Some(returned_versioned),
        flags: 0,
        tensor: tensor(),
    };
    let owner_of = owner.clone().unbind();
    let loan = Box::into_raw(Box::new(Loan { managed, versioned, shape, strides, owner: owner_of }));
    // SAFETY: the loan was just made, and is dropped by whichever deleter is called. We have Python's lock.
    unsafe {
        (*loan).managed.context = loan.cast();
        (*loan).versioned.context = loan.cast();
        let (pointer, name): (*mut c_void, &CStr) = match with_version {
            true => ((&raw mut (*loan).versioned).cast(), VERSIONED),
            false => ((&raw mut (*loan).managed).cast(), NAME),
        };
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(dropped));
        if capsule.is_null() {
            drop(Box::from_raw(loan));
            return Err(PyErr::fetch(owner.py()));
        }
        Bound::from_owned_ptr_or_opt(owner.py(), capsule).ok_or_else(|| defect("no capsule"))
    }
}

/// Ends a loan.
///
/// # Safety
/// The context is that of [`lend`], and this is called once.
unsafe fn end(context: *mut c_void) {
    // SAFETY: as the caller promises.
    let loan = unsafe { Box::from_raw(context.cast::<Loan>()) };
    // Whoever has borrowed it may be on any thread.
    let _ = Python::try_attach(move |_| drop(loan));
}

unsafe extern "C" fn returned(managed: *mut Managed) {
    // SAFETY: a tensor of ours, given back once, as DLPack asks for.
    unsafe { end((*managed).context) }
}

unsafe extern "C" fn returned_versioned(versioned: *mut Versioned) {
    // SAFETY: as above.
    unsafe { end((*versioned).context) }
}

/// A capsule of ours is dropped: if nobody has taken it, its loan ends.
unsafe extern "C" fn dropped(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule of ours, and has its lock.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            returned(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            returned_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
