//! Starting one process, and the state that it inherits.
//!
//! # Safety
//! Two calls need care. The closure given to [`CommandExt::pre_exec`] runs in the child between `fork` and
//! `exec`, where another thread may have held any lock: it makes two system calls, touches no memory beyond
//! its own stack, and its error carries a number, not an allocation. `sigaction` only queries a disposition,
//! and writes into a local value.

use rustix::process::Pid;
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

/// Starts `command` in a process group of its own. On Linux the kernel kills it when the calling thread ends,
/// so also when this process is killed. On other systems the process notices that from the silence of the
/// rendezvous server.
pub(crate) fn in_own_group(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    die_with_parent(&mut command);
    command.spawn()
}

/// Starts `command` in a process group of its own that may outlive this process.
pub(super) fn in_own_group_detached(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    command.spawn()
}

#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
    let parent = getpid();
    let set_death_signal = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before prctl, the signal would never be delivered.
        if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: the closure makes the system calls prctl and getppid, which are async-signal-safe, and
    // allocates nothing: an `io::Error` made from an `Errno` holds the bare number.
    unsafe { command.pre_exec(set_death_signal) };
}

/// Whether this process ignores the signal, as nohup(1) arranges for `SIGHUP`.
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut current = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the second argument is null, so nothing is changed; the third points to writable memory of the
    // right type, which the system fills in when it returns 0.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), current.as_mut_ptr()) } != 0;
    // SAFETY: `sigaction` is valid as all zeroes too, as it was before the call.
    let current = unsafe { current.assume_init() };
    !failed && current.sa_sigaction == libc::SIG_IGN
}

/// Returns the process id of a child.
pub(super) fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Returns the remedy for a failed start of a process, as the end of a sentence.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit on open files with `ulimit -n`, or start fewer ranks",
        Some(libc::ENFILE) => "; the system's table of open files is full, start fewer ranks",
        Some(libc::EAGAIN) => "; raise the limit on processes with `ulimit -u`, or start fewer ranks",
        Some(libc::ENOMEM) => "; there is not enough memory, start fewer ranks",
        Some(libc::E2BIG) => "; the arguments and the environment are too large together",
        Some(libc::ENOENT) => "; the interpreter in the program's first line is missing",
        Some(libc::EACCES) => "; the program's file system may be mounted with `noexec`",
        Some(libc::ENOEXEC) => "; it is not a program for this kind of machine",
        _ => "",
    }
}
