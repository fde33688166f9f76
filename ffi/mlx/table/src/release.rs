//! Version and size of a table: the two sides of a table are of one release, or refuse each other.
//!
//! # Safety
//! The trait is unsafe, since it promises the layout of a table that `find` gets from another library.

/// Most characters of a version.
const MAX_VERSION: usize = 24;

/// Version of tbccl that a table is of, and the bytes of the table. Its layout never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    version: [u8; MAX_VERSION],
    bytes: u64,
}

impl Release {
    /// Returns the release of a table of this crate's version.
    #[must_use]
    pub const fn of<T>() -> Release {
        let text = env!("CARGO_PKG_VERSION").as_bytes();
        assert!(text.len() <= MAX_VERSION);
        let (mut version, mut at) = ([0; MAX_VERSION], 0);
        while at < text.len() {
            version[at] = text[at];
            at += 1;
        }
        Release { version, bytes: size_of::<T>() as u64 }
    }

    /// Returns the version as text.
    pub(crate) fn version(&self) -> String {
        let text = self.version.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// Table of functions, which begins with its [`Release`].
///
/// # Safety
/// The type has the layout of C, and its first field is a `Release`. A function of `libtbccl` by the name of
/// [`Released::ENTRY`] takes the address of a `Given`, and returns that of a table, or null.
pub unsafe trait Released: Sized + 'static {
    /// Value that a library passes to `libtbccl`.
    type Given: 'static;

    /// Name of the function of `libtbccl` that returns the table.
    const ENTRY: &'static std::ffi::CStr;
}

/// Function of `libtbccl` that returns a table; null if it refuses the value given.
pub(crate) type Entry<T> = unsafe extern "C" fn(*const <T as Released>::Given) -> *const T;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_another_size_are_of_another_release() {
        let release = Release::of::<[u64; 3]>();
        assert_eq!(release.version(), env!("CARGO_PKG_VERSION"));
        assert_eq!(release, Release::of::<[u32; 6]>());
        assert_ne!(release, Release::of::<[u64; 4]>());
    }
}
