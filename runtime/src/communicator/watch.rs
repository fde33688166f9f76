//! The watch of a call: in a long wait it checks for failures, deaths, departures, mismatched calls, and the
//! time limit.

use super::{
    control::{Control, stats_of},
    gauges::EndpointState,
    report::{self, REPORT_TIMEOUT, Reported},
    status::wait_of,
};
use crate::{
    agreement::{Agreement, Failure, Published},
    call::{CallKind, CallRecord},
    error::{Error, PeerName, Place, Result},
    executor::{Waiting, Watch},
    why::{Knot, KnotKind, Wait},
};
use bootstrap::{Connection, Notice};
use std::{
    sync::{
        Arc,
        atomic::{Ordering::Acquire, fence},
    },
    thread,
    time::{Duration, Instant},
};
use topology::Rank;
use transport::{driver::Endpoint, memory::Slab};

/// The state of the other ranks, as far as known.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) rank: Rank,
    pub(super) names: Arc<[PeerName]>,
    /// The requests of other threads.
    pub(super) control: Arc<Control>,
    pub(super) agreement: Agreement,
    /// The words of this rank's board that others know, where they do not map it.
    pub(super) published: Published,
    /// The way to the launcher; none where ranks are threads.
    pub(super) connection: Option<Connection>,
    /// How each rank died, as far as told.
    pub(super) died: Vec<Option<String>>,
    pub(super) launcher_gone: bool,
    /// The rank whose process has the rendezvous, if any.
    pub(super) rendezvous_rank: Option<Rank>,
    /// From which rank on the others are looked at next, where they are too many to look at all each time.
    pub(super) next_looked_at: u32,
    /// The time until which this rank waits for the error of another one, whose time limit has passed first.
    pub(super) reported_elsewhere: Option<Instant>,
    /// The error of a call whose time limit has passed, until the call moves again. It holds even if a link
    /// fails before the call ends: to look for the cause of that takes time that the report has used up.
    pub(super) timed_out: Option<Error>,
    /// Whether the rendezvous has not answered in the time for a report, so that it is not asked for more.
    pub(super) is_rendezvous_silent: bool,
}

impl Peers {
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> + '_ {
        self.names.iter().map(|name| name.rank).filter(|rank| *rank != self.rank)
    }

    /// The most ranks that are looked at in one look. With more, each look takes the next ones.
    const LOOKED_AT: u32 = 64;

    /// Returns the ranks to check now; the next call returns others.
    fn some_others(&mut self) -> impl Iterator<Item = Rank> + Clone + use<> {
        let (size, own) = (self.names.len() as u32, self.rank);
        let from = self.next_looked_at;
        let count = size.min(Peers::LOOKED_AT + 1);
        self.next_looked_at = (from + count) % size;
        (from..from + count).map(move |rank| Rank(rank % size)).filter(move |rank| *rank != own)
    }

    /// How long the rank that raises a failure waits to hear which one holds.
    const VERDICT: Duration = Duration::from_millis(500);

    /// Reads what has come over the connection, after waiting for it for a time at most.
    fn read_notices(&mut self, within: Duration) {
        let mut within = within;
        while let Some(notice) = self.connection.as_mut().and_then(|c| c.notice(within)) {
            within = Duration::ZERO;
            match notice {
                Notice::Died { rank, how } => {
                    if let Some(slot) = self.died.get_mut(rank as usize) {
                        slot.get_or_insert(how);
                    }
                }
                Notice::BoardUpdate(boards) => {
                    boards.iter().for_each(|(rank, words)| self.agreement.mirror(*rank, words));
                }
                Notice::Failed(words) => self.agreement.enter_failure(&words),
                Notice::ServerGone => {
                    self.launcher_gone = true;
                    if let Some(rendezvous_rank) = self.rendezvous_rank {
                        self.died[rendezvous_rank.index()].get_or_insert_with(|| ENDED.to_owned());
                    }
                    self.connection = None;
                }
            }
        }
    }

    /// Exchanges news of boards, where they are not shared memory.
    pub(super) fn keep_in_touch(&mut self) {
        if !self.agreement.is_mapped() {
            let words = self.agreement.news(&mut self.published);
            if let Some(connection) = &mut self.connection {
                connection.sync_board(words);
            }
        }
        self.read_notices(Duration::ZERO);
    }

    /// Whether a rank has failed or the job was aborted while this rank's last call was carried out.
    #[inline]
    pub(super) fn is_disturbed(&self) -> bool {
        fence(Acquire);
        self.agreement.has_failure() || self.control.is_aborted()
    }

    /// Whether no rank has failed or died, as far as known.
    pub(super) fn are_all_well(&self) -> bool {
        let is_well = self.died.iter().all(Option::is_none) && !self.launcher_gone;
        is_well && !self.agreement.has_failure() && !self.control.is_aborted()
    }

    /// Whether a rank has died, or closed its part of the communicator.
    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        self.died[rank.index()].is_some() || self.agreement.has_left(rank)
    }

    /// Whether news of other ranks arrive over a connection.
    pub(super) fn hears_news(&self) -> bool {
        self.connection.is_some()
    }

    /// Makes this the failure of the job, unless there is one already; returns the one that holds.
    pub(super) fn raise(&mut self, failure: Failure) -> Failure {
        self.read_notices(Duration::ZERO);
        if !self.agreement.is_mapped()
            && !self.agreement.has_failure()
            && let Some(connection) = &mut self.connection
        {
            connection.report_failure(self.agreement.failure_words(&failure));
            let asked = Instant::now();
            while !self.agreement.has_failure()
                && self.connection.is_some()
                && !self.is_rendezvous_silent
                && asked.elapsed() < Peers::VERDICT
            {
                self.read_notices(Duration::from_millis(20));
            }
        }
        // Ours, if boards are shared or nobody has told us of another one.
        self.agreement.raise(failure)
    }

    /// Makes and writes the report of a hang, unless another rank does or the call ends meanwhile: by the
    /// failure of another rank, or by an abort.
    fn report_hang(&mut self) -> Reported {
        let is_mapped = self.agreement.is_mapped();
        if is_mapped && !self.agreement.claim_report() {
            return Reported::Elsewhere;
        }
        let control = Arc::clone(&self.control);
        let reported = report::collect(&control, !is_mapped, || {
            self.read_notices(Duration::ZERO);
            self.agreement.has_failure() || control.is_aborted() || control.is_interrupted()
        });
        if let Reported::Report { report, is_rendezvous_silent } = &reported {
            self.is_rendezvous_silent = *is_rendezvous_silent;
            report::write(report, self.control.hang_report());
        }
        reported
    }

    /// Closes this rank's part of the communicator.
    pub(super) fn leave(&mut self) {
        self.agreement.leave();
        // Closed with this: a rendezvous in this process waits for all to go.
        if let Some(mut connection) = self.connection.take() {
            let mapped = self.agreement.is_mapped();
            connection.goodbye(if mapped { Vec::new() } else { self.agreement.news(&mut self.published) });
        }
    }

    /// Whether a departed rank may still have owed a message to a receive from any rank. A dead rank may have
    /// been about to send. Of ranks that have left in good order, none is missed before all have left.
    fn may_have_sent(&self, peer: Rank) -> bool {
        self.died[peer.index()].is_some() || self.others().all(|rank| self.agreement.has_left(rank))
    }

    /// How a rank died, if it is known to have.
    pub(super) fn death_of(&mut self, rank: Rank) -> Option<String> {
        self.read_notices(Duration::ZERO);
        self.died[rank.index()].clone()
    }

    /// The error that a failure of the job is for a call here.
    pub(super) fn error_of(&self, failure: Failure, place: Place) -> Error {
        if self.control.is_aborted() {
            return Error::Aborted { place: Box::new(place) };
        }
        failure.into_error(&self.names, place)
    }
}

/// How a rank has ended of which no more is known, as the rest of a sentence.
const ENDED: &str = "is gone: it ended without a word, or its host can't be reached";

/// The watch over one call, or over several that run together.
#[derive(Debug)]
pub(super) struct CallWatch<'a> {
    pub(super) peers: &'a mut Peers,
    /// The calls that run together; at least one.
    pub(super) calls: &'a [CallRecord],
    pub(super) timeout: Duration,
    /// How long nothing had moved when it was last looked at.
    pub(super) waited: Duration,
    /// Whether the wait was long, or another thread had a request.
    pub(super) has_looked: bool,
    /// The endpoint of the links, for the state of rails.
    pub(super) endpoint: Option<&'a dyn Endpoint>,
    /// The allocator of registered memory.
    pub(super) slab: &'a Slab,
}

impl CallWatch<'_> {
    /// The call that errors name: the first one, unless another one is known to be meant.
    pub(super) fn call(&self) -> CallRecord {
        self.calls[0]
    }

    fn place(&self, waiting: &Waiting<'_>) -> Place {
        Place { rank: self.peers.rank, call: self.call(), step: waiting.step(), waited: waiting.waited }
    }

    /// Whether this rank still needs a peer for the call. A rank that has finished the call has sent all it
    /// had to.
    fn is_needed(&self, peer: Rank) -> bool {
        self.calls.iter().any(|call| match call.kind {
            CallKind::Collective(_) => !self.peers.agreement.has_finished(peer, call.seq),
            CallKind::Send | CallKind::Recv => {
                peer == call.root || call.root == CallRecord::ANY && self.peers.may_have_sent(peer)
            }
        })
    }

    /// Returns the failure of the job while this call was carried out. A failed rank returns its memory to
    /// its user, so data read in place from then on may be anything: a call is good only if no rank has
    /// failed.
    #[inline]
    pub(super) fn failure_meanwhile(&self, step: impl FnOnce() -> String) -> Option<Error> {
        if !self.peers.is_disturbed() {
            return None;
        }
        let place =
            Place { rank: self.peers.rank, call: self.call(), step: Some(step()), waited: self.waited };
        if self.peers.control.is_aborted() {
            return Some(Error::Aborted { place: Box::new(place) });
        }
        self.peers.agreement.failure().map(|failure| self.peers.error_of(failure, place))
    }

    fn look_for_deaths(&mut self, waiting: &Waiting<'_>) -> Result<()> {
        let dead = self.peers.others().find(|r| self.peers.died[r.index()].is_some() && self.is_needed(*r));
        if let Some(rank) = dead {
            let how = self.peers.died[rank.index()].clone().unwrap_or_default();
            let failure = self.peers.raise(Failure::Died { rank, how });
            return Err(self.peers.error_of(failure, self.place(waiting)));
        }
        if self.peers.launcher_gone { Err(self.without_rendezvous(self.place(waiting))) } else { Ok(()) }
    }

    /// Returns the error after the end of the rendezvous. If it was in a rank's process, that rank has ended:
    /// it would have waited otherwise.
    pub(super) fn without_rendezvous(&mut self, place: Place) -> Error {
        let Some(rank) = self.peers.rendezvous_rank else { return Error::LauncherGone };
        let how = self.peers.died[rank.index()].clone().unwrap_or_else(|| ENDED.to_owned());
        let failure = self.peers.raise(Failure::Died { rank, how });
        self.peers.error_of(failure, place)
    }

    fn look_for_leavers(
        &mut self,
        mut some: impl Iterator<Item = Rank>,
        waiting: &Waiting<'_>,
    ) -> Result<()> {
        let left = some.find(|r| self.peers.agreement.has_left_in_good_order(*r) && self.is_needed(*r));
        match left {
            Some(rank) => Err(Error::PeerLeft {
                peer: self.peers.names[rank.index()].clone(),
                place: Box::new(self.place(waiting)),
            }),
            None => Ok(()),
        }
    }

    /// Compares this collective with what some others entered under the same number.
    pub(super) fn look_for_mismatch(&mut self, some: &(impl Iterator<Item = Rank> + Clone)) -> Result<()> {
        let numbered = self.calls.iter().filter(|call| matches!(call.kind, CallKind::Collective(_)));
        for ours in numbered {
            let differs = some.clone().find_map(|peer| {
                let theirs = self.peers.agreement.call(peer, ours.seq)?;
                (theirs.digest() != ours.digest()).then_some((peer, theirs))
            });
            if let Some((peer, theirs)) = differs {
                return Err(self.mismatch(peer, ours.digest(), theirs));
            }
        }
        Ok(())
    }

    /// Returns the call of a peer with this digest. The peer may be about to publish it: where boards are not
    /// shared memory once it waits, and after a brief message at once.
    pub(super) fn find(&mut self, peer: Rank, digest: u64) -> Option<CallRecord> {
        const TELLING: Duration = Duration::from_millis(500);
        const PAUSE: Duration = Duration::from_millis(5);
        let asked = Instant::now();
        loop {
            let found = self.peers.agreement.find(peer, digest);
            if found.is_some() || self.peers.agreement.has_failure() || asked.elapsed() > TELLING {
                return found;
            }
            self.peers.keep_in_touch();
            if self.peers.hears_news() {
                self.peers.read_notices(PAUSE);
            } else {
                thread::sleep(PAUSE);
            }
        }
    }

    /// The error for a peer that is in another call than ours with this digest.
    pub(super) fn mismatch(&mut self, peer: Rank, digest: u64, theirs: CallRecord) -> Error {
        let ours = self.calls.iter().find(|call| call.digest() == digest).copied().unwrap_or(self.call());
        let (ours, theirs) = self.first_difference(peer, ours, theirs);
        let calls = [(self.peers.rank, ours), (peer, theirs)];
        let failure = self.peers.raise(Failure::Mismatch { calls });
        let place = Place { rank: self.peers.rank, call: self.call(), step: None, waited: Duration::ZERO };
        self.peers.error_of(failure, place)
    }

    /// Returns the first difference from a peer in another collective: the calls of the earlier number,
    /// unless these agree.
    fn first_difference(&self, peer: Rank, ours: CallRecord, theirs: CallRecord) -> (CallRecord, CallRecord) {
        let agreement = &self.peers.agreement;
        let numbered = |call: &CallRecord| matches!(call.kind, CallKind::Collective(_));
        if numbered(&ours) && numbered(&theirs) {
            let seq = ours.seq.min(theirs.seq);
            if let (Some(a), Some(b)) = (agreement.call(self.peers.rank, seq), agreement.call(peer, seq))
                && a.digest() != b.digest()
            {
                return (a, b);
            }
        }
        (ours, theirs)
    }

    /// Describes the latest known activity of the others; of many, those that are behind come first and the
    /// rest are counted.
    fn what_others_do(&self) -> String {
        const SHOWN: usize = 16;
        let agreement = &self.peers.agreement;
        let mut others: Vec<Rank> = self.peers.others().collect();
        let has_entered = |rank: &Rank| agreement.call(*rank, self.call().seq).is_some();
        if others.len() > SHOWN {
            others.sort_by_key(has_entered);
        }
        let shown: Vec<String> = others.iter().take(SHOWN).map(|rank| agreement.activity(*rank)).collect();
        match others.len().saturating_sub(SHOWN) {
            0 => shown.join(", "),
            more => {
                let inside = others[SHOWN..].iter().filter(|rank| has_entered(rank)).count();
                format!("{}, and {more} more, {inside} of them in this call", shown.join(", "))
            }
        }
    }

    fn look_at_the_clock(&mut self, waiting: &Waiting<'_>) -> Result<()> {
        if waiting.waited < self.timeout {
            self.peers.reported_elsewhere = None;
            self.peers.timed_out = None;
            return Ok(());
        }
        let now = Instant::now();
        if self.peers.reported_elsewhere.is_some_and(|until| now < until) {
            return Ok(());
        }
        let peers = if self.peers.reported_elsewhere.is_some() {
            self.what_others_do()
        } else {
            // The thread that is asked for the status of this process can't ask this one meanwhile.
            self.peers.control.hold_wait(self.wait(waiting));
            let reported = self.peers.report_hang();
            self.peers.control.release_wait();
            match reported {
                Reported::Elsewhere => {
                    self.peers.reported_elsewhere = Some(now + REPORT_TIMEOUT);
                    return Ok(());
                }
                Reported::Report { report, .. } => self.peers_in(&report.knot),
            }
        };
        let error = Error::Timeout { place: Box::new(self.place(waiting)), peers };
        self.peers.timed_out = Some(error.clone());
        Err(error)
    }

    /// Returns the knot, and the latest known activity of the others where the boards know more of it than
    /// the report: mirrors lag behind ranks that have answered.
    fn peers_in(&self, knot: &Knot) -> String {
        let is_silent = matches!(knot.kind, KnotKind::Silent | KnotKind::Unknown);
        match self.peers.agreement.is_mapped() || is_silent {
            true => format!("{knot}; {}", self.what_others_do()),
            false => knot.to_string(),
        }
    }

    /// Publishes the wait for the status of this process, if a thread has asked for it.
    fn publish_wait(&self, waiting: &Waiting<'_>) {
        self.peers.control.publish_wait_if_wanted(|| self.wait(waiting));
    }

    /// Returns the wait for the status of this process; `None` if the call moves.
    fn wait(&self, waiting: &Waiting<'_>) -> Option<Wait> {
        if waiting.waited.is_zero() {
            return None;
        }
        let (peer, sends) = waiting.peer().unwrap_or_default();
        let rails = peer.zip(self.endpoint).map(|(peer, endpoint)| endpoint.rails(peer.0));
        let step = waiting.step().unwrap_or_default();
        Some(wait_of((peer, sends), step, waiting.waited, rails.unwrap_or_default()))
    }
}

impl Watch for CallWatch<'_> {
    fn observe_rails(&self) {
        if let Some((trace, endpoint)) = self.peers.control.trace().zip(self.endpoint) {
            trace.observe_rails(endpoint);
        }
    }

    fn calls(&self) -> &[CallRecord] {
        self.calls
    }

    fn look(&mut self, waiting: &Waiting<'_>) -> Result<()> {
        let before = std::mem::replace(&mut self.waited, waiting.waited);
        self.has_looked = true;
        self.peers.control.gauges.count_wait(before, waiting.waited);
        if self.peers.control.is_interrupted() {
            self.peers.control.abort();
        }
        if self.peers.control.is_aborted() {
            return Err(Error::Aborted { place: Box::new(self.place(waiting)) });
        }
        self.peers.control.publish_if_wanted(|| stats_of(waiting.links()));
        let size = self.peers.names.len() as u32;
        let state = || EndpointState::of(self.endpoint, self.slab, size);
        self.peers.control.publish_endpoint_if_wanted(state);
        self.publish_wait(waiting);
        self.observe_rails();
        if !waiting.waited.is_zero() {
            self.peers.control.recorder.at(waiting.waited, |step| waiting.write_step(step));
        }
        self.peers.keep_in_touch();
        if let Some(failure) = self.peers.agreement.failure() {
            return Err(self.peers.error_of(failure, self.place(waiting)));
        }
        self.look_for_deaths(waiting)?;
        let some = self.peers.some_others();
        self.look_for_mismatch(&some)?;
        self.look_for_leavers(some, waiting)?;
        self.look_at_the_clock(waiting)
    }
}
