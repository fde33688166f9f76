//! The audit of a job: who joined, and who was refused, as JSON lines appended to a file.
//!
//! Every process that accepts connections writes: the one that runs the rendezvous, and each rank over TCP.
//! Refusals are limited, since any program that can connect could otherwise fill a disk with them; entries
//! that are left out are counted in an entry of their own. Joined ranks are always written.
//!
//! A failure to write changes nothing but a warning: a full disk must not end a job.

use crate::{own_file::open_own, record::now, target, warning};
use serde_json::{Map, Value};
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of refusals that are written in an [`INTERVAL`].
const MAX_REFUSALS: u32 = 50;

/// Interval of the limit.
const INTERVAL: Duration = Duration::from_secs(10);

/// An occurrence that is audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// A rank has joined.
    Joined,
    /// A rank was refused: its size, number or options do not fit the job.
    Refused,
    /// A rank of another version was refused.
    WrongVersion,
    /// A connection did not prove that it knows the secret.
    FailedProof,
    /// A process of another user has connected.
    OtherUser,
    /// A connection that was accepted has violated the protocol.
    Violation,
}

impl Occurrence {
    /// Returns the name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Occurrence::Joined => "joined",
            Occurrence::Refused => "refused",
            Occurrence::WrongVersion => "wrong_version",
            Occurrence::FailedProof => "failed_proof",
            Occurrence::OtherUser => "other_user",
            Occurrence::Violation => "violation",
        }
    }
}

/// Limit of refusals.
#[derive(Debug)]
struct Limiter {
    interval_start: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Limiter {
    const NEW: Limiter = Limiter { interval_start: None, written: 0, left_out: 0 };

    /// Counts a refusal. Returns whether it is written, and the number of earlier ones that were left out and
    /// not reported yet.
    fn admit(&mut self, now: Instant) -> (bool, u64) {
        let is_over =
            self.interval_start.is_none_or(|start| now.saturating_duration_since(start) >= INTERVAL);
        let mut left_out = 0;
        if is_over {
            left_out = std::mem::take(&mut self.left_out);
            (self.interval_start, self.written) = (Some(now), 0);
        }
        if self.written == MAX_REFUSALS {
            self.left_out += 1;
            return (false, left_out);
        }
        self.written += 1;
        (true, left_out)
    }
}

/// The audit of this process.
#[derive(Debug)]
struct Audit {
    file: File,
    host: String,
    limiter: Mutex<Limiter>,
}

static AUDIT: OnceLock<Audit> = OnceLock::new();

/// Opens the file of this process's audit, to which entries are appended. The first file stays.
///
/// # Errors
/// Those of [`open_own`]. The caller must not go on: a job that is to be audited must not run without.
pub fn open_audit(path: &Path) -> io::Result<()> {
    if AUDIT.get().is_none() {
        let file = open_own(path)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Another thread may have been first.
        let _ = AUDIT.set(Audit { file, host, limiter: Mutex::new(Limiter::NEW) });
    }
    Ok(())
}

/// Writes an entry, if this process has an audit. `from` is the address of the connection, `fields` are
/// further facts.
pub fn audit(what: Occurrence, from: &str, fields: &[(&str, Value)]) {
    let Some(audit) = AUDIT.get() else { return };
    if what == Occurrence::Joined {
        return audit.write(what.name(), from, fields);
    }
    let mut limiter = audit.limiter.lock().unwrap_or_else(PoisonError::into_inner);
    let (is_written, left_out) = limiter.admit(Instant::now());
    drop(limiter);
    audit.write_left_out(left_out);
    if is_written {
        audit.write(what.name(), from, fields);
    }
}

/// Writes how many refusals were left out, if any were. Called when a rendezvous ends.
pub fn flush_audit() {
    let Some(audit) = AUDIT.get() else { return };
    let left_out = std::mem::take(&mut audit.limiter.lock().unwrap_or_else(PoisonError::into_inner).left_out);
    audit.write_left_out(left_out);
}

impl Audit {
    fn write_left_out(&self, count: u64) {
        if count > 0 {
            self.write("left_out", "", &[("count", count.into())]);
        }
    }

    /// Writes a line by one system call.
    fn write(&self, event: &str, from: &str, fields: &[(&str, Value)]) {
        let mut entry = Map::new();
        entry.insert("time".into(), now().into());
        entry.insert("event".into(), event.into());
        entry.insert("host".into(), self.host.clone().into());
        entry.insert("pid".into(), std::process::id().into());
        if !from.is_empty() {
            entry.insert("from".into(), from.into());
        }
        entry.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let line = format!("{}\n", Value::Object(entry));
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            static WARNED: OnceLock<()> = OnceLock::new();
            WARNED.get_or_init(|| warning!(target::BOOTSTRAP, None, "can't write the audit: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_limited_per_interval_and_the_rest_is_counted() {
        let mut limiter = Limiter::NEW;
        let start = Instant::now();
        let written = (0..120).filter(|_| limiter.admit(start).0).count();
        assert_eq!(written, MAX_REFUSALS as usize);
        assert_eq!(limiter.admit(start + INTERVAL / 2), (false, 0));
        assert_eq!(limiter.admit(start + INTERVAL), (true, 71));
        assert_eq!(limiter.admit(start + INTERVAL), (true, 0));
    }
}
