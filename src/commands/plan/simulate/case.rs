//! A call on a cluster, and what becomes of it by one algorithm or another.

use crate::commands::Failed;
use collectives::{
    Codec, Collective, Hosts, PlanError, Schedule, Spec, plan,
    select::{Call, Tuning, segments},
    simulate::{
        Costs, Outcome,
        bounds::{Bounds, bounds},
        bus_bandwidth, peers, simulate,
    },
};
use topology::{Cluster, Rank};

/// Elements are of four bytes.
const ELEMENT: u64 = 4;

/// A call on a cluster.
pub(super) struct Case {
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) root: Rank,
    /// Bytes of the larger side of the operation.
    pub(super) bytes: u64,
    /// Default segments of a call.
    pub(super) segments: Option<u32>,
    /// How messages are packed, if they are.
    pub(super) codec: Option<Codec>,
    pub(super) cluster: Cluster,
    pub(super) costs: Costs,
}

/// A way to carry out a collective: ours, or a peer's.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Ours(&'static plan::Algorithm),
    Theirs(&'static Peer),
}

/// A peer's algorithm.
pub(super) struct Peer {
    name: &'static str,
    planner: fn(&Spec) -> Result<Schedule, PlanError>,
    /// Chunks of its plan by number of ranks.
    chunks: fn(u32) -> u32,
}

/// All of them are for all_reduce.
const PEERS: [Peer; 3] = [
    Peer { name: "jaccl_mesh", planner: peers::jaccl_mesh, chunks: |ranks| ranks },
    Peer { name: "jaccl_mesh_small", planner: peers::jaccl_mesh_small, chunks: |_| 1 },
    Peer { name: "mlx_ring", planner: peers::mlx_ring, chunks: |ranks| 2 * ranks },
];

/// The size of JACCL's buffers, into which it cuts messages.
const PEER_BUFFER: u64 = 512 << 10;

/// The steps of all ranks in plans that are tried out.
const MOST_STEPS: usize = 600_000;

/// The result of a run.
pub(super) struct Run {
    pub(super) way: Way,
    pub(super) schedule: Schedule,
    pub(super) segments: u32,
    pub(super) outcome: Outcome,
}

impl Way {
    /// All ways to carry out a collective.
    pub(super) fn all(collective: Collective) -> impl Iterator<Item = Way> {
        let theirs = PEERS.iter().filter(move |_| collective == Collective::AllReduce);
        plan::algorithms(collective).map(Way::Ours).chain(theirs.map(Way::Theirs))
    }

    /// The one with that name.
    pub(super) fn named(collective: Collective, name: &str) -> Result<Way, Failed> {
        let known = Way::all(collective).find(|way| way.name() == name);
        known.map_or_else(|| plan::algorithm(collective, name).map(Way::Ours).map_err(Failed::new), Ok)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Ours(algorithm) => algorithm.name,
            Way::Theirs(peer) => peer.name,
        }
    }
}

/// An error as it will be told.
fn said(error: impl Into<Box<dyn std::error::Error>>) -> String {
    error.into().to_string()
}

impl Case {
    /// The blocks of the larger side.
    fn blocks(&self) -> u64 {
        u64::from(self.collective.input_blocks(self.ranks).max(self.collective.output_blocks(self.ranks)))
    }

    fn block_bytes(&self) -> u64 {
        self.bytes / self.blocks().max(1) / ELEMENT * ELEMENT
    }

    /// Returns lower bounds of any plan.
    pub(super) fn bounds(&self) -> Bounds {
        bounds(self.collective, self.ranks, self.block_bytes(), &self.cluster, &self.costs)
    }

    /// In bytes per second.
    pub(super) fn bus_bandwidth(&self, run: &Run) -> f64 {
        bus_bandwidth(&run.schedule, self.block_bytes() * self.blocks(), run.outcome.makespan)
    }

    /// Simulates it.
    ///
    /// # Errors
    /// Why it can't run there.
    pub(super) fn run(&self, way: Way) -> Result<Run, String> {
        let spec = Spec::new(self.collective, self.ranks).and_then(|spec| spec.with_root(self.root));
        let hosts = self.hosts();
        let spec = spec.and_then(|spec| spec.with_hosts(hosts)).map_err(said)?.with_codec(self.codec);
        let (schedule, segments, costs) = match way {
            Way::Ours(algorithm) => {
                let segments = self.segments.unwrap_or_else(|| self.usual_segments(algorithm.name));
                let schedule = spec.with_segments(segments).and_then(|spec| algorithm.plan(&spec));
                (schedule.map_err(said)?, segments, self.costs.clone())
            }
            Way::Theirs(_) if self.codec.is_some() => return Err("it does not pack messages".to_owned()),
            Way::Theirs(peer) => {
                let chunk = self.block_bytes() / u64::from((peer.chunks)(self.ranks));
                let segments = chunk.div_ceil(PEER_BUFFER).clamp(1, 1024) as u32;
                let schedule = spec.with_segments(segments).and_then(|spec| (peer.planner)(&spec));
                (schedule.map_err(said)?, segments, Costs::jaccl())
            }
        };
        let layout = schedule.layout(self.block_bytes() / ELEMENT, ELEMENT as usize).map_err(said)?;
        let outcome = simulate(&schedule, &layout, ELEMENT as usize, &self.cluster, &costs).map_err(said)?;
        Ok(Run { way, schedule, segments, outcome })
    }

    /// How the ranks are dealt to hosts: those of the cluster, filled one after the other.
    fn hosts(&self) -> Hosts {
        let hosts = Hosts::on(&self.cluster);
        if hosts.count(self.ranks) > 1 { hosts } else { Hosts::One }
    }

    fn usual_segments(&self, algorithm: &str) -> u32 {
        let call = Call { collective: self.collective, ranks: self.ranks, block_bytes: self.block_bytes() };
        segments(call, algorithm, &Tuning::default())
    }

    /// Returns the fastest run over all powers of two of segments up to `most`, as far as the plan has not
    /// too many steps.
    pub(super) fn best(&self, way: Way, most: u32) -> Result<Run, Failed> {
        let (cluster, costs) = (self.cluster.clone(), self.costs.clone());
        let mut case = Case { segments: Some(1), cluster, costs, ..*self };
        let mut best = case.run(way).map_err(Failed::new)?;
        let steps: usize = best.schedule.programs.iter().map(|program| program.steps.len()).sum();
        let most = most.min((MOST_STEPS / steps.max(1)) as u32).max(1);
        let is_ours = matches!(way, Way::Ours(_));
        for segments in (1..=most.ilog2()).map(|power| 1 << power).filter(|_| is_ours) {
            case.segments = Some(segments);
            let run = case.run(way).map_err(Failed::new)?;
            if run.outcome.makespan < best.outcome.makespan {
                best = run;
            }
        }
        Ok(best)
    }
}
