//! Departures of ranks: goodbyes, refusals and deaths, and the end of the whole job.

use super::{
    super::super::wire::{FromServer, encode},
    Departure, Job, Outgoing, RankState,
    messages::sanitize,
};
use std::time::{Duration, Instant};

/// Delay after a broken connection in which a report of how the process ended may arrive.
const EXIT_REPORT_DELAY: Duration = Duration::from_millis(100);

/// The same after a connection that the rank's process or its end has closed, where a launcher reports the
/// end. Reports are late where cores are short.
const LAUNCHER_REPORT_DELAY: Duration = Duration::from_secs(1);

/// Reason why no rank joins any more.
const ENDED: &str = "the rendezvous is ending, with the launcher or the process that has it";

impl Job {
    /// Handles the departure of a rank that cannot start.
    pub(super) fn give_up(&mut self, rank: u32, why: &str, absent: Vec<u32>) {
        let absent: Vec<u32> = absent.into_iter().filter(|absent| *absent < self.ranks).collect();
        let why = sanitize(why);
        let reason = if absent.is_empty() { format!("rank {}: {why}", self.label(rank)) } else { why };
        if self.refused.is_none() {
            self.absent = absent;
        }
        // The refusal comes first, so that other ranks learn the reason and not only the departure.
        self.refuse(&reason);
        self.leave(rank);
    }

    pub(super) fn leave(&mut self, rank: u32) {
        if self.rank_states[rank as usize].gone != Departure::None {
            return;
        }
        self.mark_gone(rank, Departure::Goodbye);
        self.outgoing.push(Outgoing::End(rank));
    }

    pub(super) fn mark_gone(&mut self, rank: u32, how: Departure) {
        let state = &mut self.rank_states[rank as usize];
        if state.member.is_some() && state.gone == Departure::None {
            self.gone += 1;
        }
        state.gone = how;
        (state.seen, state.rest, state.deadline, state.lost) = (None, None, None, None);
        self.awaiting_updates.remove(&rank);
        self.forget_requester(rank);
        if self.has_started() {
            self.abort_exchange_if_departed();
        }
    }

    /// Tells a rank why the job cannot go on, and closes its connection.
    pub(super) fn reject(&mut self, rank: u32, reason: &str) {
        let refused = FromServer::Refused { why: reason.to_owned(), absent: self.absent.clone() };
        self.send(rank, encode(&refused).into());
        let state = &mut self.rank_states[rank as usize];
        if state.contribution.take().is_some() {
            self.contributed -= 1;
        }
        self.rank_states[rank as usize].gone = Departure::Rejected;
        self.rank_states[rank as usize].deadline = None;
        self.gone += 1;
        self.forget_requester(rank);
        self.outgoing.push(Outgoing::End(rank));
    }

    /// Refuses the job: tells all waiting ranks the reason, and all that join later.
    pub(super) fn refuse(&mut self, reason: &str) {
        if self.refused.is_some() {
            return;
        }
        self.refused = Some(reason.to_owned());
        for rank in self.present() {
            let state = &self.rank_states[rank as usize];
            if !self.has_started() || state.contribution.is_some() {
                self.reject(rank, reason);
            }
        }
    }

    /// Refuses the job because its rendezvous ends, unless it runs: for the reason `why`, if there is one.
    /// Ranks that have not begun an exchange would otherwise wait for it, and not learn why it fails.
    pub(in super::super) fn end(&mut self, why: Option<&str>) {
        let is_running = self.has_started() && self.contributed == 0 && self.refused.is_none();
        if is_running {
            return self.refuse(why.unwrap_or(ENDED));
        }
        let is_host = |state: &RankState| state.member.as_ref().is_some_and(|member| member.hosts_rendezvous);
        let host = self.host.or_else(|| self.ranks_where(is_host).first().copied());
        if self.refused.is_none() {
            self.absent = host.into_iter().collect();
        }
        let host = host.map(|host| {
            format!("rank {} has failed to join, and with it the rendezvous in its process", self.label(host))
        });
        self.refuse(why.or(host.as_deref()).unwrap_or(ENDED));
        let reason = self.refused.clone().unwrap_or_default();
        for rank in self.present() {
            self.reject(rank, &reason);
        }
    }

    /// Refuses the job because of a rank that cannot belong to it, unless all ranks have joined.
    pub(in super::super) fn refuse_unless_complete(&mut self, reason: &str) {
        if !self.is_complete() {
            self.refuse(reason);
        }
    }

    /// Sets whether a launcher reports how the ranks' processes end.
    pub(in super::super) fn set_exit_reports(&mut self, has_exit_reports: bool) {
        self.has_exit_reports = has_exit_reports;
    }

    /// Records that a rank's connection broke, or was closed; `how` is the rest of a sentence.
    pub(in super::super) fn connection_lost(&mut self, rank: u32, how: &str, is_closed: bool, now: Instant) {
        let state = &mut self.rank_states[rank as usize];
        if state.gone == Departure::None && state.lost.is_none() {
            let awaits_launcher = self.has_exit_reports && is_closed && !state.succeeded;
            let delay = if awaits_launcher { LAUNCHER_REPORT_DELAY } else { EXIT_REPORT_DELAY };
            state.lost = Some((now + delay, how.to_owned()));
            state.seen = None;
            self.awaiting_updates.remove(&rank);
        }
    }

    /// Records the launcher's report that a rank's process ended; `how` is the rest of a sentence.
    pub(in super::super) fn report_exit(&mut self, rank: u32, pid: u32, how: &str) {
        if self.rank_states.get(rank as usize).is_some_and(|state| state.gone == Departure::None) {
            self.die(rank, how, &format!(" (process {pid})"));
        }
    }

    /// Records the launcher's report that a rank's process ended with status 0. After joining, only the
    /// rank's own goodbye counts, and no other report comes.
    pub(in super::super) fn report_success(&mut self, rank: u32, pid: u32, now: Instant) {
        let Some(state) = self.rank_states.get_mut(rank as usize) else { return };
        if state.member.is_none() {
            self.refuse(&format!("rank {rank} (process {pid}) ended with status 0 without joining the job"));
        } else {
            state.succeeded = true;
            if let Some((deadline, _)) = &mut state.lost {
                *deadline = (*deadline).min(now + EXIT_REPORT_DELAY);
            }
        }
    }

    pub(super) fn die(&mut self, rank: u32, how: &str, process: &str) {
        let had_started = self.has_started();
        how.clone_into(&mut self.rank_states[rank as usize].end);
        self.mark_gone(rank, Departure::Died);
        self.died += 1;
        if had_started {
            self.send_to_all(&FromServer::Died { rank, how: how.to_owned() });
        } else {
            self.absent = vec![rank];
            self.refuse(&format!("rank {}{process} {how} before all ranks had joined", self.label(rank)));
        }
    }
}
