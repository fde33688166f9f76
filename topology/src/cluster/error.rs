//! The reasons why a description of a cluster is refused.

use thiserror::Error;

/// Returns a suggestion of the nearest shape, as the rest of a sentence.
fn nearest(found: &str) -> String {
    let shapes = ["mesh", "ring", "hypercube", "torus", "switches", "cables"];
    let near = shapes.into_iter().find(|shape| strsim::jaro_winkler(shape, found) > 0.75);
    near.map(|shape| format!(", did you mean `{shape}`?")).unwrap_or_default()
}

/// The error for an invalid description of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Text that is not TOML, or has other keys.
    #[error("line {line}: {message}")]
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// The error.
        message: String,
    },
    /// An unknown shape.
    #[error(
        "unknown shape `{found}`{}; choose mesh, ring, hypercube, torus, switches or cables",
        nearest(found)
    )]
    Shape {
        /// The value given.
        found: String,
    },
    /// A missing key.
    #[error("a cluster of this shape needs `{key}`, {example}")]
    Missing {
        /// The key.
        key: &'static str,
        /// An example value.
        example: &'static str,
    },
    /// An invalid number.
    #[error("`{key}` is {found}; {expected}")]
    Number {
        /// The key.
        key: &'static str,
        /// The value found.
        found: String,
        /// The valid values.
        expected: &'static str,
    },
    /// More ranks than a cluster may have.
    #[error(
        "{hosts} hosts of {ranks_per_host} ranks have more than {max} ranks, the most that a cluster may \
         have; lower `hosts` or `ranks_per_host`"
    )]
    Ranks {
        /// The number of hosts.
        hosts: u32,
        /// The number of ranks of a host.
        ranks_per_host: u32,
        /// The limit.
        max: u32,
    },
    /// Tiers that do not fit together.
    #[error(
        "the tiers of switches do not fit: each must be made of whole switches of the one below, and the \
         last one must have \
         all {hosts} hosts"
    )]
    Tiers {
        /// The number of hosts.
        hosts: u32,
    },
    /// More tiers than a route has links for.
    #[error("there are more than {max} tiers of switches; leave some out")]
    TooManyTiers {
        /// Maximum number of tiers.
        max: usize,
    },
    /// A cable end, or a port, that does not exist.
    #[error(
        "`{end}` is the end of a cable and no host; write the number of a host, or of a host and a \
         port: \"3/left\""
    )]
    End {
        /// The text given.
        end: String,
    },
    /// A cable whose ends are the same host.
    #[error("a cable leads from `{end}` to the same host; leave it out")]
    Loop {
        /// The end.
        end: String,
    },
    /// A host with more cables than ports.
    #[error(
        "host {host} has {cables} cables and {ports} ports; give hosts more `ports`, or choose a shape with \
         fewer cables"
    )]
    Ports {
        /// The host.
        host: u32,
        /// Number of cables that end there.
        cables: u32,
        /// Number of its ports.
        ports: u32,
    },
}
