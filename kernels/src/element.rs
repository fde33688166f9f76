//! The Rust types that are elements, and their slices seen as bytes.
//!
//! # Safety
//! The only unsafe code turns bytes that came from elsewhere into bytes that are elements of their type
//! ([`settle`]); all views are `bytemuck` casts.

pub use collectives::DType;
use half::{bf16, f16};
use num_complex::Complex32;

/// A Rust type whose slices collectives accept. Sealed, since the kernels support exactly these types.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The element type that it is.
    const DTYPE: DType;
}

mod sealed {
    /// Keeps other crates from implementing [`Element`], and guarantees that elements have no padding.
    pub trait Sealed: bytemuck::NoUninit {}
}

// `$d` is a dollar sign, with which the inner macro names its own parameters.
macro_rules! elements {
    ($d:tt; $($rust:ty => $dtype:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: DType = DType::$dtype;
            }
            const _: () = assert!(size_of::<$rust>() == DType::$dtype.size());
        )*

        /// The Rust types of all element types, by the names of [`DType`].
        pub mod types {
            use super::{Complex32, bf16, f16};

            $(
                /// Rust type of the element type of this name.
                pub type $dtype = $rust;
            )*
        }

        /// Evaluates an expression with a name bound to the Rust type of an element type.
        ///
        /// ```
        /// use kernels::{Element, dispatch, element::DType};
        ///
        /// fn bytes_of_one<T: Element>() -> usize {
        ///     size_of::<T>()
        /// }
        /// assert_eq!(dispatch!(DType::U16, T => bytes_of_one::<T>()), 2);
        /// ```
        #[macro_export]
        macro_rules! dispatch {
            ($d dtype:expr, $d element:ident => $d body:expr) => {
                match $d dtype {
                    $(
                        $crate::element::DType::$dtype => {
                            type $d element = $crate::element::types::$dtype;
                            $d body
                        }
                    )*
                }
            };
        }
    };
}

elements! {
    $;
    f32 => F32,
    f64 => F64,
    f16 => F16,
    bf16 => Bf16,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    bool => Bool,
    Complex32 => Complex64,
}

/// The bytes of a slice of elements.
#[must_use]
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// Returns the bytes of a slice of elements, for writing.
///
/// This is a pointer and not a `&mut [u8]`, because not every byte is a valid `bool`. The writer must leave
/// valid elements behind: the kernels do, and [`settle`] does for bytes that came from another process.
#[must_use]
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> *mut [u8] {
    std::ptr::slice_from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements))
}

/// Turns received bytes into elements of `T`: a nonzero byte of a `bool` becomes 1; other types accept any
/// bits and are not touched.
///
/// # Safety
/// `bytes` is readable and writable, aligned for `T`, and not accessed by others meanwhile.
pub unsafe fn settle<T: Element>(bytes: *mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { settle_as(T::DTYPE, bytes) };
}

/// Turns received bytes into elements, as [`settle`] does, for a type known at run time.
///
/// # Safety
/// As for [`settle`].
#[inline]
pub unsafe fn settle_as(dtype: DType, bytes: *mut [u8]) {
    if dtype == DType::Bool {
        let start = bytes.cast::<u8>();
        // SAFETY: the caller's promise is the kernel's, with all three operands being the same bytes.
        unsafe { crate::truth(start, bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_finds_the_type_of_every_element_type() {
        for dtype in DType::ALL {
            assert_eq!(dispatch!(dtype, T => T::DTYPE), dtype);
        }
    }

    #[test]
    fn a_slice_is_seen_as_its_bytes() {
        assert_eq!(
            bytes_of(&[1u16, 0x0203]),
            if cfg!(target_endian = "little") { [1, 0, 3, 2] } else { [0, 1, 2, 3] }
        );
        assert_eq!(bytes_of(&[true, false]), [1, 0]);
        assert_eq!(bytes_of_mut(&mut [Complex32::new(0.0, 1.0); 3]).len(), 24);
    }

    #[test]
    fn foreign_bytes_become_truth_values() {
        let mut bytes = [0u8, 1, 2, 255];
        // SAFETY: the array is ours alone, and bool has no alignment to speak of.
        unsafe { settle::<bool>(&raw mut bytes as *mut [u8]) };
        assert_eq!(bytes, [0, 1, 1, 1]);
        // SAFETY: as above.
        unsafe { settle::<u8>(&raw mut bytes as *mut [u8]) };
        assert_eq!(bytes, [0, 1, 1, 1]);
    }
}
