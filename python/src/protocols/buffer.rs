//! Python's buffer protocol.
//!
//! The stable ABI has had it from Python 3.11 on only, and this module is for 3.10, too. So its structure and functions are
//! declared here: they are the same in all versions, 3.10 has them, and since 3.11 they can't change any more.
//!
//! # Safety
//! [`RawBuffer`] is `Py_buffer` of the headers of Python 3.10 to 3.14. A buffer that was got is released once, and its pointers
//! are used while it is held. All with Python's lock.

use super::{Layout, kind_of};
use crate::errors::invalid;
use pyo3::{ffi, prelude::*};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::MaybeUninit,
    slice,
};
use tbccl::DType;

/// `Py_buffer`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawBuffer {
    pub(crate) buf: *mut c_void,
    pub(crate) obj: *mut ffi::PyObject,
    pub(crate) len: isize,
    pub(crate) itemsize: isize,
    pub(crate) readonly: c_int,
    pub(crate) ndim: c_int,
    pub(crate) format: *mut c_char,
    pub(crate) shape: *mut isize,
    pub(crate) strides: *mut isize,
    pub(crate) suboffsets: *mut isize,
    pub(crate) internal: *mut c_void,
}

/// `PyBUF_FORMAT`: the type of the elements is wanted.
pub(crate) const FORMAT: c_int = 0x4;
/// `PyBUF_ND`: the lengths of the dimensions are wanted.
pub(crate) const ND: c_int = 0x8;
/// `PyBUF_STRIDES`: the distances of elements as well.
pub(crate) const STRIDES: c_int = 0x10 | ND;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, buffer: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(buffer: *mut RawBuffer);
}

/// A buffer that an object has given, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Box<RawBuffer>);

// SAFETY: what is in it stays as it is until it is released, which is done with Python's lock.
unsafe impl Send for Held {}
// SAFETY: as for `Send`.
unsafe impl Sync for Held {}

impl Held {
    /// Has the object such a buffer?
    pub(crate) fn is_offered_by(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object is there, and we have Python's lock.
        unsafe { PyObject_CheckBuffer(object.as_ptr()) != 0 }
    }

    /// Gets it, and what it tells.
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<(Held, Layout)> {
        let mut raw = Box::new(MaybeUninit::<RawBuffer>::uninit());
        // Without asking for writable memory or for elements side by side: objects say little about why they refuse.
        // SAFETY: the object is there, we have Python's lock, and there is room for a buffer.
        let refused = unsafe { PyObject_GetBuffer(object.as_ptr(), raw.as_mut_ptr(), STRIDES | FORMAT) };
        if refused != 0 {
            let why = PyErr::fetch(object.py());
            return Err(invalid(format!("{} gives no buffer: {why}", kind_of(object))));
        }
        // SAFETY: it was filled in.
        let held = Held(unsafe { raw.assume_init() });
        let layout = held.layout(object)?;
        Ok((held, layout))
    }

    fn layout(&self, object: &Bound<'_, PyAny>) -> PyResult<Layout> {
        let raw = &*self.0;
        let format = match raw.format.is_null() {
            true => "B".into(),
            // SAFETY: a format ends with a zero, and is there as long as the buffer.
            false => unsafe { CStr::from_ptr(raw.format) }.to_string_lossy(),
        };
        let itemsize = raw.itemsize as usize;
        let Some(dtype) = dtype_of(&format, itemsize).or_else(|| of_older_mlx(object, &format, itemsize))
        else {
            return Err(invalid(format!(
                "the elements of {} are of format `{format}` with {} bytes each, which tbccl does not have",
                kind_of(object),
                raw.itemsize
            )));
        };
        let ndim = raw.ndim as usize;
        // SAFETY: both were asked for, and have as many entries as there are dimensions.
        let (shape, strides) = unsafe { (list(raw.shape, ndim), list(raw.strides, ndim)) };
        Ok(Layout {
            address: raw.buf as usize,
            dtype,
            shape: match shape {
                Some(shape) => shape.iter().map(|length| *length as usize).collect(),
                // A single number has no dimensions.
                None if ndim == 0 => Vec::new(),
                None => vec![raw.len as usize / dtype.size()],
            },
            strides: strides.map(<[isize]>::to_vec),
            is_readonly: raw.readonly != 0,
        })
    }
}

/// MLX before 0.30 calls the two bytes of a bfloat16 bytes.
fn of_older_mlx(object: &Bound<'_, PyAny>, format: &str, itemsize: usize) -> Option<DType> {
    let is_it = (format, itemsize) == ("B", 2) && kind_of(object) == "mlx.core.array";
    is_it.then_some(DType::Bf16)
}

/// # Safety
/// The pointer is null or points to so many entries, which stay as they are.
unsafe fn list<'a>(pointer: *const isize, len: usize) -> Option<&'a [isize]> {
    // SAFETY: as the caller promises.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer, len) })
}

impl Drop for Held {
    fn drop(&mut self) {
        let release = |_: Python<'_>| {
            // SAFETY: it was got, is released once, and we have Python's lock.
            unsafe { PyBuffer_Release(&raw mut *self.0) };
        };
        // Without an interpreter there are no objects any more.
        let _ = Python::try_attach(release);
    }
}

/// The element type of a format of the `struct` module, with so many bytes. Only as this machine has them in memory.
fn dtype_of(format: &str, size: usize) -> Option<DType> {
    let little = cfg!(target_endian = "little");
    let kind = match format.as_bytes().first()? {
        b'@' | b'=' => &format[1..],
        b'<' if little || size == 1 => &format[1..],
        b'>' | b'!' if !little || size == 1 => &format[1..],
        _ => format,
    };
    let dtype = match (kind, size) {
        ("e", 2) => DType::F16,
        // As MLX writes it, there being no letter.
        ("bfloat16", 2) => DType::Bf16,
        ("f", 4) => DType::F32,
        ("d", 8) => DType::F64,
        ("Zf" | "F", 8) => DType::Complex64,
        ("?", 1) => DType::Bool,
        ("b", 1) => DType::I8,
        ("B", 1) => DType::U8,
        ("h", 2) => DType::I16,
        ("H", 2) => DType::U16,
        ("i" | "l", 4) => DType::I32,
        ("I" | "L", 4) => DType::U32,
        ("l" | "q" | "n", 8) => DType::I64,
        ("L" | "Q" | "N", 8) => DType::U64,
        _ => return None,
    };
    Some(dtype)
}
