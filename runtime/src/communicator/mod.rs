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
mod control;
mod counters;
mod diagnosis;
mod dumps;
mod elements;
mod execute;
mod gauges;
mod group;
mod host_metrics;
mod join;
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
mod traces;
mod typed;
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
    executor::{Executor, Program, Protocols},
    kernels::Threads,
    processors::Processors,
};
use bootstrap::{Connection, Identity, Server};
use call_options::check_segments;
use collectives::{
    Collective, DType, Hosts, Numerics,
    schedule::InPlace,
    select::{Fingerprint, Names, Overrides},
};
use control::{ControlParts, stats_of};
use events::{target, warning};
use join::Rejoin;
use machine::{fingerprint, placement_of, ranks_on_host_of, tuning_of, usable_cores};
use plans::{PlanKey, Plans};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use topology::{Rank, Reach};
use transport::{
    Counters, Link, PollCounters, WaitPolicy,
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
    threads: Threads,
    timeout: Duration,
    numerics: Numerics,
    transport: &'static str,
    /// Number of the latest collective.
    seq: u64,
    /// Per peer: numbers of the latest message sent and of the latest message received.
    message_seqs: Vec<(u64, u64)>,
    /// Programs of messages, per peer and direction.
    message_programs: Vec<Option<Arc<Program>>>,
    /// The error of every further call.
    failed: Option<Error>,
    /// Time that other ranks have to leave when this is closed, if this process runs their rendezvous.
    departure_timeout: Duration,
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

/// Returns the thresholds by which protocols are chosen: those of options, and of the machine for the others.
///
/// The machine was measured with a core for each rank.
fn protocols_of(config: &Config, machine: Thresholds) -> Protocols {
    let (pull, direct) = (config.shm.pull_min_bytes, config.direct_min_bytes);
    let options =
        Protocols::with_minima(pull.unwrap_or(usize::MAX), direct.unwrap_or(Config::DIRECT_MIN_BYTES));
    Protocols {
        gather_pull_min_bytes: pull.unwrap_or(machine.gather_pull_min_bytes),
        combined_direct_min_bytes: direct.map_or(machine.combined_direct_min_bytes, |_| 0),
        ..options
    }
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

/// Longest sleep of a rank that its device wakes, before it checks whether its peers live.
const WOKEN_SLEEP: Duration = Duration::from_millis(25);

impl Communicator {
    /// Lanes between each pair of ranks.
    pub(crate) const LANES: u8 = 2;

    fn assemble(parts: Parts, config: &Config) -> Communicator {
        let Parts { rank, names, agreement, slab, links, reach, endpoint, transport, .. } = parts;
        let mut connection = parts.connection;
        let schedule_reach = parts.schedule_reach;
        let thresholds = parts.thresholds;
        let size = names.len() as u32;
        let cores = usable_cores();
        let on_this_host = ranks_on_host_of(rank, &names);
        let mut wait = WaitPolicy::for_host(on_this_host, cores);
        if let Some(polls) = config.polling.spin_polls {
            wait.spin_polls = polls;
        }
        let sleeper = endpoint.as_ref().and_then(|endpoint| endpoint.sleeper());
        if sleeper.is_some() {
            wait.max_sleep = WOKEN_SLEEP;
        }
        if endpoint.is_some() {
            wait.poll_interval = config.polling.interval;
        }
        let threads = config.reduce_threads.unwrap_or(cores / on_this_host);
        let placement = placement_of(endpoint.as_deref(), &names);
        let hosts = placement.as_ref().map_or(Hosts::One, Hosts::of);
        let names: Arc<[PeerName]> = names.into();
        let trace = traces::begin(config, (rank, &names, transport), &parts.identifier, connection.as_mut());
        let requester = connection.as_ref().map(Connection::snapshot_requester);
        let lending = Arc::<AtomicU64>::default();
        let control = Control::new(ControlParts {
            rank,
            names: Arc::clone(&names),
            transport,
            agreement: agreement.clone(),
            identifier: parts.identifier,
            requester,
            folder: config.dump.clone(),
            hang_report: config.hang_report.clone(),
            counts_calls: config.metrics.is_some(),
            lent_bytes: Arc::clone(&lending),
            trace: trace.clone(),
        });
        let control = live::register(control);
        let here = fingerprint(transport, &names);
        // Equal on all ranks: those of one host see the same machine.
        let cores = config.selection.cores.map_or(Processors::here().cores, |cores| cores as usize);
        let by_memory = endpoint.as_ref().is_none_or(|endpoint| endpoint.hosts().is_some());
        let apart = placement.as_ref().is_some_and(|placement| placement.hosts() == size);
        let tuning = tuning_of(transport, apart);
        let together = placement.is_none_or(|placement| placement.hosts() == 1);
        let oversubscribed = by_memory && together && size as usize > cores;
        let protocols = protocols_of(config, if oversubscribed { Thresholds::DEFAULT } else { thresholds });
        if let Some((what, there, here)) =
            config.selection.tuned.as_ref().and_then(|t| t.fingerprint.difference(&here))
            && rank.0 == 0
            && parts.is_first
        {
            warning!(
                target::SELECTION,
                None,
                "the tuning file is not used: it was measured with {what} {there}, and this \
                 job has {here}; \
                 measure anew with `tbccl tune`"
            );
        }
        if let Some(Err(why)) = config.selection.model.as_ref().map(|model| model.covers(size))
            && rank.0 == 0
        {
            warning!(target::SELECTION, None, "the model is not used: {why}");
        }
        closing::opened();
        let policy = config.policy(&here, tuning, oversubscribed);
        let waits = (&wait, threads);
        announce::settings((rank, parts.is_first), waits, (thresholds, &protocols), &policy);
        let communicator = Communicator {
            plans: Plans::new(rank, size, Self::LANES, (schedule_reach, reach, hosts), policy, config),
            executor: Executor::new(links, slab.clone(), wait, protocols)
                .with_sleeper(sleeper)
                .with_trace(trace)
                .with_requests(control.wanted()),
            peers: Peers {
                rank,
                died: vec![None; names.len()],
                names,
                control,
                agreement,
                published: Published::default(),
                connection,
                launcher_gone: false,
                rendezvous_rank: parts.rendezvous_rank,
                next_looked_at: 0,
                reported_elsewhere: None,
                timed_out: None,
                is_rendezvous_silent: false,
            },
            slab,
            scratch: None,
            endpoint,
            lending,
            threads: Threads::up_to(threads as usize),
            timeout: config.timeout,
            numerics: config.numerics,
            transport,
            seq: 0,
            message_seqs: vec![(0, 0); size as usize],
            message_programs: vec![None; 2 * size as usize],
            failed: None,
            departure_timeout: config.timeout,
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
    /// same memory. A call finds a cached plan in a few tens of nanoseconds. Nothing is sent, and other ranks
    /// need not do the same.
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
        let elem_bytes = dtype.size() as u32;
        let in_place = if in_place { InPlace::Yes } else { InPlace::No };
        let (uneven, numerics, codec) = (false, self.numerics, None);
        let shape = PlanKey { collective, count, elem_bytes, root, in_place, uneven, numerics, codec };
        let (place, fitted) = self.plans.borrow(&shape)?;
        self.plans.give_back(place, fitted.program);
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
            closing::drain(&mut **endpoint, &mut self.peers, self.departure_timeout, self.in_background);
        }
        announce::closed(self);
        traces::end(self);
        self.peers.leave();
        self.peers.control.publish_final(self);
        live::deregister(&self.peers.control);
        let timeout = if self.failed.is_some() { closing::CLOSE_TIMEOUT } else { self.departure_timeout };
        closing::closed(self.server.take().map(|server| (server, timeout)), self.in_background);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::MAX_SEGMENTS;

    fn alone() -> Communicator {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        Communicator::local(4, &config).expect("memory for a test").swap_remove(0)
    }

    #[test]
    fn an_algorithm_that_a_program_asks_for_holds_until_it_lets_go() {
        let mut comm = alone();
        let of = |comm: &Communicator, collective| {
            comm.plan_of(collective, 1 << 20, DType::F32, Rank(0)).expect("a plan")
        };
        let before = of(&comm, Collective::AllReduce);
        let gather = of(&comm, Collective::AllGather);
        comm.set_algorithm(Some("recursive-doubling"), 3).expect("known");
        assert_eq!(of(&comm, Collective::AllReduce), ("recursive_doubling", 3));
        comm.set_algorithm(Some("mesh"), 0).expect("known");
        assert_eq!(of(&comm, Collective::AllReduce).0, "mesh");
        assert_eq!(of(&comm, Collective::AllGather), gather, "it has no mesh");
        let error = comm.set_algorithm(Some("mash"), 0).expect_err("unknown").to_string();
        assert!(error.contains("did you mean `mesh`"), "{error}");
        assert!(comm.set_algorithm(Some("ring"), MAX_SEGMENTS + 1).is_err());
        assert_eq!(of(&comm, Collective::AllReduce).0, "mesh", "an error changes nothing");
        comm.set_algorithm(None, 0).expect("always");
        assert_eq!(of(&comm, Collective::AllReduce), before);
    }

    #[test]
    fn what_is_planned_ahead_is_what_a_call_takes() {
        let mut comm = alone();
        let ahead = |comm: &mut Communicator, root| {
            comm.plan_ahead(Collective::Broadcast, 1 << 20, DType::F32, Rank(root), true)
        };
        ahead(&mut comm, 1).expect("a plan");
        let planned = comm.plans.programs_compiled();
        assert_eq!(planned, 1);
        ahead(&mut comm, 1).expect("at hand");
        assert_eq!(comm.plans.programs_compiled(), planned, "it is not planned twice");
        let error = ahead(&mut comm, 4).expect_err("there is none").to_string();
        assert!(error.contains("root") && error.contains("0..4"), "{error}");
    }

    #[test]
    fn a_panic_in_a_run_fails_the_communicator_of_all_ranks_at_once_and_names_its_cause() {
        const TIMEOUT: Duration = Duration::from_secs(120);
        let config = Config { slab_bytes: Some(1 << 20), timeout: TIMEOUT, ..Config::default() };
        let mut comms = Communicator::local(2, &config).expect("memory for a test");
        let (mut broken, mut other) = (comms.pop().expect("two"), comms.pop().expect("two"));
        // Receives in groups from rank 0 use the link to a rank that does not exist.
        let program = Program::message(Rank(7), false, Communicator::LANES);
        broken.message_programs[0] = Some(Arc::new(program));
        let began = std::time::Instant::now();
        let peer =
            std::thread::spawn(move || other.recv(&mut [0u8; 4], Rank(1)).expect_err("nothing is sent"));
        let call = std::panic::AssertUnwindSafe(|| {
            let mut memory = [0u8; 4];
            let mut group = broken.group();
            group.recv(&mut memory, Rank(0))?;
            group.run()
        });
        assert!(std::panic::catch_unwind(call).is_err(), "the panic goes on to the caller");
        let error = broken.send(&[1u8], Rank(0)).expect_err("the communicator has failed");
        let text = error.to_string();
        assert!(
            matches!(error, Error::Defect(_)) && text.contains("rank 1 panicked in recv of 4 u8"),
            "{text}"
        );
        assert!(text.contains("index out of bounds"), "{text}");
        let error = peer.join().expect("an error and no panic");
        assert!(matches!(error, Error::Remote { rank: Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(began.elapsed() < TIMEOUT / 2, "after {:?}", began.elapsed());
    }

    #[test]
    fn threads_of_one_process_don_t_take_each_other_s_earlier_choice() {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        let comms = Communicator::local(2, &config).expect("memory for a test");
        std::thread::scope(|scope| {
            for mut comm in comms {
                scope.spawn(move || {
                    for (algorithm, messages) in [("mesh", 1), ("rsag_mesh", 2), ("mesh", 1)] {
                        comm.set_algorithm(Some(algorithm), 1).expect("known");
                        let before = comm.counters().sent_messages;
                        comm.all_reduce_in_place(&mut [1.0f32; 64], collectives::ReduceOp::Sum)
                            .expect("done");
                        assert_eq!(comm.counters().sent_messages - before, messages, "{algorithm}");
                    }
                });
            }
        });
    }
}
