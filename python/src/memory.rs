//! Registered memory as a Python object: the base of the arrays that `tbccl.empty()` returns.
//!
//! Peers and devices read it in place. The object exports a writable buffer of elements in row-major order,
//! and DLPack tensors. The memory stays allocated while the object, a view of it or a tensor exists; it may
//! outlive its communicator.
//!
//! The type is created by hand, since pyo3's macros do not support buffers under the stable ABI of Python
//! 3.10, although the interpreter does.
//!
//! # Safety
//! An object of the type is a Python object followed by a pointer to a [`Memory`], valid from the object's
//! creation to its deallocation. Python calls the functions of the type on such objects, with the GIL held.
//! No panic crosses them.

use crate::{
    comm::Communicator,
    elements,
    errors::{internal_error, invalid_argument},
    numbers,
    protocols::{
        buffer::{FORMAT, ND, RawBuffer, STRIDES},
        dlpack::export_capsule,
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
    ffi::{c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::null_mut,
};
use tbccl::{Buffer, DType};

/// Contents of an object of the type.
struct Memory {
    buffer: Buffer<u8>,
    dtype: DType,
    shape: Vec<usize>,
    /// Shape and strides as Python's buffers need them; strides in bytes.
    buffer_shape: Vec<isize>,
    strides: Vec<isize>,
}

/// Memory layout of an object of the type.
#[repr(C)]
struct Object {
    head: ffi::PyObject,
    memory: *mut Memory,
}

/// `Py_bf_getbuffer`: in all headers from 3.9 on, in those of the stable ABI from 3.11 on.
const GET_BUFFER: c_int = 1;

/// Returns the type `tbccl._native.Memory`, which the first call creates.
pub(crate) fn memory_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.get_or_try_init(py, || create_type(py).map(Bound::unbind)).map(|made| made.bind(py))
}

fn create_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let slot = |slot: c_int, function: *mut c_void| ffi::PyType_Slot { slot, pfunc: function };
    let mut slots = [
        slot(ffi::Py_tp_new, new as *mut c_void),
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(GET_BUFFER, get_buffer as *mut c_void),
        slot(ffi::Py_tp_doc, c"Registered memory: the buffer behind tbccl.empty().".as_ptr() as *mut c_void),
        slot(0, null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"tbccl._native.Memory".as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: each function has the signature of its slot, and the size is that of `Object`.
    unsafe {
        let made = ffi::PyType_FromSpec(&raw mut spec);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        made.cast_into::<PyType>().map_err(Into::into)
    }
}

/// Runs `body`, and sets a Python exception if it fails or panics.
fn catch_panic<T>(py: Python<'_>, failure_value: T, body: impl FnOnce() -> PyResult<T>) -> T {
    let result = catch_unwind(AssertUnwindSafe(body));
    result.unwrap_or_else(|_| Err(internal_error("a panic; see stderr"))).unwrap_or_else(|error| {
        error.restore(py);
        failure_value
    })
}

/// Implements `Memory(communicator, dtype, shape)`.
unsafe extern "C" fn new(
    subtype: *mut ffi::PyTypeObject,
    args: *mut ffi::PyObject,
    _kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the GIL held, and with a tuple.
    let (py, args) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, args))
    };
    catch_panic(py, null_mut(), || {
        let memory = allocate(args.cast::<PyTuple>()?)?;
        // SAFETY: the type is `Memory` or a subclass, whose objects begin with an `Object`.
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

fn allocate(args: &Bound<'_, PyTuple>) -> PyResult<Memory> {
    let (comm, number, shape) = args
        .extract::<(Bound<'_, Communicator>, i32, Vec<usize>)>()
        .map_err(|_| PyTypeError::new_err("registered memory is allocated by Communicator.empty()"))?;
    let dtype = numbers::dtype(number)?;
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, length| bytes.checked_mul(*length));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(invalid_argument(format!("a buffer of shape {shape:?} is too large")));
    };
    // One byte at least, so that every shape has an address.
    let buffer = comm.get().state.with(args.py(), move |comm| comm.alloc::<u8>(bytes.max(1)))?;
    let buffer_shape: Vec<isize> = shape.iter().map(|length| *length as isize).collect();
    let mut strides = vec![dtype.size() as isize; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * buffer_shape[at].max(1);
    }
    Ok(Memory { buffer, dtype, shape, buffer_shape, strides })
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the object is an `Object` at deallocation: its memory is dropped once, then the type's
    // `tp_free` frees the object. An object of a heap type holds a reference to the type, released last.
    unsafe {
        let memory = (*object.cast::<Object>()).memory;
        if !memory.is_null() {
            drop(Box::from_raw(memory));
        }
        let type_object = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(type_object, ffi::Py_tp_free);
        let free = std::mem::transmute::<*mut c_void, ffi::freefunc>(free);
        free(object.cast());
        ffi::Py_DECREF(type_object.cast());
    }
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, raw: *mut RawBuffer, flags: c_int) -> c_int {
    // SAFETY: the object is an `Object`, whose memory does not move while it lives, and the buffer holds a
    // reference to it. Python passes `raw` with room for a buffer.
    unsafe {
        let memory = &mut *(*object.cast::<Object>()).memory;
        let requests = |flag: c_int| flags & flag == flag;
        let count: usize = memory.shape.iter().product();
        ffi::Py_INCREF(object);
        raw.write(RawBuffer {
            buf: memory.buffer.as_mut_ptr().cast(),
            obj: object,
            len: (count * memory.dtype.size()) as isize,
            itemsize: memory.dtype.size() as isize,
            readonly: 0,
            ndim: if requests(ND) { memory.shape.len() as c_int } else { 1 },
            format: if requests(FORMAT) {
                elements::exported_format(memory.dtype).as_ptr().cast_mut()
            } else {
                null_mut()
            },
            shape: if requests(ND) { memory.buffer_shape.as_mut_ptr() } else { null_mut() },
            strides: if requests(STRIDES) { memory.strides.as_mut_ptr() } else { null_mut() },
            suboffsets: null_mut(),
            internal: null_mut(),
        });
    }
    0
}

/// Returns the contents of an object if it is registered memory.
fn as_memory<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a Memory>> {
    if !object.is_instance(memory_type(object.py())?)? {
        return Ok(None);
    }
    // SAFETY: the object is an `Object`, whose memory does not move while it lives.
    Ok(Some(unsafe { &*(*object.as_ptr().cast::<Object>()).memory }))
}

/// Returns the contents of an object, or a TypeError if it is not registered memory.
fn expect_memory<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a Memory> {
    as_memory(object)?.ok_or_else(|| PyTypeError::new_err("the object is not registered memory"))
}

/// Returns the element type of registered memory, since buffers have no format for every type.
pub(crate) fn dtype_of(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    Ok(as_memory(object)?.map(|memory| memory.dtype))
}

/// Returns the number of the element type, and the shape.
#[pyfunction]
pub(crate) fn memory_layout<'py>(object: &Bound<'py, PyAny>) -> PyResult<(i32, Bound<'py, PyTuple>)> {
    let memory = expect_memory(object)?;
    Ok((numbers::dtype_number(memory.dtype), PyTuple::new(object.py(), &memory.shape)?))
}

/// Exports the memory as a DLPack capsule, versioned or not.
#[pyfunction]
pub(crate) fn memory_to_dlpack<'py>(
    object: &Bound<'py, PyAny>,
    with_version: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = expect_memory(object)?;
    export_capsule(object, memory.buffer.as_ptr().addr(), memory.dtype, &memory.shape, with_version)
}

/// Adds the type and its functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Memory", memory_type(module.py())?)?;
    module.add_function(wrap_pyfunction!(memory_layout, module)?)?;
    module.add_function(wrap_pyfunction!(memory_to_dlpack, module)?)
}
