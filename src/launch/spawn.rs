//! Starting one process, and the state that it inherits.
//!
//! # Safety
//! Five calls need care. The closures given to [`CommandExt::pre_exec`] run in the child between `fork` and
//! `exec`, where another thread may have held any lock: they make one or two system calls, touch no memory
//! beyond their own, and their errors carry a number, not an allocation. `fork` is called before a process
//! has threads, so the child may do anything. A descriptor is taken by its number in one function, and only
//! once, and `dup2` replaces descriptors that nothing borrows. `sigaction` only queries a disposition, and
//! writes into a local value.

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Pid,
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
};

/// The option of `tbccl agent` that names the descriptor of its connection.
pub(super) const CONNECTION_OPTION: &str = "--connection";

/// Starts `command` in a process group of its own. On Linux the kernel kills it when the calling thread ends,
/// so also when this process is killed. On other systems the process notices that from the silence of the
/// rendezvous server.
pub(crate) fn in_own_group(mut command: Command) -> io::Result<Child> {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    die_with_parent(&mut command);
    command.spawn()
}

/// Starts `command`, a `tbccl agent`, in a process group of its own that may outlive this process. It
/// inherits `connection`, and gets its number as an argument.
pub(super) fn with_connection(mut command: Command, connection: OwnedFd) -> io::Result<Child> {
    command.process_group(0).arg(CONNECTION_OPTION).arg(connection.as_raw_fd().to_string());
    // Only the child keeps the descriptor open: another thread may start a process meanwhile.
    let keep_open = move || Ok(fcntl_setfd(&connection, FdFlags::empty())?);
    // SAFETY: the closure makes the system call fcntl, which is async-signal-safe, and allocates nothing: an
    // `io::Error` made from an `Errno` holds the bare number. It owns the descriptor, which is therefore
    // open.
    unsafe { command.pre_exec(keep_open) };
    command.spawn()
}

/// Takes the descriptor that [`with_connection`] has passed to this process.
///
/// # Errors
/// The system's, if this number is no open descriptor.
pub(super) fn take_connection(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the launcher opened the descriptor for this process alone, and names it on the command line.
    // The command line is read once, so nothing else owns or closes the descriptor.
    let connection = unsafe { OwnedFd::from_raw_fd(number) };
    match fcntl_setfd(&connection, FdFlags::CLOEXEC) {
        Ok(()) => Ok(connection),
        Err(error) => {
            // The number was wrong, so there is nothing to close.
            std::mem::forget(connection);
            Err(error.into())
        }
    }
}

/// Puts /dev/null in the place of this process's stdin.
pub(super) fn release_stdin() -> io::Result<()> {
    replace_with_null(libc::STDIN_FILENO)
}

/// Puts /dev/null in the place of this process's stdout.
pub(super) fn release_stdout() -> io::Result<()> {
    replace_with_null(libc::STDOUT_FILENO)
}

/// Puts /dev/null in the place of stdin or stdout.
fn replace_with_null(number: RawFd) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: `dup2` only changes the table of descriptors. The number is that of stdin or stdout, which
    // nothing in this process owns; who borrows it finds it open at all times.
    if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The two processes that a fork returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forked {
    /// The new process.
    Child,
    /// The calling process; contains the id of the new one.
    Parent(Pid),
}

/// Forks this process.
///
/// # Panics
/// In debug builds, if this process has other threads, as far as the system tells.
pub(super) fn fork() -> io::Result<Forked> {
    #[cfg(target_os = "linux")]
    debug_assert_eq!(std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count), 1, "one thread");
    // SAFETY: `fork` has no preconditions in a process with one thread: the child is a copy in which no lock
    // is held by another thread. Both callers, in `agent::keeper`, run first thing in the program's only
    // thread.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        failed if failed < 0 => Err(io::Error::last_os_error()),
        pid => Pid::from_raw(pid).map(Forked::Parent).ok_or_else(|| io::Error::other("no process id")),
    }
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

/// Removes the signal that this process would get at the death of its parent. It is inherited over `exec`.
pub(super) fn outlive_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(None)?;
    Ok(())
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
