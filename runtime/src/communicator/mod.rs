//! Communicators: groups of ranks, and the calls that they make together.
//!
//! A communicator is made from the launcher's environment ([`Communicator::from_env`]), from a unique id, for
//! threads of this process ([`Communicator::local`]), or from another communicator. All its ranks make the
//! same calls in the same order. A call blocks, progresses on the caller's thread, and either completes or
//! fails within the timeout. After a failure the communicator stays failed, on every rank.
//!
//! This module moves no bytes: `plans` turns calls into plans, and the executor runs them.

mod announce;
mod arenas;
mod buffer;
mod calibrating;
mod call;
mod call_options;
mod closing;
mod confirmations;
mod control;
mod cores;
mod counters;
mod diagnosis;
mod dumps;
mod elements;
mod execute;
mod gauges;
mod group;
mod host_metrics;
mod join;
mod keys;
mod ledger;
mod link_access;
mod live;
mod machine;
mod members;
mod message;
mod operation;
mod plans;
mod quantized;
mod rank_info;
mod rank_metrics;
mod raw;
mod registered;
mod relayed;
mod report;
mod request;
mod scale;
mod scaling;
mod staging;
mod status;
mod surroundings;
mod traces;
mod typed;
mod variant;
mod wait_cell;
mod watch;

pub use buffer::Buffer;
pub use call_options::CallOptions;
pub use control::Stats;
pub(crate) use control::{Control, closed};
pub use dumps::record_on_signal;
pub use group::Group;
pub(crate) use link_access::{ErrorContext, LinkAccess};
pub use operation::Operation;
pub use raw::{CallByAddress, RawAllReduce, RawCall};
pub use registered::{RegisteredVec, Registration};
pub use scale::Scale;

use crate::{
    Config,
    agreement::{Agreement, Published},
    calibration::Thresholds,
    error::{Error, PeerName, Result},
    executor::{Executor, Program},
    kernels::Threads,
    trace::Trace,
};
use bootstrap::{Connection, Identity, Server};
use call_options::check_segments;
use collectives::{
    Collective, DType, Numerics,
    schedule::InPlace,
    select::{Fingerprint, Names, Overrides},
};
use confirmations::Confirmations;
use control::{ControlParts, stats_of};
use join::Rejoin;
use keys::PlanKey;
use machine::fingerprint;
use message::PeerMessages;
use plans::{Execution, Plans};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use surroundings::{Surroundings, warn_of_unused};
use topology::{Rank, Reach};
use transport::{
    Counters, Link, PollCounters,
    driver::{Endpoint, RailInfo},
    forks::Origin,
    memory::{Registered, Slab},
};
use watch::Peers;

/// Alignment of the parts of scratch memory, in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// A communicator, from the view of one rank.
///
/// Not cloned and not shared between threads: `&mut self` keeps a rank's calls in order.
#[derive(Debug)]
pub struct Communicator {
    peers: Peers,
    executor: Executor,
    plans: Plans,
    slab: Slab,
    // Boxed, so that taking it for a call moves a pointer.
    scratch: Option<Box<Registered>>,
    /// The endpoint of the links, for drivers that have one. Declared after the links, so that they are
    /// dropped first.
    endpoint: Option<Box<dyn Endpoint>>,
    /// Bytes of the program's own memory that is registered. Held by every registration of it.
    lending: Arc<AtomicU64>,
    timeout: Duration,
    numerics: Numerics,
    transport: &'static str,
    /// Number of the latest collective.
    seq: u64,
    confirmations: Confirmations,
    /// Messages so far, per peer.
    peer_messages: Vec<PeerMessages>,
    /// Programs of messages, per peer and direction.
    message_programs: Vec<Option<Arc<Program>>>,
    /// The error of every further call.
    failed: Option<Error>,
    /// Time that other ranks have to leave when this is closed, if this process runs their rendezvous.
    departure_timeout: Duration,
    /// Longest wait of the close, if the program has limited it.
    departure_limit: Duration,
    /// Whether a background thread closes it, so that the program need not wait.
    in_background: bool,
    /// The process that has the communicator; its forked children do not.
    origin: Origin,
    /// The means to find the other ranks again.
    rejoin: Rejoin,
    /// Rendezvous at which new ranks are to join.
    open_ids: members::OpenIds,
    /// The rendezvous, if this process runs it. Dropped last.
    server: Option<Server>,
}

/// The parts of which a communicator is assembled.
struct Parts {
    rank: Rank,
    names: Vec<PeerName>,
    agreement: Agreement,
    slab: Slab,
    links: Vec<Option<Box<dyn Link>>>,
    reach: Reach,
    /// Ranks between which schedules may send; a part of `reach`.
    schedule_reach: Reach,
    connection: Option<Connection>,
    endpoint: Option<Box<dyn Endpoint>>,
    transport: &'static str,
    rejoin: Rejoin,
    /// The rank whose process runs the rendezvous, if any.
    rendezvous_rank: Option<Rank>,
    /// Whether it is not made from another communicator: only then warnings about the job are printed.
    is_first: bool,
    identifier: Identifier,
    /// Thresholds of rank 0's machine, equal on all ranks.
    thresholds: Thresholds,
}

/// Makes the control of a communicator, and registers it for reports.
fn control_of(
    parts: &Parts,
    config: &Config,
    names: &Arc<[PeerName]>,
    lent_bytes: &Arc<AtomicU64>,
    trace: Option<&Arc<Trace>>,
) -> Arc<Control> {
    live::register(Control::new(ControlParts {
        rank: parts.rank,
        names: Arc::clone(names),
        transport: parts.transport,
        agreement: parts.agreement.clone(),
        identifier: parts.identifier.clone(),
        requester: parts.connection.as_ref().map(Connection::snapshot_requester),
        folder: config.dump.clone(),
        hang_report: config.hang_report.clone(),
        counts_calls: config.metrics.is_some(),
        lent_bytes: Arc::clone(lent_bytes),
        trace: trace.cloned(),
    }))
}

/// Values by which a communicator, and this rank of it, are found in reports of a hang.
#[derive(Clone, Debug)]
struct Identifier {
    /// Number of the communicator, equal on all ranks.
    id: u64,
    /// Call by which it was made from another one; empty for the first one of a job.
    made_by: String,
    /// Number that tells ranks of one process apart, equal for all communicators of a rank.
    place: u64,
}

impl Identifier {
    /// Returns the identifier of a rank that is a process.
    fn of_processes(id: u64, identity: &Identity) -> Identifier {
        Identifier { id, made_by: identity.job().to_owned(), place: 0 }
    }
}

impl Communicator {
    /// Lanes between each pair of ranks.
    pub(crate) const LANES: u8 = 2;

    /// Makes a communicator of its parts.
    fn assemble(mut parts: Parts, config: &Config) -> Communicator {
        let (rank, size, transport) = (parts.rank, parts.names.len() as u32, parts.transport);
        let endpoint = parts.endpoint.as_deref();
        let around = Surroundings::of((rank, &parts.names, transport), endpoint, config);
        let sleeper = endpoint.and_then(|endpoint| endpoint.sleeper());
        let wait = around.wait_policy(config, endpoint.is_some(), sleeper.is_some());
        let threads = around.reduce_threads(config);
        if rank.0 == 0 {
            warn_of_unused(config, &around.here, size, parts.is_first);
        }
        let names: Arc<[PeerName]> = std::mem::take(&mut parts.names).into();
        let connection = parts.connection.as_mut();
        let trace = traces::begin(config, (rank, &names, transport), &parts.identifier, connection);
        let lending = Arc::<AtomicU64>::default();
        let control = control_of(&parts, config, &names, &lending, trace.as_ref());
        let protocols = around.protocols(config, parts.thresholds);
        closing::opened();
        let others = around.on_other_cores(config);
        let policy = config.policy(&around.here, around.tuning, around.is_oversubscribed);
        let waits = (&wait, threads);
        announce::settings((rank, parts.is_first), waits, (parts.thresholds, &protocols), &policy);
        let execution = Execution { protocols, threads: Threads::up_to(threads as usize) };
        let reaches = (parts.schedule_reach, parts.reach, around.hosts);
        let communicator = Communicator {
            plans: Plans::new(rank, size, Self::LANES, reaches, policy, (execution, config)),
            executor: Executor::new(parts.links, parts.slab.clone(), wait, protocols)
                .with_sleeper(sleeper)
                .with_others(others)
                .with_trace(trace)
                .with_requests(control.wanted()),
            peers: Peers {
                rank,
                died: vec![None; names.len()],
                names,
                control,
                agreement: parts.agreement,
                published: Published::default(),
                connection: parts.connection,
                launcher_gone: false,
                rendezvous_rank: parts.rendezvous_rank,
                next_looked_at: 0,
                reported_elsewhere: None,
                timed_out: None,
                is_rendezvous_silent: false,
            },
            slab: parts.slab,
            scratch: None,
            endpoint: parts.endpoint,
            lending,
            timeout: config.timeout,
            numerics: config.numerics,
            transport,
            seq: 0,
            confirmations: Confirmations::default(),
            peer_messages: vec![PeerMessages::default(); size as usize],
            message_programs: vec![None; 2 * size as usize],
            failed: None,
            departure_timeout: config.timeout,
            departure_limit: Duration::MAX,
            in_background: false,
            origin: Origin::here(),
            rejoin: parts.rejoin,
            open_ids: members::OpenIds::default(),
            server: None,
        };
        if let Some(address) = config.metrics {
            communicator.publish_endpoint();
            host_metrics::serve(address, &communicator.peers.control);
        }
        communicator
    }

    /// Limits each wait of the close: for sent messages to arrive, and for other ranks to leave a rendezvous
    /// in this process.
    pub(crate) fn limit_departure(&mut self, limit: Duration) {
        self.departure_limit = limit;
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.peers.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.peers.names.len() as u32
    }

    /// Returns the name of the transport: `local`, `shm`, or a name of [`crate::Transport`].
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Returns all ranks' processes and hosts, in rank order.
    #[must_use]
    pub fn members(&self) -> &[PeerName] {
        &self.peers.names
    }

    /// Returns the counters of this rank's links since the communicator was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.executor.links().counters()
    }

    /// Returns the counters of polls for completions. All zero for links that poll memory and no queue.
    #[must_use]
    pub fn poll_counters(&self) -> PollCounters {
        self.executor.links().poll_counters()
    }

    /// Returns all counters since the communicator was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.peers.control.with_call_counts(stats_of(self.executor.links()))
    }

    /// Returns the part that other threads use.
    pub(crate) fn control(&self) -> Arc<Control> {
        Arc::clone(&self.peers.control)
    }

    /// Returns the error of every further call, if the communicator has failed.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }

    /// Returns the rails to a peer, in the order that both ends number them; none where the transport has no
    /// named rails.
    #[must_use]
    pub fn rails(&self, peer: Rank) -> Vec<RailInfo> {
        self.endpoint.as_ref().map(|endpoint| endpoint.rails(peer.0)).unwrap_or_default()
    }

    /// Prefers a rail for messages between this rank and a peer from the next call on; `None` allows all
    /// rails again.
    ///
    /// Both ends call it between the same two calls. While the rail is down the others are used. A transport
    /// without rails ignores the call.
    pub fn prefer_rail(&mut self, peer: Rank, rail: Option<usize>) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.prefer_rail(peer.0, rail);
        }
    }

    /// Returns the algorithm of a call with these arguments, and the segments per chunk. `count` is the
    /// number of elements of one block.
    ///
    /// # Errors
    /// [`Error::Plan`] when no algorithm, or not the one that the options name, works with the existing
    /// cables.
    pub fn plan_of(
        &self,
        collective: Collective,
        count: u64,
        dtype: DType,
        root: Rank,
    ) -> Result<(&'static str, u32)> {
        self.plan_of_blocks(collective, count, dtype, root, false)
    }

    /// Returns the algorithm of a collective's vector form, and the segments per chunk, as
    /// [`Communicator::plan_of`]. `count` is the average number of elements of a block.
    ///
    /// # Errors
    /// Those of [`Communicator::plan_of`].
    pub fn plan_of_vector(
        &self,
        collective: Collective,
        count: u64,
        dtype: DType,
        root: Rank,
    ) -> Result<(&'static str, u32)> {
        let by_rank = collective.shape().vector == Some(collectives::VectorCounts::Own);
        self.plan_of_blocks(collective, if by_rank { 0 } else { count }, dtype, root, true)
    }

    fn plan_of_blocks(
        &self,
        collective: Collective,
        count: u64,
        dtype: DType,
        root: Rank,
        uneven: bool,
    ) -> Result<(&'static str, u32)> {
        let elem_bytes = dtype.size() as u32;
        let (in_place, numerics) = (InPlace::No, self.numerics);
        self.plans.choose(&PlanKey {
            collective,
            count,
            elem_bytes,
            root,
            in_place,
            uneven,
            numerics,
            codec: None,
        })
    }

    /// Plans a collective in advance, so that the first call with these arguments need not.
    ///
    /// `count` is the number of elements of one block, and `in_place` says whether input and output are the
    /// same memory. Calls that combine elements are planned for the sum. The first one with another operation
    /// chooses its algorithm and finds the compiled plan. A call finds a cached plan in a few tens of
    /// nanoseconds. Nothing is sent, and other ranks need not do the same.
    ///
    /// # Errors
    /// As for [`Communicator::plan_of`]; [`Error::InvalidArgument`] for a root outside the communicator.
    pub fn plan_ahead(
        &mut self,
        collective: Collective,
        count: u64,
        dtype: DType,
        root: Rank,
        in_place: bool,
    ) -> Result<()> {
        self.rank_info().check_rank("root", root)?;
        let in_place = if in_place { InPlace::Yes } else { InPlace::No };
        // Another operation of the same call finds the compiled plan.
        let op = collective.reduces().then_some(collectives::ReduceOp::Sum);
        let call = call::Call { collective, dtype, op, count, root, in_place, codec: None };
        let (slot, planned) = self.plans.borrow(&call, call::Blocks::Even, self.numerics)?;
        self.plans.give_back(slot, planned);
        Ok(())
    }

    /// Sets the algorithm of collectives that have it, from the next call on.
    ///
    /// These collectives use it, or fail if it cannot do the call. Other collectives are not affected.
    /// Several names are accepted in the form of [`crate::SelectionConfig::algorithm`]. `segments` is the
    /// number of pieces per chunk, 0 for the automatic choice. The setting overrides all options; `None`,
    /// with any segments, returns to the options. All ranks call it between the same two calls.
    ///
    /// # Errors
    /// [`Error::UnknownName`] for an algorithm that no collective has, [`Error::InvalidArgument`] for too
    /// many segments. Nothing has changed then.
    pub fn set_algorithm(&mut self, algorithm: Option<&str>, segments: u32) -> Result<()> {
        let wanted = algorithm.map(Names::parse).transpose()?;
        check_segments(segments)?;
        self.plans.set_override(wanted.map(|names| (Overrides { names, rules: Vec::new() }, segments)));
        Ok(())
    }

    /// Returns the fingerprint of this job, equal on all ranks: a tuning file is used only if it was measured
    /// on a system with an equal fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(self.transport, &self.peers.names)
    }

    /// Sets the order in which later calls combine contributions. All ranks call it between the same two
    /// calls.
    pub fn set_numerics(&mut self, numerics: Numerics) {
        self.numerics = numerics;
    }

    /// Sets the time that a call may wait without progress.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The connections and devices are the parent's, and their threads do not exist here.
            let ids = std::mem::take(&mut self.open_ids);
            std::mem::forget((self.endpoint.take(), self.server.take(), self.peers.connection.take(), ids));
            return;
        }
        if let Some(endpoint) = self.endpoint.as_mut().filter(|_| self.failed.is_none()) {
            let timeout = self.departure_timeout.min(self.departure_limit);
            closing::drain(&mut **endpoint, &mut self.peers, timeout, self.in_background);
        }
        announce::closed(self);
        traces::end(self);
        self.peers.leave();
        self.peers.control.publish_final(self);
        live::deregister(&self.peers.control);
        let timeout = if self.failed.is_some() { closing::CLOSE_TIMEOUT } else { self.departure_timeout };
        let server = self.server.take().map(|server| (server, timeout));
        closing::closed(server, self.departure_limit, self.in_background);
    }
}

#[cfg(test)]
mod tests;
