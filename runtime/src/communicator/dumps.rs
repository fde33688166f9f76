//! Where flight recorders are written to: a file per rank and process, when a communicator fails and its options say so, or
//! on SIGUSR2 once a program, or the options of any communicator, have asked for it.
//!
//! The signal's handler only writes to a pipe; a thread of its own sleeps until something comes there.

use super::control::Control;
use crate::error::{Error, Result};
use signal_hook::{consts::SIGUSR2, iterator::Signals};
use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

/// The communicators of this process.
static LIVE: Mutex<Vec<Weak<Control>>> = Mutex::new(Vec::new());

/// What is to be done on the signal.
static ON_SIGNAL: Mutex<OnSignal> = Mutex::new(OnSignal { caught: false, folder: None });

struct OnSignal {
    /// Is there a handler, and a thread that waits for it?
    caught: bool,
    /// Where the files of communicators go whose options name no folder; stderr if nowhere.
    folder: Option<PathBuf>,
}

/// Nothing that such a lock guards is left half done by a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGUSR2 has every communicator of this process write its latest calls as lines of JSON: to a file of this
/// folder, `tbccl-rank0-pid1234.jsonl`, or to stderr if there is no folder; those whose options name a folder
/// ([`Config::dump`](crate::Config::dump)) write there. Files are appended to. What else the program does on that signal
/// it goes on to do.
///
/// # Errors
/// [`Error::System`] when the signal can't be caught.
pub fn record_on_signal(folder: Option<&Path>) -> Result<()> {
    catch_signal()?;
    locked(&ON_SIGNAL).folder = folder.map(Path::to_owned);
    Ok(())
}

/// From now on the signal has communicators written.
pub(super) fn catch_signal() -> Result<()> {
    let mut on_signal = locked(&ON_SIGNAL);
    if !on_signal.caught {
        let refused = |error| Error::system("catching SIGUSR2 for the flight recorder", error);
        let mut signals = Signals::new([SIGUSR2]).map_err(refused)?;
        let waiting = move || signals.forever().for_each(|_| write_all());
        thread::Builder::new().name("tbccl-recorder".into()).spawn(waiting).map_err(refused)?;
        on_signal.caught = true;
    }
    Ok(())
}

fn write_all() {
    let folder = locked(&ON_SIGNAL).folder.clone();
    let live: Vec<Arc<Control>> = locked(&LIVE).iter().filter_map(Weak::upgrade).collect();
    for control in live {
        match control.folder().or(folder.as_deref()) {
            Some(folder) => write_or_warn(&control, folder),
            // Nobody hears of it if there is no stderr.
            None => drop(control.dump(&mut io::stderr().lock())),
        }
    }
}

/// A communicator has been made that may be asked.
pub(super) fn enlist(control: Control) -> Arc<Control> {
    let control = Arc::new(control);
    locked(&LIVE).push(Arc::downgrade(&control));
    control
}

/// It is gone.
pub(super) fn strike_off(control: &Arc<Control>) {
    locked(&LIVE).retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(control)));
}

/// Writes the recorder of a communicator whose options name a folder.
pub(super) fn write_if_wanted(control: &Control) {
    if let Some(folder) = control.folder() {
        write_or_warn(control, folder);
    }
}

/// Writes to the file of a rank; says on stderr if that can't be done.
fn write_or_warn(control: &Control, folder: &Path) {
    if let Err(error) = append(control, folder) {
        eprintln!("tbccl: warning: can't write the flight recorder to {}: {error}", folder.display());
    }
}

fn append(control: &Control, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = format!("tbccl-rank{}-pid{}.jsonl", control.rank(), std::process::id());
    let mut file = OpenOptions::new().append(true).create(true).open(folder.join(name))?;
    control.dump(&mut file)
}
