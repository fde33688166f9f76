//! Views: elements of Python objects at an address, without a copy.
//!
//! A [`View`] is an address, an element type and a shape. It comes from Python's buffer protocol or from
//! DLPack (`protocols`). The object can't free its memory while the view exists.
//!
//! An object that can't be used as it is gets an error that names the remedy: memory of a device, elements
//! that are not contiguous, element types without a `DType`. Nothing is copied or converted.
//!
//! # Safety
//! The address of a view is valid while the view exists. A caller that asks for a writable view gets writable
//! memory.

use crate::{
    errors::invalid_argument,
    memory, numbers,
    protocols::{Layout, buffer::HeldBuffer, dlpack::BorrowedTensor, type_name},
};
use pyo3::{prelude::*, types::PyTuple};
use tbccl::DType;

/// Owner of a view's memory, which keeps it valid.
#[derive(Debug)]
#[expect(dead_code, reason = "held, and dropped")]
enum MemoryOwner {
    Buffer(HeldBuffer),
    Tensor(BorrowedTensor),
}

/// Elements of a Python object.
#[pyclass(frozen, module = "tbccl._native")]
#[derive(Debug)]
pub(crate) struct View {
    /// Address of the first element.
    #[pyo3(get)]
    address: usize,
    dtype: DType,
    /// Number of elements.
    #[pyo3(get)]
    count: usize,
    shape: Vec<usize>,
    _owner: MemoryOwner,
}

#[pymethods]
impl View {
    /// Number of the element type, as in `tbccl.h`.
    #[getter]
    fn dtype(&self) -> i32 {
        numbers::dtype_number(self.dtype)
    }

    /// Size of an element in bytes.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.size()
    }

    /// Length of each dimension, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }
}

/// Returns a view of the elements that a layout describes, in memory that `owner` holds.
fn new_view(layout: Layout, owner: MemoryOwner) -> View {
    let Layout { address, dtype, shape, .. } = layout;
    View { address, dtype, count: shape.iter().product(), shape, _owner: owner }
}

/// Returns a view of an object's elements as another type of the same size.
///
/// It serves element types that the object's library has no name for.
#[pyfunction]
#[pyo3(signature = (object, dtype, writable=false, /))]
pub(crate) fn view_as(object: &Bound<'_, PyAny>, dtype: i32, writable: bool) -> PyResult<View> {
    let (view, dtype) = (view(object, writable)?, numbers::dtype(dtype)?);
    if view.dtype.size() != dtype.size() {
        return Err(invalid_argument(format!(
            "{} can't be viewed as {dtype}: the element sizes differ",
            view.dtype
        )));
    }
    Ok(View { dtype, ..view })
}

/// Returns a view of an object's elements, readable or also writable.
#[pyfunction]
#[pyo3(signature = (object, writable=false, /))]
pub(crate) fn view(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<View> {
    if HeldBuffer::is_supported_by(object) {
        let (buffer, mut layout) = HeldBuffer::acquire(object)?;
        if let Some(dtype) = memory::dtype_of(object)? {
            layout.dtype = dtype;
        }
        layout.check(object, writable)?;
        return Ok(new_view(layout, MemoryOwner::Buffer(buffer)));
    }
    if object.hasattr("__dlpack__")? {
        let (tensor, layout) = BorrowedTensor::acquire(object)?;
        layout.check(object, writable)?;
        return Ok(new_view(layout, MemoryOwner::Tensor(tensor)));
    }
    Err(invalid_argument(format!(
        "{} has neither the buffer protocol nor DLPack: pass an array of numpy, torch or mlx, a memoryview, \
         a bytearray or tbccl.empty()",
        type_name(object)
    )))
}
