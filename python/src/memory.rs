//! Registered memory as a Python object: what `tbccl.empty()` gives.
//!
//! Peers and devices read it in place. It is Python's buffer of elements in row-major order, writable, and it is lent by
//! DLPack. The memory is there as long as anybody holds the object, a view of it or a tensor; it may outlive its
//! communicator.
//!
//! The type is made by hand and not by a macro: macros of the stable ABI of 3.10 don't know buffers, and Python does.
//!
//! # Safety
//! An object of the type is a Python object with a pointer behind it, to what [`Memory`] says, from its making to its end.
//! Functions of the type are called by Python, with its lock, on such objects. They let no panic out.

use crate::{
    comm::Communicator,
    errors::{defect, invalid, raised},
    interrupt::check_fork,
    numbers,
    protocols::{
        buffer::{FORMAT, ND, RawBuffer, STRIDES},
        dlpack::lend,
    },
};
use pyo3::{
    exceptions::PyTypeError,
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::{PyTuple, PyType},
};
use std::{
    ffi::{CStr, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::null_mut,
};
use tbccl::{Buffer, DType};

/// What an object of the type holds.
struct Memory {
    buffer: Buffer<u8>,
    dtype: DType,
    shape: Vec<usize>,
    /// Both for Python's buffers.
    lengths: Vec<isize>,
    strides: Vec<isize>,
}

/// An object of the type.
#[repr(C)]
struct Object {
    head: ffi::PyObject,
    memory: *mut Memory,
}

/// `Py_bf_getbuffer`: in all headers from 3.9 on, in those of the stable ABI from 3.11 on.
const GET_BUFFER: c_int = 1;

/// The type.
pub(crate) fn memory_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.get_or_try_init(py, || make_type(py).map(Bound::unbind)).map(|made| made.bind(py))
}

fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let slot = |slot: c_int, function: *mut c_void| ffi::PyType_Slot { slot, pfunc: function };
    let mut slots = [
        slot(ffi::Py_tp_new, new as *mut c_void),
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(GET_BUFFER, get_buffer as *mut c_void),
        slot(
            ffi::Py_tp_doc,
            c"Registered memory: the buffer that tbccl.empty() stands on.".as_ptr() as *mut c_void,
        ),
        slot(0, null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"tbccl._native.Memory".as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the functions are of the types that their slots have, and the size is that of our objects.
    unsafe {
        let made = ffi::PyType_FromSpec(&raw mut spec);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        made.cast_into::<PyType>().map_err(Into::into)
    }
}

/// Lets no panic out.
fn guarded<T>(py: Python<'_>, failed: T, body: impl FnOnce() -> PyResult<T>) -> T {
    let done = catch_unwind(AssertUnwindSafe(body));
    done.unwrap_or_else(|_| Err(defect("a panic, told on stderr"))).unwrap_or_else(|error| {
        error.restore(py);
        failed
    })
}

/// `Memory(communicator, dtype, shape)`
unsafe extern "C" fn new(
    subtype: *mut ffi::PyTypeObject,
    args: *mut ffi::PyObject,
    _kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with its lock and with a tuple.
    let (py, args) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, args))
    };
    guarded(py, null_mut(), || {
        let memory = allocated(args.cast::<PyTuple>()?)?;
        // SAFETY: the type is ours or made of it, so that its objects begin as ours do.
        unsafe {
            let object = ffi::PyType_GenericAlloc(subtype, 0);
            if object.is_null() {
                return Err(PyErr::fetch(py));
            }
            (*object.cast::<Object>()).memory = Box::into_raw(Box::new(memory));
            Ok(object)
        }
    })
}

fn allocated(args: &Bound<'_, PyTuple>) -> PyResult<Memory> {
    check_fork()?;
    let (comm, number, shape) = args
        .extract::<(Bound<'_, Communicator>, i32, Vec<usize>)>()
        .map_err(|_| PyTypeError::new_err("registered memory is made by Communicator.empty()"))?;
    let dtype = numbers::dtype(number)?;
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, length| bytes.checked_mul(*length));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(invalid(format!("there can't be memory for a shape of {shape:?}")));
    };
    let shared = comm.get().state.shared.clone();
    // One byte at least: an address is to be there, whatever the shape.
    let buffer = args
        .py()
        .detach(move || shared.with(|comm| comm.alloc::<u8>(bytes.max(1))).and_then(|buffer| buffer));
    let buffer = buffer.map_err(|error| raised(&error))?;
    let lengths: Vec<isize> = shape.iter().map(|length| *length as isize).collect();
    let mut strides = vec![dtype.size() as isize; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * lengths[at].max(1);
    }
    Ok(Memory { buffer, dtype, shape, lengths, strides })
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the object is one of ours at its end: what it holds is dropped once, and then its room is freed as its type does
    // it. An object of a type made at run time holds a reference to the type.
    unsafe {
        let memory = (*object.cast::<Object>()).memory;
        if !memory.is_null() {
            drop(Box::from_raw(memory));
        }
        let of = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(of, ffi::Py_tp_free);
        let free = std::mem::transmute::<*mut c_void, ffi::freefunc>(free);
        free(object.cast());
        ffi::Py_DECREF(of.cast());
    }
}

/// The format of an element, for Python's buffers. There is none for bfloat16: it is passed as the bits that it is.
fn format_of(dtype: DType) -> &'static CStr {
    match dtype {
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::Complex64 => c"Zf",
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::U8 => c"B",
        DType::I16 => c"h",
        DType::U16 | DType::Bf16 => c"H",
        DType::I32 => c"i",
        DType::U32 => c"I",
        DType::I64 => c"q",
        DType::U64 => c"Q",
    }
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, raw: *mut RawBuffer, flags: c_int) -> c_int {
    // SAFETY: the object is one of ours, whose memory stays as it is while it lives; the buffer holds a reference to it. There
    // is room for a buffer.
    unsafe {
        let memory = &mut *(*object.cast::<Object>()).memory;
        let wants = |flag: c_int| flags & flag == flag;
        let count: usize = memory.shape.iter().product();
        ffi::Py_INCREF(object);
        raw.write(RawBuffer {
            buf: memory.buffer.as_mut_ptr().cast(),
            obj: object,
            len: (count * memory.dtype.size()) as isize,
            itemsize: memory.dtype.size() as isize,
            readonly: 0,
            ndim: if wants(ND) { memory.shape.len() as c_int } else { 1 },
            format: if wants(FORMAT) { format_of(memory.dtype).as_ptr().cast_mut() } else { null_mut() },
            shape: if wants(ND) { memory.lengths.as_mut_ptr() } else { null_mut() },
            strides: if wants(STRIDES) { memory.strides.as_mut_ptr() } else { null_mut() },
            suboffsets: null_mut(),
            internal: null_mut(),
        });
    }
    0
}

/// What an object holds, if it is of the type.
fn memory_if<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a Memory>> {
    if !object.is_instance(memory_type(object.py())?)? {
        return Ok(None);
    }
    // SAFETY: it is an object of ours, whose memory stays as it is while it lives.
    Ok(Some(unsafe { &*(*object.as_ptr().cast::<Object>()).memory }))
}

/// The same of an object that must be one.
fn memory_of<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a Memory> {
    memory_if(object)?.ok_or_else(|| PyTypeError::new_err("this is no registered memory"))
}

/// The element type, if this is registered memory: buffers have no format for every type.
pub(crate) fn dtype_of(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    Ok(memory_if(object)?.map(|memory| memory.dtype))
}

/// The number of the element type, and the shape.
#[pyfunction]
pub(crate) fn memory_layout<'py>(object: &Bound<'py, PyAny>) -> PyResult<(i32, Bound<'py, PyTuple>)> {
    let memory = memory_of(object)?;
    Ok((numbers::number_of(memory.dtype), PyTuple::new(object.py(), &memory.shape)?))
}

/// Lends the memory by DLPack, with a version or without.
#[pyfunction]
pub(crate) fn memory_to_dlpack<'py>(
    object: &Bound<'py, PyAny>,
    with_version: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = memory_of(object)?;
    lend(object, memory.buffer.as_ptr().addr(), memory.dtype, &memory.shape, with_version)
}

/// Adds the type and its functions.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Memory", memory_type(module.py())?)?;
    module.add_function(wrap_pyfunction!(memory_layout, module)?)?;
    module.add_function(wrap_pyfunction!(memory_to_dlpack, module)?)
}
