//! The report of a hang: what all ranks do, when a time limit has passed.
//!
//! One rank of the communicator reports: the first one whose limit passes claims the report, on the board
//! that all ranks share, or else at the rendezvous. It asks the rendezvous of its communicator for the
//! statuses of all ranks, and those of the process's other communicators where they have further ranks. The
//! others wait for its error.

use super::{control::Control, live, status};
use crate::why::Report;
use bootstrap::{ProcessState, Snapshot, SnapshotReply, SnapshotRequester};
use events::{open_own, target, warning};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time for the answers of all ranks. The rendezvous waits up to 1.3 s for ranks that are silent. An error
/// comes within two seconds after the time limit; this leaves half a second for a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time beyond that for the other threads of this process.
const OWN_TIMEOUT: Duration = Duration::from_millis(100);

/// Time for which a rank waits for the error of the one that reports.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_millis(1800);

/// Time after which a rank that collects looks whether its call has ended otherwise.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Result of a request for a report.
#[derive(Debug)]
pub(super) enum Reported {
    /// Activities of all ranks, and the knot.
    Report {
        report: Box<Report>,
        /// Whether the rendezvous of the communicator has not answered.
        is_rendezvous_silent: bool,
    },
    /// Another rank reports.
    Elsewhere,
}

/// Makes the report of the ranks of a communicator. With `claims`, the rendezvous decides whether this rank
/// is the one that reports. Once `is_over`, nothing more is collected: the call has another error.
pub(super) fn collect(control: &Control, claims: bool, mut is_over: impl FnMut() -> bool) -> Reported {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let own_host = super::machine::host_name();
    let stopped = stopped_members(&own_host);
    let mut snapshots = Vec::new();
    let mut covered: BTreeSet<(u32, String)> = BTreeSet::new();
    let mut is_rendezvous_silent = false;
    if let Some(requester) = control.requester() {
        requester.request(claims);
        match wait_for_reply(|until| requester.wait(until), deadline, &mut is_over) {
            Some(SnapshotReply::ClaimedBy(_)) => return Reported::Elsewhere,
            Some(SnapshotReply::Snapshot(snapshot)) => snapshots.push(snapshot),
            Some(SnapshotReply::ServerGone) => {}
            None => is_rendezvous_silent = true,
        }
        covered.extend(control.names().iter().map(|name| (name.pid, name.host.clone())));
    }
    let others = with_further_ranks(&mut covered);
    others.iter().for_each(|requester| requester.request(false));
    snapshots.extend(others.iter().filter_map(|requester| snapshot_of(requester, deadline, &mut is_over)));
    if is_over() {
        return Reported::Elsewhere;
    }
    let own = status::of_process_until(deadline + OWN_TIMEOUT);
    let state_of = |host: &str, pid: u32| {
        let known = stopped.get(&pid).filter(|_| host == own_host);
        known.copied().unwrap_or(ProcessState::Unknown)
    };
    let report = Box::new(Report::with_states(&snapshots, &[own], 0.0, &state_of));
    Reported::Report { report, is_rendezvous_silent }
}

/// Returns the members of this process's communicators on its host that are stopped or have ended. A
/// rendezvous of theirs tells of nobody. A rank that goes on before the report is made has still caused the
/// wait.
fn stopped_members(host: &str) -> BTreeMap<u32, ProcessState> {
    let live = live::all();
    let names = live.iter().flat_map(|control| control.names().iter());
    let pids: BTreeSet<u32> = names.filter(|name| name.host == host).map(|name| name.pid).collect();
    let states = pids.into_iter().map(|pid| (pid, ProcessState::of(pid)));
    states.filter(|(_, state)| state.is_final()).collect()
}

/// Returns snapshots that have the other processes on this host, for metrics; none where there are no others.
pub(super) fn snapshots_of_host() -> Vec<Snapshot> {
    let host = super::machine::host_name();
    let mut covered = BTreeSet::from([(std::process::id(), host.clone())]);
    // Processes of other hosts are not asked for.
    let elsewhere = live::all().into_iter().flat_map(|control| {
        let names = control.names().iter().filter(|name| name.host != host);
        names.map(|name| (name.pid, name.host.clone())).collect::<Vec<_>>()
    });
    covered.extend(elsewhere);
    let requesters: Vec<SnapshotRequester> =
        with_further_ranks(&mut covered).iter().map(SnapshotRequester::for_metrics).collect();
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    requesters.iter().for_each(|requester| requester.request(false));
    requesters.iter().filter_map(|requester| snapshot_of(requester, deadline, &mut || false)).collect()
}

/// Waits for a reply until the deadline, or until the call is over. `wait` waits for it until a time.
fn wait_for_reply(
    mut wait: impl FnMut(Instant) -> Option<SnapshotReply>,
    deadline: Instant,
    is_over: &mut impl FnMut() -> bool,
) -> Option<SnapshotReply> {
    loop {
        let reply = wait(deadline.min(Instant::now() + LOOK_INTERVAL));
        if reply.is_some() || is_over() || Instant::now() >= deadline {
            return reply;
        }
    }
}

fn snapshot_of(
    requester: &SnapshotRequester,
    deadline: Instant,
    is_over: &mut impl FnMut() -> bool,
) -> Option<Snapshot> {
    match wait_for_reply(|until| requester.wait(until), deadline, is_over)? {
        SnapshotReply::Snapshot(snapshot) => Some(snapshot),
        SnapshotReply::ClaimedBy(_) | SnapshotReply::ServerGone => None,
    }
}

/// Returns the requesters of other communicators of this process that have ranks which are not covered yet,
/// the largest first.
fn with_further_ranks(covered: &mut BTreeSet<(u32, String)>) -> Vec<SnapshotRequester> {
    let mut live: Vec<Arc<Control>> = live::all().into_iter().filter(|control| control.is_here()).collect();
    live.sort_by_key(|control| std::cmp::Reverse(control.names().len()));
    let mut found = Vec::new();
    for control in live {
        let Some(requester) = control.requester() else { continue };
        let before = covered.len();
        covered.extend(control.names().iter().map(|name| (name.pid, name.host.clone())));
        if covered.len() > before {
            found.push(requester.clone());
        }
    }
    found
}

/// Writes a report to a file of this user, or to stderr.
pub(super) fn write(report: &Report, file: Option<&Path>) {
    let text = format!("tbccl: {report}");
    let Some(file) = file else {
        // A failure to write to stderr cannot be reported.
        return drop(io::stderr().write_all(text.as_bytes()));
    };
    if let Err(error) = open_own(file).and_then(|mut file| file.write_all(text.as_bytes())) {
        warning!(target::FAILURE, None, "can't write the report of a hang to {}: {error}", file.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Waits for a reply that never comes.
    fn silence(until: Instant) -> Option<SnapshotReply> {
        thread::sleep(until.saturating_duration_since(Instant::now()));
        None
    }

    #[test]
    fn a_report_that_does_not_come_is_waited_for_until_its_deadline() {
        let (began, limit) = (Instant::now(), Duration::from_millis(60));
        assert!(wait_for_reply(silence, began + limit, &mut || false).is_none());
        assert!(began.elapsed() >= limit);
    }

    /// A rank whose report was on its way waited for it although an abort or another rank's failure had ended
    /// its call.
    #[test]
    fn a_call_that_is_over_waits_for_no_report() {
        let mut looks = 0;
        let mut is_over = || {
            looks += 1;
            looks == 2
        };
        let far = Instant::now() + Duration::from_secs(3600);
        assert!(wait_for_reply(silence, far, &mut is_over).is_none());
        assert_eq!(looks, 2, "it looks about every {LOOK_INTERVAL:?}");
    }

    #[test]
    fn a_reply_is_taken_although_the_call_is_over() {
        let reply = |_| Some(SnapshotReply::ClaimedBy(3));
        let taken = wait_for_reply(reply, Instant::now(), &mut || true);
        assert!(matches!(taken, Some(SnapshotReply::ClaimedBy(3))), "{taken:?}");
    }
}
