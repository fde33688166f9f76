//! Confirmations: a rank that only sends, as the root of a broadcast, waits until its receivers have entered
//! the same call, since nothing that arrives would show that they are in another one.
//!
//! A wait takes as long as a message, and over TCP it takes one. So a rank confirms the first call of a kind,
//! where most mistakes show, and then one in [`PERIOD`] of all calls in which it only sends. Receivers
//! compare every message with their call: they notice a mismatch at once and report it, so the next call in
//! which a sender waits for anything fails too.

use super::watch::CallWatch;
use crate::{
    call::{CallKind, CallRecord},
    executor::{Executor, Program, Stop},
};

/// Calls in which a rank only sends, of which one is confirmed.
const PERIOD: u32 = 16;

/// Decides which calls of a communicator are confirmed.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// Calls in which this rank only sent since one was confirmed.
    since: u32,
}

impl Confirmations {
    /// Whether the next call waits until its receivers have entered it. `is_known`: whether a call of the
    /// kind has done so.
    #[inline]
    pub(super) fn is_due(&mut self, program: &Program, is_known: bool) -> bool {
        if program.unheard.is_empty() {
            return false;
        }
        self.since += 1;
        let is_due = !is_known || self.since >= PERIOD;
        if is_due {
            self.since = 0;
        }
        is_due
    }
}

/// Polls of a peer's record before the number of its latest call is read.
const POLLS_OF_A_RECORD: u32 = 64;

/// Waits until the receivers of a rank that has only sent have entered the same calls: nothing else would
/// show that they are in other ones.
pub(super) fn confirm(
    executor: &Executor,
    program: &Program,
    records: &[CallRecord],
    watch: &mut CallWatch<'_>,
) -> Result<(), Stop> {
    let mut collectives = records.iter().filter(|record| matches!(record.kind, CallKind::Collective(_)));
    collectives.try_for_each(|record| confirm_one(executor, program, record, watch))
}

fn confirm_one(
    executor: &Executor,
    program: &Program,
    record: &CallRecord,
    watch: &mut CallWatch<'_>,
) -> Result<(), Stop> {
    for peer in &program.unheard {
        // A record takes one cache line from the peer; the number of its latest call would take another one.
        let mut found = watch.peers.agreement.call(*peer, record.seq);
        if found.is_none() {
            let (board, mut polls) = (watch.peers.agreement.board(*peer), 0u32);
            executor.wait_until(*peer, watch, || {
                polls += 1;
                let is_ahead = || polls % POLLS_OF_A_RECORD == 1 && board.has_entered(record.seq);
                board.has_record(record.seq) || is_ahead()
            })?;
            found = watch.peers.agreement.call(*peer, record.seq);
        }
        if let Some(theirs) = found
            && theirs.digest() != record.digest()
        {
            return Err(Stop::Watch(watch.mismatch(*peer, record.digest(), theirs)));
        }
    }
    Ok(())
}
