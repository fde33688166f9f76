//! The ledger of this process: the ranks that it has, and the counters of their closed communicators.
//!
//! Metrics of a rank are those of all of its communicators. The counters of a closed one are kept here, so
//! that those of the rank never go back. The rank is that of the first communicator at its place. Its entry
//! is replaced once the process joins another job there. Of ranks without an open communicator only the
//! latest are kept: a program may make communicators of threads without end.
//!
//! Invariant: a communicator's counters are either in the ledger, or the communicator is open.

use super::{control::Control, counters::counters_of};
use crate::{metrics::RankMetrics, sync::locked};
use std::sync::{Arc, Mutex, MutexGuard};

/// Number of ranks above which the oldest one without an open communicator is forgotten.
const MAX_ENTRIES: usize = 512;

/// A rank of this process.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: u64,
    /// Facts of the rank's first communicator, and the counters of all closed ones.
    pub(super) metrics: RankMetrics,
}

static LEDGER: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Records a new communicator; `open` are all open ones, with it.
pub(super) fn opened(control: &Control, open: &[Arc<Control>]) {
    let mut ledger = locked(&LEDGER);
    let is_alone = open.iter().filter(|other| other.place() == control.place()).count() <= 1;
    if ledger.iter().any(|entry| entry.place == control.place()) {
        if !is_alone || !control.made_by().is_empty() {
            return;
        }
        ledger.retain(|entry| entry.place != control.place());
    }
    if ledger.len() >= MAX_ENTRIES {
        let is_open = |entry: &Entry| open.iter().any(|control| control.place() == entry.place);
        if let Some(oldest) = ledger.iter().position(|entry| !is_open(entry)) {
            ledger.remove(oldest);
        }
    }
    ledger.push(Entry { place: control.place(), metrics: facts_of(control) });
}

/// Moves the counters of a communicator to the ledger, while `remove` removes it from the open ones.
pub(super) fn close(control: &Control, remove: impl FnOnce()) {
    let mut ledger = locked(&LEDGER);
    if let Some(entry) = ledger.iter_mut().find(|entry| entry.place == control.place()) {
        entry.metrics.add_counters(&counters_of(control));
    }
    remove();
}

/// Returns the ledger. While the guard is held, no communicator is closed.
pub(super) fn entries() -> MutexGuard<'static, Vec<Entry>> {
    locked(&LEDGER)
}

/// Returns the numbers of the jobs of this process.
pub(super) fn jobs() -> Vec<u64> {
    let mut jobs: Vec<u64> = locked(&LEDGER).iter().map(|entry| entry.metrics.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

fn facts_of(control: &Control) -> RankMetrics {
    RankMetrics {
        job: control.id(),
        rank: control.rank().0,
        size: control.names().len() as u32,
        host: super::machine::host_name(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: control.transport().to_owned(),
        ..RankMetrics::default()
    }
}
