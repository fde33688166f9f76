//! Error numbers of verbs libraries.
//!
//! Functions that create an object return null and set `errno`. Others return the number, its negative, or -1
//! with `errno` set, and no two libraries agree. This module converts all of them to an [`Errno`].
//!
//! # Safety
//! The only unsafe operation writes this thread's `errno`, at the address that the C library returns.

use std::{ffi::c_int, fmt, io};

/// An error number; 0 when the library did not give one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "` of this system.")]
                pub const $name: Errno = Errno(libc::$name);
            )*

            /// Returns the name of a number that verbs libraries return.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE ENOTTY
    ENOSPC EPIPE ERANGE ENOSYS EOPNOTSUPP EPROTONOSUPPORT EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNRESET
    ENOBUFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH ENODATA EOVERFLOW ESTALE
}

impl Errno {
    /// Whether the device lacks the requested feature.
    #[must_use]
    pub const fn is_unsupported(self) -> bool {
        // Linux's ENOTSUPP, a number internal to the kernel, which some drivers return to programs.
        const KERNEL_ENOTSUPP: i32 = 524;
        matches!(self, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ENOSYS)
            || matches!(self.0, libc::ENOTSUP | KERNEL_ENOTSUPP)
    }

    /// Clears the number that an earlier call left, so that a library that sets none is detected.
    pub(super) fn clear() {
        #[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
        // SAFETY: this is the address of this thread's errno.
        unsafe {
            *libc::__error() = 0;
        }
        #[cfg(not(any(target_os = "macos", target_os = "ios", target_os = "freebsd")))]
        // SAFETY: this is the address of this thread's errno.
        unsafe {
            *libc::__errno_location() = 0;
        }
    }

    /// Returns the `errno` that this thread's last call set.
    pub(super) fn last() -> Errno {
        Errno(io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }

    /// Converts the nonzero result of a library function.
    #[cold]
    pub(super) fn of_result(result: c_int) -> Errno {
        match result {
            -1 => Errno::last(),
            number => Errno(number.saturating_abs()),
        }
    }
}

/// Converts the result of a library function: zero is success.
pub(super) fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::of_result(result)) }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("no error number");
        }
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{name} ({text})"),
            None => write!(f, "error {} ({text})", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_it_means_the_same() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(libc::ENOMEM), Err(Errno::ENOMEM));
        assert_eq!(check(-libc::ENOMEM), Err(Errno::ENOMEM));
        Errno::clear();
        assert_eq!(check(-1), Err(Errno(0)));
        assert!(std::fs::metadata("/there/is/no/such/file").is_err());
        assert_eq!(check(-1), Err(Errno::ENOENT));
    }

    #[test]
    fn numbers_have_names() {
        assert!(Errno::EBUSY.to_string().starts_with("EBUSY ("));
        assert_eq!(Errno(0).to_string(), "no error number");
        assert!(Errno(9999).to_string().starts_with("error 9999 ("));
    }
}
