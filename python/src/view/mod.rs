//! Python objects seen as elements at an address, without a copy.
//!
//! Two protocols tell where an object's elements are: Python's buffers, and DLPack, which frameworks speak among each other.
//! Whichever the object has, what comes out is a [`View`]: an address, an element type, a shape. The object can't give
//! its memory back as long as the view is there.
//!
//! What can't be used as it is gets an error that names the remedy: memory of a device, elements that are not side by side,
//! types that nothing can be done with. Nothing is copied or converted.
//!
//! # Safety
//! The address of a view is good while the view is. Whoever uses it says whether it is to be written, and gets views of
//! memory that can be, then.

pub(crate) mod buffer;
pub(crate) mod dlpack;

use crate::{errors::invalid, memory, numbers};
use buffer::Held;
use dlpack::Lent;
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

/// What a protocol has told of an object.
#[derive(Debug)]
struct Told {
    address: usize,
    dtype: DType,
    shape: Vec<usize>,
    /// Bytes from one element to the next, by dimension; none where they lie side by side.
    strides: Option<Vec<isize>>,
    is_readonly: bool,
}

impl Told {
    /// Do the elements lie side by side, the last dimension's first?
    fn is_contiguous(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = self.dtype.size() as isize;
        let dimensions = self.shape.iter().zip(strides).rev();
        for (&length, &stride) in dimensions {
            if length != 1 && stride != expected {
                return false;
            }
            expected *= length as isize;
        }
        true
    }

    fn check(&self, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<()> {
        if writable && self.is_readonly {
            return Err(invalid(format!(
                "{} is read-only, and the result is to be written there; give a writable one, or no out",
                kind_of(object)
            )));
        }
        if !self.is_contiguous() {
            return Err(invalid(format!(
                "the elements of {} do not lie side by side (shape {:?}, strides {:?} bytes); make it contiguous first, \
                 as numpy.ascontiguousarray() and Tensor.contiguous() do",
                kind_of(object),
                self.shape,
                self.strides.as_deref().unwrap_or_default()
            )));
        }
        Ok(())
    }

    fn with(self, keeper: Keeper) -> View {
        let Told { address, dtype, shape, .. } = self;
        View { address, dtype, count: shape.iter().product(), shape, _keeper: keeper }
    }
}

/// The name of an object's type, for people.
pub(crate) fn kind_of(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// Sees an object's elements as those of another type of the same size: of types that the object's library has no name for.
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
        let (held, mut told) = Held::get(object)?;
        if let Some(dtype) = memory::dtype_of(object)? {
            told.dtype = dtype;
        }
        told.check(object, writable)?;
        return Ok(told.with(Keeper::Buffer(held)));
    }
    if object.hasattr("__dlpack__")? {
        let (lent, told) = Lent::get(object)?;
        told.check(object, writable)?;
        return Ok(told.with(Keeper::Tensor(lent)));
    }
    Err(invalid(format!(
        "{} has neither the buffer protocol nor DLPack: give an array of numpy, torch or mlx, a memoryview, a bytearray or \
         tbccl.empty()",
        kind_of(object)
    )))
}
