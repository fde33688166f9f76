//! Open MPI's objects. A program passes their addresses as handles; what is in them is nobody's business.
//!
//! # Safety
//! The only unsafe thing here is that names are exported as they are.

use std::ffi::c_void;

/// A handle: the address of an object here, or a number that `MPI_Comm_split` and its like have given.
pub type Handle = *mut c_void;

/// Something to have an address. Open MPI's are structures of some hundred bytes; nobody looks into ours.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Object([u8; 64]);

impl Object {
    const fn new() -> Object {
        Object([0; 64])
    }

    /// Its handle, as a number.
    pub(crate) fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] pub static $name: Object = Object::new();)*
    };
}

objects! {
    /// All ranks.
    ompi_mpi_comm_world;
    /// Addition.
    ompi_mpi_op_sum;
    /// The larger one.
    ompi_mpi_op_max;
    /// The smaller one.
    ompi_mpi_op_min;
    /// One byte, 0 or 1.
    ompi_mpi_c_bool;
    /// Signed, 8 bits.
    ompi_mpi_int8_t;
    /// Unsigned, 8 bits.
    ompi_mpi_uint8_t;
    /// Signed, 16 bits.
    ompi_mpi_int16_t;
    /// Unsigned, 16 bits.
    ompi_mpi_uint16_t;
    /// Signed, 32 bits.
    ompi_mpi_int32_t;
    /// Unsigned, 32 bits.
    ompi_mpi_uint32_t;
    /// Signed, 64 bits.
    ompi_mpi_int64_t;
    /// Unsigned, 64 bits.
    ompi_mpi_uint64_t;
    /// IEEE 754 binary32.
    ompi_mpi_float;
    /// IEEE 754 binary64.
    ompi_mpi_double;
    /// Two of binary32.
    ompi_mpi_c_complex;
}
