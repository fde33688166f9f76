//! Python's buffer protocol.
//!
//! The stable ABI includes the protocol from Python 3.11 on only, and this module supports 3.10 too. It
//! therefore declares the structure and the functions itself. They are the same in all versions: 3.10 has
//! them, and the stable ABI has fixed them since 3.11.
//!
//! # Safety
//! [`RawBuffer`] is `Py_buffer` of the headers of Python 3.10 to 3.14. An acquired buffer is released once,
//! and its pointers are used only while it is held, with the GIL held.

use super::{Layout, type_name};
use crate::{elements, errors::invalid_argument};
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

/// `PyBUF_FORMAT`: requests the format of the elements.
pub(crate) const FORMAT: c_int = 0x4;
/// `PyBUF_ND`: requests the shape.
pub(crate) const ND: c_int = 0x8;
/// `PyBUF_STRIDES`: requests the strides and the shape.
pub(crate) const STRIDES: c_int = 0x10 | ND;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, buffer: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(buffer: *mut RawBuffer);
}

/// A buffer that an object exports, released on drop.
#[derive(Debug)]
pub(crate) struct HeldBuffer(Box<RawBuffer>);

// SAFETY: the contents do not change until the release, which happens with the GIL held.
unsafe impl Send for HeldBuffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for HeldBuffer {}

impl HeldBuffer {
    /// Whether the object supports the buffer protocol.
    pub(crate) fn is_supported_by(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object is alive, and the GIL is held.
        unsafe { PyObject_CheckBuffer(object.as_ptr()) != 0 }
    }

    /// Acquires the buffer of an object, and its layout.
    pub(crate) fn acquire(object: &Bound<'_, PyAny>) -> PyResult<(HeldBuffer, Layout)> {
        let mut raw = Box::new(MaybeUninit::<RawBuffer>::uninit());
        // The request asks neither for writable nor for contiguous memory, since the object's own
        // error would say little about the cause.
        // SAFETY: the object is alive, the GIL is held, and `raw` has room for a buffer.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), raw.as_mut_ptr(), STRIDES | FORMAT) };
        if status != 0 {
            let cause = PyErr::fetch(object.py());
            return Err(invalid_argument(format!("{} exports no buffer: {cause}", type_name(object))));
        }
        // SAFETY: the successful call above initialized it.
        let held = HeldBuffer(unsafe { raw.assume_init() });
        let layout = held.layout(object)?;
        Ok((held, layout))
    }

    fn layout(&self, object: &Bound<'_, PyAny>) -> PyResult<Layout> {
        let raw = &*self.0;
        let format = match raw.format.is_null() {
            true => "B".into(),
            // SAFETY: a format is terminated by a zero byte, and lives as long as the buffer.
            false => unsafe { CStr::from_ptr(raw.format) }.to_string_lossy(),
        };
        let itemsize = raw.itemsize as usize;
        let Some(dtype) = dtype_of(&format, itemsize).or_else(|| dtype_in_old_mlx(object, &format, itemsize))
        else {
            return Err(invalid_argument(format!(
                "the elements of {} are of format `{format}` with {} bytes each, \
                 which tbccl does not support",
                type_name(object),
                raw.itemsize
            )));
        };
        let ndim = raw.ndim as usize;
        // SAFETY: both were requested, and have one entry per dimension.
        let (shape, strides) = unsafe { (entries(raw.shape, ndim), entries(raw.strides, ndim)) };
        Ok(Layout {
            address: raw.buf as usize,
            dtype,
            shape: match shape {
                Some(shape) => shape.iter().map(|length| *length as usize).collect(),
                // A scalar has no dimensions.
                None if ndim == 0 => Vec::new(),
                None => vec![raw.len as usize / dtype.size()],
            },
            strides: strides.map(<[isize]>::to_vec),
            is_readonly: raw.readonly != 0,
        })
    }
}

/// Recognizes bfloat16 of MLX before 0.30, which exports its two bytes as format `B`.
fn dtype_in_old_mlx(object: &Bound<'_, PyAny>, format: &str, itemsize: usize) -> Option<DType> {
    let is_bfloat16 = (format, itemsize) == ("B", 2) && type_name(object) == "mlx.core.array";
    is_bfloat16.then_some(DType::Bf16)
}

/// Returns the entries at a pointer, or None if it is null.
///
/// # Safety
/// The pointer is null or points to `len` entries, which stay valid and unchanged during `'a`.
unsafe fn entries<'a>(pointer: *const isize, len: usize) -> Option<&'a [isize]> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer, len) })
}

impl Drop for HeldBuffer {
    fn drop(&mut self) {
        let release = |_: Python<'_>| {
            // SAFETY: the buffer was acquired, is released once, and the GIL is held.
            unsafe { PyBuffer_Release(&raw mut *self.0) };
        };
        // Without an interpreter no objects exist any more.
        let _ = Python::try_attach(release);
    }
}

/// Returns the element type of a format of the module `struct`, of `size` bytes, in native byte order only.
fn dtype_of(format: &str, size: usize) -> Option<DType> {
    let little = cfg!(target_endian = "little");
    let kind = match format.as_bytes().first()? {
        b'@' | b'=' => &format[1..],
        b'<' if little || size == 1 => &format[1..],
        b'>' | b'!' if !little || size == 1 => &format[1..],
        _ => format,
    };
    elements::from_format(kind, size)
}
