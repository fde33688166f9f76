//! Datatypes behind handles: the address of an Open MPI object, or a number for a derived datatype.

use super::objects;
use crate::{Failure, Outcome};
use mlx_table::mpi::Handle;
use std::{
    ffi::c_int,
    sync::{PoisonError, RwLock},
};
use tbccl::DType;

/// Datatype of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    /// An element type of tbccl.
    Builtin(DType),
    /// A derived datatype of this many bytes, whose meaning only its creator knows. MLX makes two of two
    /// bytes each, for its float16 and bfloat16.
    Derived(usize),
}

/// Bytes of each derived datatype, in the order of creation.
static DERIVED: RwLock<Vec<usize>> = RwLock::new(Vec::new());

/// First handle of derived datatypes. No object has such an address.
const FIRST_HANDLE: usize = 0x100;
/// Maximum number of derived datatypes.
const MAX_DERIVED: usize = 0x700;

impl Datatype {
    /// Returns the datatype of a handle.
    #[inline]
    pub(crate) fn from_handle(handle: Handle) -> Outcome<Datatype> {
        let number = handle as usize;
        if let Some(dtype) = objects::datatype(handle) {
            return Ok(Datatype::Builtin(dtype));
        }
        let derived = DERIVED.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = number.checked_sub(FIRST_HANDLE).and_then(|at| derived.get(at).copied());
        bytes.map(Datatype::Derived).ok_or_else(|| Failure::usage("not a type that this library has"))
    }

    /// Returns the bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Datatype::Builtin(dtype) => dtype.size(),
            Datatype::Derived(bytes) => bytes,
        }
    }

    /// Returns the element type and the count with which `count` elements travel where nothing is computed.
    /// Derived datatypes travel as bytes.
    pub(crate) fn transfer_type(self, count: usize) -> Outcome<(DType, usize)> {
        match self {
            Datatype::Builtin(dtype) => Ok((dtype, count)),
            Datatype::Derived(bytes) => {
                let total = count
                    .checked_mul(bytes)
                    .ok_or_else(|| Failure::usage("more elements than memory has"))?;
                Ok((DType::U8, total))
            }
        }
    }
}

/// Makes a datatype of `count` consecutive elements of another.
pub(crate) fn contiguous(count: c_int, of: Handle) -> Outcome<Handle> {
    let count = usize::try_from(count)
        .map_err(|_| Failure::usage(format!("count is {count}; counts are not negative")))?;
    let bytes = Datatype::from_handle(of)?.bytes().checked_mul(count).filter(|bytes| *bytes > 0);
    let bytes = bytes.ok_or_else(|| Failure::usage(format!("can't make a type of {count} elements")))?;
    let mut derived = DERIVED.write().unwrap_or_else(PoisonError::into_inner);
    if derived.len() == MAX_DERIVED {
        return Err(Failure::usage("too many types"));
    }
    derived.push(bytes);
    Ok(std::ptr::without_provenance_mut(FIRST_HANDLE + derived.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::samples::handle;

    #[test]
    fn each_object_is_its_type_and_others_are_none() {
        assert_eq!(
            Datatype::from_handle(handle(|objects| objects.ompi_mpi_int16_t)).ok(),
            Some(Datatype::Builtin(DType::I16))
        );
        let sum = handle(|objects| objects.ompi_mpi_op_sum) as usize;
        for number in [0, 1, FIRST_HANDLE + MAX_DERIVED, sum, usize::MAX] {
            Datatype::from_handle(std::ptr::without_provenance_mut(number)).expect_err("not a type");
        }
    }

    #[test]
    fn types_of_several_elements_are_so_many_bytes() {
        let half = contiguous(2, handle(|objects| objects.ompi_mpi_uint8_t)).expect("a type");
        let pair = contiguous(3, half).expect("a type of a type");
        assert_eq!(Datatype::from_handle(half).ok(), Some(Datatype::Derived(2)));
        assert_eq!(
            Datatype::from_handle(pair).and_then(|pair| pair.transfer_type(5)).ok(),
            Some((DType::U8, 30))
        );
        for (count, of) in [(-1, half), (0, half), (2, std::ptr::null_mut())] {
            contiguous(count, of).expect_err("no type");
        }
        Datatype::Derived(8).transfer_type(usize::MAX).expect_err("too many");
    }
}
