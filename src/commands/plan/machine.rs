//! Clusters and costs, as named on the command line.

use crate::commands::CommandError;
use collectives::{select::price::Model, simulate::Costs};
use std::{fs, io, path::Path, str::FromStr};
use topology::{Cluster, IntraHost, Speed, Tier};

/// Measured latency in microseconds and bandwidth in Gb/s of a Thunderbolt 5 cable.
pub(super) const CABLE: (f64, f64) = (5.0, 75.0);

/// Maximum number of ranks of a cluster given by shape.
const MAX_NAMED_RANKS: u32 = 1024;

/// Reads a text file.
pub(super) fn read(path: &Path) -> Result<String, CommandError> {
    fs::read_to_string(path).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::InvalidData => "it is not text".to_owned(),
            _ => format!("{error}; check the path"),
        };
        CommandError::new(format_args!("can't read `{}`: {why}", path.display()))
    })
}

/// Returns the costs of a name or a file.
pub(super) fn costs(name: &str) -> Result<Costs, CommandError> {
    if let Ok(known) = Costs::from_str(name) {
        return Ok(known);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(CommandError::new(format_args!(
            "no costs are known as `{name}`; choose ideal, rdma, rdma-held or jaccl, or name a file"
        )));
    }
    Costs::from_toml(&read(path)?).map_err(|error| CommandError::new(format_args!("`{name}`: {error}")))
}

/// Returns the cluster of a shape, or of a file, which may contain costs. The cables of a shape are
/// Thunderbolt cables between Macs.
pub(super) fn model(name: &str, ranks: u32) -> Result<Model, CommandError> {
    let speed = Speed::new(CABLE.0, CABLE.1);
    let is_named = ["mesh", "ring", "hypercube", "shm"].contains(&name);
    if is_named && ranks > MAX_NAMED_RANKS {
        return Err(CommandError::new(format_args!(
            "a cluster of {ranks} ranks needs a file; named clusters have at most {MAX_NAMED_RANKS}"
        )));
    }
    let cluster = match name {
        "mesh" => Cluster::mesh(ranks, speed),
        "ring" => Cluster::ring(ranks, speed),
        "hypercube" if ranks.is_power_of_two() => Cluster::hypercube(ranks.ilog2(), speed),
        "hypercube" => {
            return Err(CommandError::new(format_args!(
                "the ranks of a hypercube are a power of two, and {ranks} is not"
            )));
        }
        "shm" => {
            let tier = Tier { hosts: 1, oversubscription: 1.0, latency: 0.0 };
            let host = Cluster::switched(1, (ranks, IntraHost::default()), speed, &[tier])
                .map_err(CommandError::new)?;
            host.with_name(format!("{ranks} ranks of one host"))
        }
        _ if !Path::new(name).exists() => {
            return Err(CommandError::new(format_args!(
                "no cluster is known as `{name}`; choose mesh, ring, hypercube or shm, or name a file"
            )));
        }
        _ => {
            let text = read(Path::new(name))?;
            return Model::from_toml(&text)
                .map_err(|error| CommandError::new(format_args!("`{name}`: {error}")));
        }
    };
    Ok(Model { cluster, costs: Costs::rdma_held() })
}
