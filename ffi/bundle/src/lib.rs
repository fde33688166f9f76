//! The `libtbccl` of a wheel: the C interface and the command `tbccl` in one library.
//!
//! The library and the command share most of their code, which a wheel would otherwise contain twice. The
//! wheel's `lib/libtbccl.so.0` is this library, and its `bin/tbccl` is `src/main.rs`, which opens the library
//! and calls [`tbccl_program`]. C programs see the interface of `tbccl.h` and no difference.
//!
//! Installations of other kinds (`make install`, the Debian package, the archive) do not have this library.
//!
//! # Safety
//! The one function has no arguments, and its name is of no other library.

use std::{
    env, panic,
    process::{self, ExitCode},
};
// The compiler exports its functions from this library, too.
use tbccl_c as _;

/// Exit status of a program that panics, as Rust's own start-up code has it.
const PANICKED: u8 = 101;

/// Runs the command `tbccl` with the arguments of this process, and ends the process.
///
/// The exit is here and not in the caller, so that the output that this library buffers is written.
// SAFETY: no other function of the library, and none of C's, has this name.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_program() -> ! {
    let code = panic::catch_unwind(|| tbccl_cli::main(env::args_os()));
    process::exit(number(code.unwrap_or(ExitCode::from(PANICKED))).into())
}

/// Returns the number of an exit status, which its type does not tell.
fn number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(PANICKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_status_keeps_its_number() {
        for status in 0..=u8::MAX {
            assert_eq!(number(ExitCode::from(status)), status);
        }
        assert_eq!((number(ExitCode::SUCCESS), number(ExitCode::FAILURE)), (0, 1));
    }
}
