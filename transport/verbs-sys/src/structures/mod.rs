//! Structures of the verbs ABI, with the sizes and offsets they must have.
//!
//! # Safety
//! Every structure here is made of integers, raw pointers, optional function pointers and the system's mutexes and
//! condition variables, all of which may be all zeroes; so `zeroed` can be offered as a safe function.

mod attributes;
mod device;
mod extended;
mod objects;

pub use attributes::*;
pub use device::*;
pub use extended::*;
pub use objects::*;

/// A slot whose function neither the driver nor the device uses.
pub type Unused = Option<unsafe extern "C" fn()>;

/// Where the members of a C structure lie.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name of the structure in C, as `struct ibv_wc`.
    pub c_type: &'static str,
    /// Its bytes.
    pub size: usize,
    /// Its members: their names in C, and their offsets.
    pub fields: &'static [(&'static str, usize)],
}

/// All structures, for comparison with a C header.
pub const LAYOUTS: [&[Layout]; 4] =
    [attributes::LAYOUTS, device::LAYOUTS, extended::LAYOUTS, objects::LAYOUTS];

/// Defines structures whose members have the names they have in C. The numbers are sizes and offsets on 64-bit
/// x86 with glibc, and are checked there when this crate is compiled.
macro_rules! structures {
    ($(
        $(#[$doc:meta])*
        $type:ident = $c_type:literal, $size:literal {
            $($(#[$field_doc:meta])* $field:ident: $field_type:ty = $offset:literal,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs, non_snake_case, reason = "members are those of the C header, which explains them")]
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $type {
                $($(#[$field_doc])* pub $field: $field_type,)*
            }

            impl $type {
                /// With all bytes 0.
                #[must_use]
                pub const fn zeroed() -> $type {
                    // SAFETY: all zeroes is a value of every type that occurs in these structures.
                    unsafe { std::mem::zeroed() }
                }
            }

            #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]
            const _: () = {
                assert!(size_of::<$type>() == $size);
                $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
            };
        )*

        /// The structures of this module.
        pub(super) const LAYOUTS: &[super::Layout] = &[$(super::Layout {
            c_type: $c_type,
            size: size_of::<$type>(),
            fields: &[$((stringify!($field), std::mem::offset_of!($type, $field)),)*],
        }),*];
    };
}
use structures;
