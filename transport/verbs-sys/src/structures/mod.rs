//! Structures of the verbs ABI, with checked sizes and offsets.
//!
//! Several C structures point to each other, above all through [`Context`]; they share the module `objects`.
//!
//! # Safety
//! Every structure here consists of integers, raw pointers, optional function pointers and the system's
//! mutexes and condition variables, all of which may be all zeroes; so `zeroed` can be offered as a safe
//! function.

mod attributes;
mod device;
mod extended;
mod objects;

pub use attributes::*;
pub use device::*;
pub use extended::*;
pub use objects::*;

/// A function slot that neither the driver nor the device uses.
pub type Unused = Option<unsafe extern "C" fn()>;

/// The layout of a C structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// C name of the structure, such as `struct ibv_wc`.
    pub c_type: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// C names and offsets of the members.
    pub fields: &'static [(&'static str, usize)],
}

/// All structures, for comparison with a C header.
pub const LAYOUTS: [&[Layout]; 4] =
    [attributes::LAYOUTS, device::LAYOUTS, extended::LAYOUTS, objects::LAYOUTS];

/// Defines structures whose members have their C names.
///
/// The numbers are sizes and offsets on 64-bit x86 with glibc; the compiler checks them on that target.
macro_rules! structures {
    ($(
        $(#[$doc:meta])*
        $type:ident = $c_type:literal, $size:literal {
            $($(#[$field_doc:meta])* $field:ident: $field_type:ty = $offset:literal,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[allow(
                missing_docs,
                non_snake_case,
                reason = "members are those of the C header, which explains them"
            )]
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $type {
                $($(#[$field_doc])* pub $field: $field_type,)*
            }

            impl $type {
                /// The structure with all bytes zero.
                #[must_use]
                pub const fn zeroed() -> $type {
                    // SAFETY: all zeroes is a valid value of every type in these structures; see the module.
                    unsafe { std::mem::zeroed() }
                }
            }

            #[cfg(all(
                target_os = "linux",
                target_env = "gnu",
                target_arch = "x86_64",
                target_pointer_width = "64"
            ))]
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
