//! Checks, their findings, and the hosts that they look at.

use crate::commands::survey::Surveyed;
use inventory::{CableGraph, Inventory};
use serde::Serialize;
use std::time::Duration;
use topology::DeviceMatrix;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Green,
    /// Jobs run, slower than they could or with a risk.
    Yellow,
    /// Jobs fail, or can't use what they should.
    Red,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Green => "green",
            Verdict::Yellow => "yellow",
            Verdict::Red => "red",
        }
    }
}

/// A fault of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// The host.
    pub(super) host: String,
    /// The observation.
    pub(super) seen: String,
    /// The command that mends it, or the action of a person.
    pub(super) mend: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Faults.
    pub(super) findings: Vec<Finding>,
    /// Observation where there is no fault; `None` if the check applies to no host.
    pub(super) good: Option<String>,
}

/// A named set-up fault, or a family of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    /// The subject, in a few words.
    pub(super) about: &'static str,
    /// The reason why a fault matters.
    pub(super) why: &'static str,
    pub(super) run: fn(&Cluster<'_>) -> Outcome,
}

/// A host with an inventory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    pub(super) name: &'a str,
    pub(super) inventory: &'a Inventory,
}

impl Host<'_> {
    pub(super) fn red(&self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.finding(Verdict::Red, seen, mend)
    }

    pub(super) fn yellow(&self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.finding(Verdict::Yellow, seen, mend)
    }

    pub(super) fn finding(
        &self,
        verdict: Verdict,
        seen: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding { verdict, host: self.name.to_owned(), seen: seen.into(), mend: mend.into() }
    }
}

/// The hosts that the checks look at.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    pub(super) surveyed: &'a [Surveyed],
    /// Inventories in the order of the hosts; an empty one for a host that gave none.
    inventories: Vec<&'a Inventory>,
    /// Cables; hosts are numbered as in `surveyed`.
    pub(super) graph: CableGraph,
    /// Devices that the hostfile names, by the positions of hosts.
    pub(super) devices: Option<&'a DeviceMatrix>,
    /// Time for which the addresses of RDMA ports were waited for; zero if the hosts were looked at once.
    pub(super) waited: Duration,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(
        surveyed: &'a [Surveyed],
        empty: &'a Inventory,
        devices: Option<&'a DeviceMatrix>,
    ) -> Cluster<'a> {
        let inventories: Vec<&Inventory> =
            surveyed.iter().map(|host| host.inventory.as_ref().unwrap_or(empty)).collect();
        let graph = CableGraph::of(&inventories);
        Cluster { surveyed, inventories, graph, devices, waited: Duration::ZERO }
    }

    /// Returns the hosts after a wait for the addresses of their RDMA ports.
    pub(super) fn after(self, waited: Duration) -> Cluster<'a> {
        Cluster { waited, ..self }
    }

    /// Whether there are several hosts.
    pub(super) fn has_several(&self) -> bool {
        self.surveyed.len() > 1
    }

    /// Returns a host by its position, with an empty inventory if it gave none.
    pub(super) fn host(&self, at: usize) -> Host<'_> {
        Host { name: &self.surveyed[at].name, inventory: self.inventories[at] }
    }

    /// Returns the hosts that gave an inventory.
    pub(super) fn hosts(&self) -> impl Iterator<Item = Host<'_>> {
        (0..self.surveyed.len()).filter(|at| self.surveyed[*at].inventory.is_ok()).map(|at| self.host(at))
    }

    /// Applies a check to each host; it returns `None` for a host to which it does not apply.
    pub(super) fn each(&self, good: &str, check: impl Fn(&Host<'_>) -> Option<Vec<Finding>>) -> Outcome {
        let found: Vec<Vec<Finding>> = self.hosts().filter_map(|host| check(&host)).collect();
        let good = (!found.is_empty()).then(|| good.to_owned());
        Outcome { findings: found.into_iter().flatten().collect(), good }
    }
}
