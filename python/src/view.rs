//! Python objects seen as elements at an address, without a copy.
//!
//! A [`View`] is an address, an element type and a shape. It comes from Python's buffer protocol or from DLPack
//! (`protocols`). The object can't free its memory while the view exists.
//!
//! An object that can't be used as it is gets an error that names the remedy: memory of a device, elements that are
//! not contiguous, element types without a `DType`. Nothing is copied or converted.
//!
//! # Safety
//! The address of a view is valid while the view exists. A caller that asks for a writable view gets writable memory.

use crate::{
    errors::invalid,
    memory, numbers,
    protocols::{Layout, buffer::Held, dlpack::Lent, kind_of},
};
use pyo3::{prelude::*, types::PyTuple};
use tbccl::DType;

/// What keeps the memory where it is.
#[derive(Debug)]
#[expect(dead_code, reason = "held, and dropped")]
enum Keeper {
    Buffer(Held),
    Tensor(Lent),
}

/// Elements of a Python object.
#[pyclass(frozen, module = "tbccl._native")]
#[derive(Debug)]
pub(crate) struct View {
    /// Where they begin.
    #[pyo3(get)]
    address: usize,
    dtype: DType,
    /// How many there are.
    #[pyo3(get)]
    count: usize,
    shape: Vec<usize>,
    _keeper: Keeper,
}

#[pymethods]
impl View {
    /// The number of their type.
    #[getter]
    fn dtype(&self) -> i32 {
        numbers::number_of(self.dtype)
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.size()
    }

    /// How many there are in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }
}

/// Makes a view of the elements that a layout describes, in memory that `keeper` holds.
fn view_of(layout: Layout, keeper: Keeper) -> View {
    let Layout { address, dtype, shape, .. } = layout;
    View { address, dtype, count: shape.iter().product(), shape, _keeper: keeper }
}

/// Sees an object's elements as those of another type of the same size.
///
/// It serves element types that the object's library has no name for.
#[pyfunction]
#[pyo3(signature = (object, dtype, writable=false, /))]
pub(crate) fn view_as(object: &Bound<'_, PyAny>, dtype: i32, writable: bool) -> PyResult<View> {
    let (seen, dtype) = (view(object, writable)?, numbers::dtype(dtype)?);
    if seen.dtype.size() != dtype.size() {
        return Err(invalid(format!("{} can't be seen as {dtype}: elements differ in size", seen.dtype)));
    }
    Ok(View { dtype, ..seen })
}

/// Sees an object's elements, to read them or also to write them.
#[pyfunction]
#[pyo3(signature = (object, writable=false, /))]
pub(crate) fn view(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<View> {
    if Held::is_offered_by(object) {
        let (held, mut layout) = Held::get(object)?;
        if let Some(dtype) = memory::dtype_of(object)? {
            layout.dtype = dtype;
        }
        layout.check(object, writable)?;
        return Ok(view_of(layout, Keeper::Buffer(held)));
    }
    if object.hasattr("__dlpack__")? {
        let (lent, layout) = Lent::get(object)?;
        layout.check(object, writable)?;
        return Ok(view_of(layout, Keeper::Tensor(lent)));
    }
    Err(invalid(format!(
        "{} has neither the buffer protocol nor DLPack: give an array of numpy, torch or mlx, a memoryview, a bytearray or \
         tbccl.empty()",
        kind_of(object)
    )))
}
