//! What handles of types stand for: Open MPI's own by their addresses, and those made of them by numbers.

use crate::{
    boundary::{Failure, Outcome},
    objects::{self, Handle, Object},
};
use std::{
    ffi::c_int,
    sync::{PoisonError, RwLock},
};
use tbccl::DType;

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    /// One of ours.
    Known(DType),
    /// So many bytes, of which only who has made the type knows the meaning. MLX makes two of two bytes each, for its
    /// float16 and bfloat16.
    Bytes(usize),
}

static KNOWN: [(&Object, DType); 12] = [
    (&objects::ompi_mpi_float, DType::F32),
    (&objects::ompi_mpi_c_bool, DType::Bool),
    (&objects::ompi_mpi_int8_t, DType::I8),
    (&objects::ompi_mpi_uint8_t, DType::U8),
    (&objects::ompi_mpi_int16_t, DType::I16),
    (&objects::ompi_mpi_uint16_t, DType::U16),
    (&objects::ompi_mpi_int32_t, DType::I32),
    (&objects::ompi_mpi_uint32_t, DType::U32),
    (&objects::ompi_mpi_int64_t, DType::I64),
    (&objects::ompi_mpi_uint64_t, DType::U64),
    (&objects::ompi_mpi_double, DType::F64),
    (&objects::ompi_mpi_c_complex, DType::Complex64),
];

/// Bytes of the types that were made, by number.
static MADE: RwLock<Vec<usize>> = RwLock::new(Vec::new());

/// Handles of made types begin here. Nothing has such an address.
const FIRST: usize = 0x100;
/// How many there can be.
const MOST: usize = 0x700;

impl Datatype {
    /// Of a handle.
    #[inline]
    pub(crate) fn of(handle: Handle) -> Outcome<Datatype> {
        let number = handle as usize;
        if let Some((_, dtype)) = KNOWN.iter().find(|(object, _)| object.handle() == number) {
            return Ok(Datatype::Known(*dtype));
        }
        let made = MADE.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = number.checked_sub(FIRST).and_then(|at| made.get(at).copied());
        bytes.map(Datatype::Bytes).ok_or_else(|| Failure::wrong("not a type that this library has"))
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Datatype::Known(dtype) => dtype.size(),
            Datatype::Bytes(bytes) => bytes,
        }
    }

    /// As what so many elements travel where nobody computes with them: a type of ours, and how many of it.
    pub(crate) fn carried(self, count: usize) -> Outcome<(DType, usize)> {
        match self {
            Datatype::Known(dtype) => Ok((dtype, count)),
            Datatype::Bytes(bytes) => {
                let all = count
                    .checked_mul(bytes)
                    .ok_or_else(|| Failure::wrong("more elements than memory has"))?;
                Ok((DType::U8, all))
            }
        }
    }
}

/// Makes a type of so many elements of another.
pub(crate) fn contiguous(count: c_int, of: Handle) -> Outcome<Handle> {
    let count = usize::try_from(count).map_err(|_| Failure::wrong(format!("{count} elements")))?;
    let bytes = Datatype::of(of)?.bytes().checked_mul(count).filter(|bytes| *bytes > 0);
    let bytes = bytes.ok_or_else(|| Failure::wrong(format!("a type of {count} elements")))?;
    let mut made = MADE.write().unwrap_or_else(PoisonError::into_inner);
    if made.len() == MOST {
        return Err(Failure::wrong("too many types"));
    }
    made.push(bytes);
    Ok(std::ptr::without_provenance_mut(FIRST + made.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(object: &Object) -> Handle {
        std::ptr::without_provenance_mut(object.handle())
    }

    #[test]
    fn each_object_is_its_type_and_others_are_none() {
        assert_eq!(Datatype::of(handle(&objects::ompi_mpi_int16_t)).ok(), Some(Datatype::Known(DType::I16)));
        for number in [0, 1, FIRST + MOST, objects::ompi_mpi_op_sum.handle(), usize::MAX] {
            Datatype::of(std::ptr::without_provenance_mut(number)).expect_err("not a type");
        }
    }

    #[test]
    fn types_of_several_elements_are_so_many_bytes() {
        let half = contiguous(2, handle(&objects::ompi_mpi_uint8_t)).expect("a type");
        let pair = contiguous(3, half).expect("a type of a type");
        assert_eq!(Datatype::of(half).ok(), Some(Datatype::Bytes(2)));
        assert_eq!(Datatype::of(pair).and_then(|pair| pair.carried(5)).ok(), Some((DType::U8, 30)));
        for (count, of) in [(-1, half), (0, half), (2, std::ptr::null_mut())] {
            contiguous(count, of).expect_err("no type");
        }
        Datatype::Bytes(8).carried(usize::MAX).expect_err("too many");
    }
}
