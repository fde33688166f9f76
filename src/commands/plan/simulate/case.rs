//! A call on a cluster, and its simulation with an algorithm.

use crate::commands::CommandError;
use collectives::{
    Codec, Collective, Hosts, PlanError, Schedule, Spec, plan,
    select::{Call, Requirements, Tuning, segments},
    simulate::{
        Costs, Outcome,
        bounds::{Bounds, bounds},
        bus_bandwidth, peers, simulate,
    },
};
use topology::{Cluster, Rank, Reach};

/// Bytes per element.
const ELEMENT_BYTES: u64 = 4;

/// A call on a cluster.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) root: Rank,
    /// Bytes of the larger of input and output.
    pub(super) bytes: u64,
    /// Segments per chunk; by default those of a call.
    pub(super) segments: Option<u32>,
    /// Message packing, if any.
    pub(super) codec: Option<Codec>,
    pub(super) cluster: Cluster,
    pub(super) costs: Costs,
}

/// An implementation of a collective: an algorithm of tbccl, or of a peer library.
#[derive(Clone, Copy)]
pub(super) enum Implementation {
    Own(&'static plan::Algorithm),
    Peer(&'static Peer),
}

/// An algorithm of a peer library.
pub(super) struct Peer {
    name: &'static str,
    planner: fn(&Spec) -> Result<Schedule, PlanError>,
    /// Chunks of its plan, by number of ranks.
    chunks: fn(u32) -> u32,
}

/// The peer algorithms, all of them for all_reduce.
const PEERS: [Peer; 3] = [
    Peer { name: "jaccl_mesh", planner: peers::jaccl_mesh, chunks: |ranks| ranks },
    Peer { name: "jaccl_mesh_small", planner: peers::jaccl_mesh_small, chunks: |_| 1 },
    Peer { name: "mlx_ring", planner: peers::mlx_ring, chunks: |ranks| 2 * ranks },
];

/// Size of JACCL's buffers, into which it splits messages.
const JACCL_BUFFER_BYTES: u64 = 512 << 10;

/// Maximum steps of all ranks together in a simulated plan.
const MAX_STEPS: usize = 600_000;

/// The result of a simulation.
pub(super) struct Run {
    pub(super) implementation: Implementation,
    pub(super) schedule: Schedule,
    pub(super) segments: u32,
    pub(super) outcome: Outcome,
}

impl Implementation {
    /// Returns all implementations of a collective.
    pub(super) fn all(collective: Collective) -> impl Iterator<Item = Implementation> {
        let peers = PEERS.iter().filter(move |_| collective == Collective::AllReduce);
        plan::algorithms(collective).map(Implementation::Own).chain(peers.map(Implementation::Peer))
    }

    /// Returns the implementation of a name.
    pub(super) fn named(collective: Collective, name: &str) -> Result<Implementation, CommandError> {
        let known = Implementation::all(collective).find(|implementation| implementation.name() == name);
        known.map_or_else(
            || plan::algorithm(collective, name).map(Implementation::Own).map_err(CommandError::new),
            Ok,
        )
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Implementation::Own(algorithm) => algorithm.name,
            Implementation::Peer(peer) => peer.name,
        }
    }
}

/// Returns the text of an error.
fn text_of(error: impl Into<Box<dyn std::error::Error>>) -> String {
    error.into().to_string()
}

impl Case {
    /// Returns the blocks of the larger of input and output.
    fn blocks(&self) -> u64 {
        u64::from(self.collective.input_blocks(self.ranks).max(self.collective.output_blocks(self.ranks)))
    }

    fn block_bytes(&self) -> u64 {
        self.bytes / self.blocks().max(1) / ELEMENT_BYTES * ELEMENT_BYTES
    }

    /// Returns lower bounds of any plan.
    pub(super) fn bounds(&self) -> Bounds {
        bounds(self.collective, self.ranks, self.block_bytes(), &self.cluster, &self.costs)
    }

    /// Returns the bus bandwidth in bytes per second.
    pub(super) fn bus_bandwidth(&self, run: &Run) -> f64 {
        bus_bandwidth(&run.schedule, self.block_bytes() * self.blocks(), run.outcome.makespan)
    }

    /// Simulates the call.
    ///
    /// # Errors
    /// The reason why the implementation can't run on the cluster.
    pub(super) fn run(&self, implementation: Implementation) -> Result<Run, String> {
        let spec = Spec::new(self.collective, self.ranks).and_then(|spec| spec.with_root(self.root));
        let hosts = self.hosts();
        let reach = Reach::new(self.ranks, |a, b| self.cluster.route(a, b).is_some());
        let requirements = Requirements { hosts, ..Requirements::default() }.within(self.ranks, &reach);
        let spec = spec.and_then(|spec| requirements.place(spec));
        let spec = spec.map_err(text_of)?.with_codec(self.codec);
        let (schedule, segments, costs) = match implementation {
            Implementation::Own(algorithm) => {
                let segments = self.segments.unwrap_or_else(|| self.default_segments(algorithm.name));
                let schedule = spec.with_segments(segments).and_then(|spec| algorithm.plan(&spec));
                (schedule.map_err(text_of)?, segments, self.costs.clone())
            }
            Implementation::Peer(_) if self.codec.is_some() => {
                return Err("it does not pack messages".to_owned());
            }
            Implementation::Peer(peer) => {
                let chunk = self.block_bytes() / u64::from((peer.chunks)(self.ranks));
                let segments = chunk.div_ceil(JACCL_BUFFER_BYTES).clamp(1, 1024) as u32;
                let schedule = spec.with_segments(segments).and_then(|spec| (peer.planner)(&spec));
                (schedule.map_err(text_of)?, segments, Costs::jaccl())
            }
        };
        let layout =
            schedule.layout(self.block_bytes() / ELEMENT_BYTES, ELEMENT_BYTES as usize).map_err(text_of)?;
        let outcome =
            simulate(&schedule, &layout, ELEMENT_BYTES as usize, &self.cluster, &costs).map_err(text_of)?;
        Ok(Run { implementation, schedule, segments, outcome })
    }

    /// Returns the distribution of ranks over the cluster's hosts, which are filled one after the other.
    fn hosts(&self) -> Hosts {
        let hosts = Hosts::of_cluster(&self.cluster);
        if hosts.count(self.ranks) > 1 { hosts } else { Hosts::One }
    }

    fn default_segments(&self, algorithm: &str) -> u32 {
        let call = Call { collective: self.collective, ranks: self.ranks, block_bytes: self.block_bytes() };
        segments(call, algorithm, &Tuning::default())
    }

    /// Returns the fastest run over all powers of two up to `max_segments` segments, within the limit on
    /// steps.
    pub(super) fn best(
        &self,
        implementation: Implementation,
        max_segments: u32,
    ) -> Result<Run, CommandError> {
        let (cluster, costs) = (self.cluster.clone(), self.costs.clone());
        let mut case = Case { segments: Some(1), cluster, costs, ..*self };
        let mut best = case.run(implementation).map_err(CommandError::new)?;
        let steps: usize = best.schedule.programs.iter().map(|program| program.steps.len()).sum();
        let max_segments = max_segments.min((MAX_STEPS / steps.max(1)) as u32).max(1);
        let is_own = matches!(implementation, Implementation::Own(_));
        for segments in (1..=max_segments.ilog2()).map(|power| 1 << power).filter(|_| is_own) {
            case.segments = Some(segments);
            let run = case.run(implementation).map_err(CommandError::new)?;
            if run.outcome.makespan < best.outcome.makespan {
                best = run;
            }
        }
        Ok(best)
    }
}
