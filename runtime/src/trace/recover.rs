//! The file of a rank that was killed, from the ring of events that it has left.
//!
//! A rank keeps its ring in a file beside that of its trace, and removes it when that is written. The rank
//! holds a lock on it, which the kernel releases when the process ends, so a reader sees whether the rank
//! still runs. The program reads rings ([`json_of_ring`]); a job does not.

use super::{
    about::About,
    clock::ClockPair,
    event::{EntryWait, Event, StepEvent, StepKind},
    file::TraceFile,
    ring::{self, LeftRing, Ring},
};
use events::create_own;
use rustix::fs::{FlockOperation, fcntl_lock};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Extension of files with rings.
const EXTENSION: &str = "ring";

/// Why a ring is all that a rank has left.
const KILLED: &str = "the process was killed, or ended without closing its communicator";
const RUNNING: &str = "the process still ran when its events were read";

/// The file of a ring, while the rank has one.
#[derive(Debug)]
pub(super) struct RingFile {
    path: PathBuf,
    /// Holds the lock. The kernel releases it when the process closes any descriptor of the file.
    _file: File,
}

impl RingFile {
    /// Creates the ring of a rank beside the file of its trace.
    pub(super) fn create(
        trace: &Path,
        capacity: usize,
        start: &[ClockPair; 2],
        about: &About,
    ) -> io::Result<(RingFile, Ring)> {
        let path = trace.with_extension(EXTENSION);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = create_own(&path)?;
        // A file system without locks takes nothing but the knowledge that the rank runs.
        let _ = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        match Ring::in_file(&file, capacity, start, &serde_json::to_vec(about)?) {
            Ok(ring) => Ok((RingFile { path, _file: file }, ring)),
            Err(error) => {
                // The error that is reported says why there is no ring.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Removes the file, whose events are in the file of the trace. The memory of the ring stays.
    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the trace of a rank that has left a ring, `rank-*.ring`, as the rank would have written it.
///
/// A call under way has the outcome `killed`, or `under way` if the process still runs.
///
/// # Errors
/// The system's error, or what the file lacks, as the rest of a sentence.
pub fn json_of_ring(path: &Path) -> Result<Vec<u8>, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    // Another process has the lock as long as the rank runs.
    let is_running = fcntl_lock(&file, FlockOperation::NonBlockingLockShared)
        .is_err_and(|error| matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS));
    let LeftRing { content, algorithms, about } = ring::read(&bytes)?;
    let about: About = serde_json::from_slice(about)
        .map_err(|error| format!("it ends without the description of its rank: {error}"))?;
    let (open_outcome, error) = if is_running { ("under way", RUNNING) } else { ("killed", KILLED) };
    let error = wait_of(&content.events).map_or(error.to_owned(), |wait| format!("{error}, while it {wait}"));
    let latest = content.events.iter().map(Event::latest).max().unwrap_or(0).max(content.waited_until);
    let file = TraceFile {
        about: about.with_loss(&content, Some(error)),
        events: &content.events,
        algorithms: &algorithms,
        outages: &[],
        latest,
        open_outcome,
    };
    let mut json = Vec::new();
    file.write_to(&mut json).map_err(|error| error.to_string())?;
    Ok(json)
}

/// Returns the long wait under way, as the rest of a sentence: for a receive if there is one, since sends
/// depend on receives.
fn wait_of(events: &[Event]) -> Option<String> {
    let open = events.iter().filter(|event| event.is_unfinished());
    let wait = open.min_by_key(|event| match event {
        Event::Step(step) if step.kind != StepKind::Send => 0,
        _ => 1,
    })?;
    match wait {
        Event::Step(StepEvent { call, step, kind, message, .. }) => {
            let peer = message.as_ref()?.peer;
            let does = if *kind == StepKind::Send { "sent to" } else { "waited for" };
            let scope = if call.is_message { "message" } else { "call" };
            Some(format!("{does} rank {peer} in step {step} of {scope} {}", call.seq))
        }
        Event::EntryWait(EntryWait { peer, .. }) => {
            let call = events.iter().rev().find_map(|event| match event {
                Event::Call(call) => Some(call.record.seq),
                _ => None,
            });
            Some(format!("waited for rank {peer} to enter call {}", call?))
        }
        Event::Call(_) | Event::Tagged(_) => None,
    }
}
