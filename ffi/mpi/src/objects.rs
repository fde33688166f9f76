//! Open MPI's objects. Programs pass their addresses as handles; nothing reads their contents.
//!
//! # Safety
//! The only unsafe code here exports names without mangling.

use std::ffi::c_void;
use tbccl::DType;

/// Handle: the address of an object of this module, or a number from `MPI_Comm_split`, `MPI_Type_contiguous`
/// or `MPI_Op_create`.
pub type Handle = *mut c_void;

/// Object with an address and no contents. Open MPI's are structures of some hundred bytes, which programs do
/// not read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Object([u8; 64]);

impl Object {
    const fn new() -> Object {
        Object([0; 64])
    }

    /// Returns the object's handle as a number.
    pub(crate) fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] pub static $name: Object = Object::new();)*
    };
}

/// Defines the objects of datatypes, and the table of their element types.
macro_rules! datatypes {
    ($($(#[$doc:meta])* $name:ident => $dtype:ident;)*) => {
        objects! { $($(#[$doc])* $name;)* }

        /// The datatypes that are element types of tbccl.
        pub(crate) static DATATYPES: &[(&Object, DType)] = &[$((&$name, DType::$dtype)),*];
    };
}

objects! {
    /// Communicator of all ranks.
    ompi_mpi_comm_world;
    /// Sum.
    ompi_mpi_op_sum;
    /// Maximum.
    ompi_mpi_op_max;
    /// Minimum.
    ompi_mpi_op_min;
}

datatypes! {
    /// IEEE 754 binary32.
    ompi_mpi_float => F32;
    /// Boolean of one byte, 0 or 1.
    ompi_mpi_c_bool => Bool;
    /// Signed integer of 8 bits.
    ompi_mpi_int8_t => I8;
    /// Unsigned integer of 8 bits.
    ompi_mpi_uint8_t => U8;
    /// Signed integer of 16 bits.
    ompi_mpi_int16_t => I16;
    /// Unsigned integer of 16 bits.
    ompi_mpi_uint16_t => U16;
    /// Signed integer of 32 bits.
    ompi_mpi_int32_t => I32;
    /// Unsigned integer of 32 bits.
    ompi_mpi_uint32_t => U32;
    /// Signed integer of 64 bits.
    ompi_mpi_int64_t => I64;
    /// Unsigned integer of 64 bits.
    ompi_mpi_uint64_t => U64;
    /// IEEE 754 binary64.
    ompi_mpi_double => F64;
    /// Complex number of two binary32.
    ompi_mpi_c_complex => Complex64;
}
