//! Flight recorder files: one per rank and process.
//!
//! They are written when a communicator fails and its options name a folder, or on SIGUSR2 once the program,
//! or the options of any communicator, have asked for that.
//!
//! The signal handler only writes to a pipe; a thread sleeps until a byte arrives there.

use super::{control::Control, live};
use crate::{
    error::{Error, Result},
    sync::locked,
};
use events::{open_own, target, warning};
use signal_hook::{consts::SIGUSR2, iterator::Signals};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

/// The reaction to SIGUSR2.
static ON_SIGNAL: Mutex<OnSignal> = Mutex::new(OnSignal { caught: false, folder: None });

struct OnSignal {
    /// Whether a handler and its thread exist.
    caught: bool,
    /// The folder for communicators whose options name none; stderr if `None`.
    folder: Option<PathBuf>,
}

/// Makes SIGUSR2 write the latest calls of every communicator of this process, as lines of JSON.
///
/// They are written to a file of this folder, `tbccl-rank0-pid1234.jsonl`, or to stderr if there is no
/// folder. Communicators whose options name a folder ([`Config::dump`](crate::Config::dump)) write there.
/// Files are appended to. The program's own handler for the signal stays installed.
///
/// # Errors
/// [`Error::System`] when the signal cannot be caught.
pub fn record_on_signal(folder: Option<&Path>) -> Result<()> {
    catch_signal()?;
    locked(&ON_SIGNAL).folder = folder.map(Path::to_owned);
    Ok(())
}

/// Installs the signal handler and its thread, unless they exist.
pub(super) fn catch_signal() -> Result<()> {
    let mut on_signal = locked(&ON_SIGNAL);
    if !on_signal.caught {
        let refused = |error| Error::system("catching SIGUSR2 for the flight recorder", error);
        let mut signals = Signals::new([SIGUSR2]).map_err(refused)?;
        let wait_for_signal = move || signals.forever().for_each(|_| write_all());
        thread::Builder::new().name("tbccl-recorder".into()).spawn(wait_for_signal).map_err(refused)?;
        on_signal.caught = true;
    }
    Ok(())
}

fn write_all() {
    let folder = locked(&ON_SIGNAL).folder.clone();
    for control in live::all() {
        match control.folder().or(folder.as_deref()) {
            Some(folder) => write_or_warn(&control, folder),
            // A failure to write to stderr cannot be reported.
            None => drop(control.dump(&mut io::stderr().lock())),
        }
    }
}

/// Writes the flight recorder of a communicator whose options name a folder.
pub(super) fn write_if_wanted(control: &Control) {
    if let Some(folder) = control.folder() {
        write_or_warn(control, folder);
    }
}

/// Writes to the file of a rank, and prints a warning if that fails.
fn write_or_warn(control: &Control, folder: &Path) {
    if let Err(error) = append(control, folder) {
        let rank = Some(control.rank().0);
        warning!(target::FAILURE, rank, "can't write the flight recorder to {}: {error}", folder.display());
    }
}

fn append(control: &Control, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = format!("tbccl-rank{}-pid{}.jsonl", control.rank(), std::process::id());
    control.dump(&mut open_own(&folder.join(name))?)
}
