//! Options of a plan besides the call: hosts, replicas, stripes.

use collectives::{Hosts, PlanError, Spec, Weights};

/// Options shared by `show` and `verify`.
#[derive(Debug, clap::Args)]
pub(super) struct Variant {
    /// Ranks on each host, for hierarchical plans: 4 (on each), 3,1 or turns:2 [default: one host]
    #[arg(long, value_name = "RANKS,...", allow_hyphen_values = true)]
    pub(super) hosts: Option<Hosts>,

    /// Number of copies of the plan on separate lanes, each with an equal part of every chunk
    #[arg(long, value_name = "N", default_value = "1")]
    replicas: u8,

    /// Weights of the lanes over which every message is split, e.g. 3:1
    #[arg(long, value_name = "W:W...", default_value = "1")]
    weights: Weights,
}

impl Variant {
    /// Whether any option was given.
    pub(super) fn is_given(&self) -> bool {
        self.hosts.is_some() || self.replicas > 1 || self.weights != Weights::ONE
    }

    /// Applies hosts, replicas and stripes to a plan's specification.
    ///
    /// # Errors
    /// [`PlanError`] if the hosts do not have this many ranks, or numbers are out of range.
    pub(super) fn apply(&self, spec: Spec) -> Result<Spec, PlanError> {
        let spec = spec.with_hosts(self.hosts.unwrap_or(spec.hosts()))?;
        Ok(spec.with_replicas(self.replicas)?.with_weights(self.weights))
    }
}
