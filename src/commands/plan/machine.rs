//! Clusters and costs as they are named on command lines.

use crate::commands::Failed;
use collectives::{select::price::Model, simulate::Costs};
use std::{fs, io, path::Path, str::FromStr};
use topology::{Cluster, Inside, Speed, Tier};

/// A cable of Thunderbolt 5 as people have measured it: microseconds, and gigabits per second.
pub(super) const CABLE: (f64, f64) = (5.0, 75.0);

/// The most ranks of a cluster that is named and not described.
const MOST: u32 = 1024;

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, Failed> {
    fs::read_to_string(path).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::InvalidData => "it is not a text".to_owned(),
            _ => format!("{error}; check the path"),
        };
        Failed::new(format_args!("can't read `{}`: {why}", path.display()))
    })
}

/// Reads a name of costs, or a file of them.
pub(super) fn costs(name: &str) -> Result<Costs, Failed> {
    if let Ok(known) = Costs::from_str(name) {
        return Ok(known);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(Failed::new(format_args!(
            "no costs are known as `{name}`; choose ideal, rdma or jaccl, or name a file"
        )));
    }
    Costs::from_toml(&read(path)?).map_err(|error| Failed::new(format_args!("`{name}`: {error}")))
}

/// A cluster by the name of its shape, or a file of one, which may have costs of its own.
pub(super) fn model(name: &str, ranks: u32) -> Result<Model, Failed> {
    let speed = Speed::new(CABLE.0, CABLE.1);
    let named = ["mesh", "ring", "hypercube", "shm"].contains(&name);
    if named && ranks > MOST {
        return Err(Failed::new(format_args!(
            "describe a cluster of {ranks} ranks in a file; {MOST} is the most by name"
        )));
    }
    let cluster = match name {
        "mesh" => Cluster::mesh(ranks, speed),
        "ring" => Cluster::ring(ranks, speed),
        "hypercube" if ranks.is_power_of_two() => Cluster::hypercube(ranks.ilog2(), speed),
        "hypercube" => {
            return Err(Failed::new(format_args!(
                "a hypercube has a power of two of ranks, and {ranks} is none"
            )));
        }
        "shm" => {
            let tier = Tier { hosts: 1, oversubscription: 1.0, latency: 0.0 };
            let host =
                Cluster::switched(1, (ranks, Inside::default()), speed, &[tier]).map_err(Failed::new)?;
            host.named(format!("{ranks} ranks of one host"))
        }
        _ if !Path::new(name).exists() => {
            return Err(Failed::new(format_args!(
                "no cluster is known as `{name}`; choose mesh, ring, hypercube or shm, or name a file"
            )));
        }
        _ => {
            let text = read(Path::new(name))?;
            return Model::from_toml(&text).map_err(|error| Failed::new(format_args!("`{name}`: {error}")));
        }
    };
    Ok(Model { cluster, costs: Costs::rdma() })
}
