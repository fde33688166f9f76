//! When a machine is calibrated, and how ranks agree on the thresholds that follow.
//!
//! Rank 0 reads the calibration before it joins, or measures the machine if there is none, and leaves the
//! thresholds in the notes of its arena. The ranks of the host map that arena in any case. So a job needs no
//! message more, and all ranks have the thresholds of rank 0, even where they read other files.
//!
//! Threads of one process, and ranks on several hosts, which share memory within hosts only, keep the
//! defaults.

use super::{Communicator, arenas::layout};
use crate::{
    Config,
    calibration::{Calibration, Fingerprint, Record, StoreError, Thresholds, keep, kept, measure},
};
use bootstrap::Identity;
use events::{target, warning};
use std::{path::Path, time::Duration};
use transport::memory::Arena;

/// Ranks for whose staging areas the machine is measured.
const RANKS: u32 = 2;
/// Shortest timeout with which a job measures: its ranks wait for the measurement, which may wait for that of
/// another job.
const LEAST_TIMEOUT: Duration = Duration::from_secs(5);

impl Communicator {
    /// Returns the calibration of this machine, from its file.
    ///
    /// # Errors
    /// [`StoreError::File`] for a file that can't be read.
    pub fn calibration(config: &Config) -> Result<Calibration, StoreError> {
        match path_of(config) {
            Ok(path) => kept(path, &Fingerprint::here()),
            Err(why) => Ok(Calibration::Missing(why.to_owned())),
        }
    }

    /// Measures this machine, if that has not been done or is to be done `again`, and returns its
    /// calibration.
    ///
    /// # Errors
    /// [`StoreError`] if the machine can't be measured, or the file not be written.
    pub fn calibrate(config: &Config, again: bool) -> Result<Calibration, StoreError> {
        let path = match path_of(config) {
            Ok(path) => path,
            Err(why) => return Ok(Calibration::Missing(why.to_owned())),
        };
        let here = Fingerprint::here();
        keep(path, &here, |found| match found {
            // Another process has just measured it.
            Calibration::Measured(record) if !again => Ok(Calibration::Measured(record)),
            earlier => measured(earlier, &here),
        })
    }
}

/// Returns the file of the calibration, or why there is none.
fn path_of(config: &Config) -> Result<&Path, &'static str> {
    match &config.calibration {
        _ if !config.calibrate => Err("TBCCL_CALIBRATE=0"),
        None => Err("no variable names a folder for its file"),
        Some(path) => Ok(path),
    }
}

/// Measures this machine, and adds the result to an earlier one.
fn measured(earlier: Calibration, here: &Fingerprint) -> Result<Calibration, StoreError> {
    let seen = measure(layout(RANKS, &Config::default()));
    let Some(seen) = seen.map_err(|why| StoreError::Measurement(why.to_string()))? else {
        return Ok(Calibration::Missing("this process may use only one core".to_owned()));
    };
    Ok(Calibration::Measured(match earlier {
        Calibration::Measured(mut record) => {
            record.add(seen);
            record
        }
        Calibration::Missing(_) => Record::new(here.clone(), seen),
    }))
}

/// Leaves the thresholds of this machine for the ranks of a job, if this is its rank 0.
///
/// A machine is measured by the first communicator of a job, and not by those made from it. Rank 0 prints why
/// the results can't be kept, and the job goes on.
pub(super) fn leave_thresholds(identity: &Identity, config: &Config, arena: &Arena) {
    if identity.rank() != 0 || identity.size() == 1 {
        return;
    }
    let may_measure = !identity.has_parent() && config.timeout >= LEAST_TIMEOUT;
    let found = Communicator::calibration(config).and_then(|found| match found {
        Calibration::Missing(_) if may_measure => Communicator::calibrate(config, false),
        found => Ok(found),
    });
    match found {
        Ok(Calibration::Measured(record)) => arena.leave_notes(notes_of(record.thresholds())),
        // The next job tries again.
        Ok(Calibration::Missing(_)) | Err(StoreError::Measurement(_)) => {}
        Err(_) if identity.has_parent() => {}
        Err(error) => warning!(
            target::CALIBRATION,
            None,
            "this machine is not calibrated: {error}; name a file for it with \
             TBCCL_CALIBRATION, or set TBCCL_CALIBRATE=0"
        ),
    }
}

/// Returns the thresholds that rank 0 has left in its arena.
pub(super) fn thresholds_of(rank_0: &Arena) -> Thresholds {
    thresholds_in(rank_0.read_notes())
}

/// Thresholds as notes: increased by one, so that an arena without notes has none.
fn notes_of(thresholds: Thresholds) -> [u64; Arena::NOTES] {
    let Thresholds { gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes } =
        thresholds;
    [gather_pull_min_bytes, combined_direct_min_bytes, unchanged_pull_min_bytes]
        .map(|bytes| (bytes as u64).saturating_add(1))
}

fn thresholds_in(notes: [u64; Arena::NOTES]) -> Thresholds {
    let [Some(gather_pull_min_bytes), Some(combined_direct_min_bytes), Some(unchanged_pull_min_bytes)] =
        notes.map(|note| {
            note.checked_sub(1).map(|bytes| if bytes == NEVER { usize::MAX } else { bytes as usize })
        })
    else {
        return Thresholds::DEFAULT;
    };
    Thresholds { gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes }
}

/// The largest threshold that a note can hold stands for none.
const NEVER: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_read_as_they_were_left_and_an_arena_without_notes_has_the_defaults() {
        for (gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes) in
            [(16 << 10, 1, 0), (usize::MAX, 5, 128 << 10), (0, 0, usize::MAX)]
        {
            let thresholds =
                Thresholds { gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes };
            assert_eq!(thresholds_in(notes_of(thresholds)), thresholds);
        }
        assert_eq!(thresholds_in([0; Arena::NOTES]), Thresholds::DEFAULT);
    }
}
