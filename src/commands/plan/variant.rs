//! Variants of a plan beside the call: hosts, replicas, stripes.

use collectives::{Hosts, PlanError, Spec, Weights};

/// The options that show and verify have in common.
#[derive(Debug, clap::Args)]
pub(super) struct Variant {
    /// Ranks on each host, which hierarchical plans ask for: 4 (on each), 3,1 or turns:2 [default: one host]
    #[arg(long, value_name = "RANKS,...", allow_hyphen_values = true)]
    pub(super) hosts: Option<Hosts>,

    /// Copies of the plan on lanes of their own, each with an equal part of every chunk
    #[arg(long, value_name = "N", default_value = "1")]
    replicas: u8,

    /// Shares of the lanes that every message is split over, e.g. 3:1
    #[arg(long, value_name = "W:W...", default_value = "1")]
    weights: Weights,
}

impl Variant {
    /// Was anything of it asked for?
    pub(super) fn is_given(&self) -> bool {
        self.hosts.is_some() || self.replicas > 1 || self.weights != Weights::ONE
    }

    /// Applies hosts, replicas and stripes to a plan's specification.
    ///
    /// # Errors
    /// [`PlanError`] where the hosts do not have this many ranks, or numbers are out of range.
    pub(super) fn apply(&self, spec: Spec) -> Result<Spec, PlanError> {
        let spec = spec.with_hosts(self.hosts.unwrap_or(spec.hosts()))?;
        Ok(spec.with_replicas(self.replicas)?.with_weights(self.weights))
    }
}
