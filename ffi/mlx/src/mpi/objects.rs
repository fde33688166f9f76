//! Open MPI's objects. Programs pass their addresses as handles; nothing reads their contents.
//!
//! `libtbccl_mpi` has the objects, and passes their addresses on before the first call.

use mlx_table::mpi::{Handle, Objects};
use std::sync::OnceLock;
use tbccl::{DType, ReduceOp};

/// Addresses of the objects of the library that MLX has loaded.
static ADDRESSES: OnceLock<Addresses> = OnceLock::new();

/// Addresses of objects, with their meaning.
#[derive(Debug, PartialEq, Eq)]
struct Addresses {
    world: usize,
    operations: [(usize, ReduceOp); 3],
    datatypes: [(usize, DType); 12],
}

impl Addresses {
    fn of(objects: &Objects) -> Addresses {
        macro_rules! address {
            ($name:ident) => {
                std::ptr::from_ref(objects.$name) as usize
            };
        }
        Addresses {
            world: address!(ompi_mpi_comm_world),
            operations: [
                (address!(ompi_mpi_op_sum), ReduceOp::Sum),
                (address!(ompi_mpi_op_max), ReduceOp::Max),
                (address!(ompi_mpi_op_min), ReduceOp::Min),
            ],
            datatypes: [
                (address!(ompi_mpi_float), DType::F32),
                (address!(ompi_mpi_c_bool), DType::Bool),
                (address!(ompi_mpi_int8_t), DType::I8),
                (address!(ompi_mpi_uint8_t), DType::U8),
                (address!(ompi_mpi_int16_t), DType::I16),
                (address!(ompi_mpi_uint16_t), DType::U16),
                (address!(ompi_mpi_int32_t), DType::I32),
                (address!(ompi_mpi_uint32_t), DType::U32),
                (address!(ompi_mpi_int64_t), DType::I64),
                (address!(ompi_mpi_uint64_t), DType::U64),
                (address!(ompi_mpi_double), DType::F64),
                (address!(ompi_mpi_c_complex), DType::Complex64),
            ],
        }
    }
}

/// Remembers the addresses of a library's objects. Returns whether no other library has given its own before.
pub(super) fn set(objects: &Objects) -> bool {
    let addresses = Addresses::of(objects);
    *ADDRESSES.get_or_init(|| Addresses::of(objects)) == addresses
}

/// Returns the handle of all ranks' communicator, as a number; 0 before a library has given its objects.
pub(super) fn world() -> usize {
    ADDRESSES.get().map_or(0, |addresses| addresses.world)
}

/// Returns the element type of a handle.
#[inline]
pub(super) fn datatype(handle: Handle) -> Option<DType> {
    let known = &ADDRESSES.get()?.datatypes;
    known.iter().find(|(address, _)| *address == handle as usize).map(|(_, dtype)| *dtype)
}

/// Returns the operation of a handle.
#[inline]
pub(super) fn operation(handle: Handle) -> Option<ReduceOp> {
    let known = &ADDRESSES.get()?.operations;
    known.iter().find(|(address, _)| *address == handle as usize).map(|(_, op)| *op)
}

/// Objects of tests.
#[cfg(test)]
pub(super) mod samples {
    use super::{Objects, set};
    use mlx_table::mpi::{Handle, Object};

    macro_rules! samples {
        ($($(#[$doc:meta])* $name:ident;)*) => {
            mod values {
                #![allow(non_upper_case_globals)] // Names are those of C.
                $(pub(super) static $name: super::Object = super::Object::new();)*
            }

            /// Objects of this test program.
            pub(crate) static OBJECTS: Objects = Objects { $($name: &values::$name,)* };
        };
    }

    mlx_table::mpi_objects!(samples);

    /// Gives the objects, and returns the handle of one.
    pub(crate) fn handle(of: impl FnOnce(&Objects) -> &'static Object) -> Handle {
        assert!(set(&OBJECTS), "one library");
        std::ptr::from_ref(of(&OBJECTS)).cast_mut().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::{samples::OBJECTS, *};
    use mlx_table::mpi::Object;

    #[test]
    fn objects_of_a_second_library_are_refused() {
        static OTHER: Object = Object::new();
        assert!(set(&OBJECTS) && set(&OBJECTS));
        assert!(!set(&Objects { ompi_mpi_float: &OTHER, ..OBJECTS }));
        assert_eq!(datatype(samples::handle(|objects| objects.ompi_mpi_float)), Some(DType::F32));
        assert_eq!(operation(samples::handle(|objects| objects.ompi_mpi_op_min)), Some(ReduceOp::Min));
        assert_eq!(datatype(samples::handle(|objects| objects.ompi_mpi_op_min)), None);
        assert_eq!(samples::handle(|objects| objects.ompi_mpi_comm_world) as usize, world());
    }
}
