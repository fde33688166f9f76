//! Clusters as TOML files, and fabric files read as clusters.
//!
//! ```toml
//! name = "four Macs"
//! shape = "mesh"            # mesh, ring, hypercube, torus, switches, or cables, which are then listed
//! hosts = 4
//!
//! [link]                    # each cable; with switches, each host's link
//! latency_us = 5.0
//! bandwidth_gbps = 75.0
//! ```
//!
//! `configs/clusters/template.toml` has every key; `costs` is read by the pricing of plans. A fabric file
//! (`[[node]]` instead of `shape`) is a cluster with one rank per node; its devices and faults are ignored
//! here.

use super::{
    Cluster, ClusterError, IntraHost, Speed, Tier,
    shapes::{Cable, End},
};
use serde::Deserialize;

/// Maximum number of hosts of a cluster.
const MAX_HOSTS: u32 = 65_536;
/// Maximum number of hosts of a mesh, whose cables are listed.
const MAX_MESH_HOSTS: u32 = 1024;

/// The structure of a cluster file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    shape: String,
    hosts: Option<u32>,
    #[serde(default = "one")]
    ranks_per_host: u32,
    dimensions: Option<Vec<u32>>,
    ports: Option<u32>,
    link: Option<LinkTable>,
    #[serde(default)]
    inside: InsideTable,
    #[serde(default)]
    tier: Vec<TierTable>,
    #[serde(default)]
    port: Vec<PortTable>,
    #[serde(default)]
    cable: Vec<CableTable>,
    /// Costs of work on the hosts, which the pricing of plans reads.
    #[serde(default, rename = "costs")]
    _costs: Option<serde::de::IgnoredAny>,
}

const fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    latency_us: f64,
    bandwidth_gbps: f64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct InsideTable {
    latency_us: Option<f64>,
    bandwidth_gbps: Option<f64>,
    memory_gbps: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TierTable {
    hosts: u32,
    #[serde(default = "even")]
    oversubscription: f64,
    #[serde(default)]
    latency_us: f64,
}

const fn even() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortTable {
    name: String,
    bandwidth_gbps: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CableTable {
    ends: [String; 2],
    latency_us: Option<f64>,
    bandwidth_gbps: Option<f64>,
}

/// The parts of a fabric file that matter for a cluster.
#[derive(Deserialize)]
struct Fabric {
    #[serde(default)]
    link: FabricLink,
    node: Vec<FabricNode>,
    #[serde(default)]
    cable: Vec<FabricCable>,
}

#[derive(Clone, Copy, Deserialize, Default)]
struct FabricLink {
    latency_us: Option<f64>,
    bandwidth_gbps: Option<f64>,
}

#[derive(Deserialize)]
struct FabricNode {
    name: String,
}

#[derive(Deserialize)]
struct FabricCable {
    ends: [String; 2],
    latency_us: Option<f64>,
    bandwidth_gbps: Option<f64>,
}

impl Cluster {
    /// Parses the file of a cluster, or of a fabric.
    ///
    /// # Errors
    /// [`ClusterError`] with the line, the key, or the part that does not fit.
    pub fn from_toml(text: &str) -> Result<Cluster, ClusterError> {
        let table: toml::Table = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        if table.contains_key("node") {
            let fabric: Fabric = toml::from_str(text).map_err(|error| syntax(text, &error))?;
            return fabric.cluster();
        }
        let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        let name = file.name.clone();
        let cluster = file.cluster()?.checked()?;
        Ok(name.map_or(cluster.clone(), |name| cluster.with_name(name)))
    }
}

fn syntax(text: &str, error: &toml::de::Error) -> ClusterError {
    let before = error.span().map_or(0, |span| span.start);
    let line = text.bytes().take(before).filter(|byte| *byte == b'\n').count() + 1;
    ClusterError::Syntax { line, message: error.message().to_owned() }
}

/// Checks that a number is positive.
fn positive(key: &'static str, number: f64) -> Result<f64, ClusterError> {
    if number > 0.0 && !number.is_nan() {
        return Ok(number);
    }
    Err(ClusterError::Number { key, found: number.to_string(), expected: "a number above 0 is needed" })
}

fn within(key: &'static str, number: u32, max: u32) -> Result<u32, ClusterError> {
    if (1..=max).contains(&number) {
        return Ok(number);
    }
    Err(ClusterError::Number {
        key,
        found: number.to_string(),
        expected: "it must be at least 1, and a cluster that can be",
    })
}

fn latency(number: f64) -> Result<f64, ClusterError> {
    if number >= 0.0 && number.is_finite() {
        return Ok(number * 1e-6);
    }
    let (key, found) = ("latency_us", number.to_string());
    Err(ClusterError::Number { key, found, expected: "a time of 0 or more is needed" })
}

fn bandwidth(gigabits: f64) -> Result<f64, ClusterError> {
    Ok(positive("bandwidth_gbps", gigabits)? * 1.25e8)
}

impl LinkTable {
    fn speed(self) -> Result<Speed, ClusterError> {
        Ok(Speed { latency: latency(self.latency_us)?, bytes_per_second: bandwidth(self.bandwidth_gbps)? })
    }
}

impl InsideTable {
    fn inside(&self) -> Result<IntraHost, ClusterError> {
        let usual = IntraHost::default();
        let speed = Speed {
            latency: self.latency_us.map_or(Ok(usual.speed.latency), latency)?,
            bytes_per_second: self.bandwidth_gbps.map_or(Ok(usual.speed.bytes_per_second), bandwidth)?,
        };
        Ok(IntraHost { speed, memory: self.memory_gbps.map_or(Ok(usual.memory), bandwidth)? })
    }
}

impl File {
    fn cluster(&self) -> Result<Cluster, ClusterError> {
        let inside = (within("ranks_per_host", self.ranks_per_host, MAX_HOSTS)?, self.inside.inside()?);
        match self.shape.as_str() {
            "mesh" => self.cabled(Cluster::mesh(self.hosts(MAX_MESH_HOSTS)?, self.speed()?), inside),
            "ring" => self.cabled(Cluster::ring(self.hosts(MAX_HOSTS)?, self.speed()?), inside),
            "hypercube" => {
                let hosts = self.hosts(MAX_HOSTS)?;
                if !hosts.is_power_of_two() {
                    let (key, found) = ("hosts", hosts.to_string());
                    return Err(ClusterError::Number {
                        key,
                        found,
                        expected: "a hypercube has a power of two of them",
                    });
                }
                self.cabled(Cluster::hypercube(hosts.ilog2(), self.speed()?), inside)
            }
            "torus" => {
                let example = "e.g. `dimensions = [4, 4]`";
                let sizes = self.dimensions.as_ref().filter(|sizes| !sizes.is_empty());
                let sizes = sizes.ok_or(ClusterError::Missing { key: "dimensions", example })?;
                let mut hosts = 1u32;
                for size in sizes {
                    hosts = within("dimensions", hosts.saturating_mul(*size), MAX_HOSTS)?;
                }
                self.cabled(Cluster::torus(sizes, self.speed()?), inside)
            }
            "switches" => self.switched(inside),
            "cables" => self.listed(inside),
            _ => Err(ClusterError::Shape { found: self.shape.clone() }),
        }
    }

    fn hosts(&self, max: u32) -> Result<u32, ClusterError> {
        let hosts = self.hosts.ok_or(ClusterError::Missing { key: "hosts", example: "e.g. `hosts = 4`" })?;
        within("hosts", hosts, max)
    }

    fn speed(&self) -> Result<Speed, ClusterError> {
        let example = "a table with `latency_us` and `bandwidth_gbps`";
        self.link.ok_or(ClusterError::Missing { key: "link", example })?.speed()
    }

    /// Gives a cluster of cables the ranks per host and the ports that the file states.
    fn cabled(&self, cluster: Cluster, inside: (u32, IntraHost)) -> Result<Cluster, ClusterError> {
        let cluster = cluster.with_ranks(inside);
        match self.ports.and_then(|ports| cluster.lacks_ports(ports)) {
            Some((host, cables)) => {
                Err(ClusterError::Ports { host, cables, ports: self.ports.unwrap_or_default() })
            }
            None => Ok(cluster),
        }
    }

    fn switched(&self, inside: (u32, IntraHost)) -> Result<Cluster, ClusterError> {
        let hosts = self.hosts(MAX_HOSTS)?;
        let tier = |tier: &TierTable| {
            let oversubscription = positive("oversubscription", tier.oversubscription)?;
            Ok(Tier { hosts: tier.hosts, oversubscription, latency: latency(tier.latency_us)? })
        };
        let mut tiers: Vec<Tier> = self.tier.iter().map(tier).collect::<Result<_, _>>()?;
        if tiers.is_empty() {
            tiers.push(Tier { hosts, oversubscription: 1.0, latency: 0.0 });
        }
        Cluster::switched(hosts, inside, self.speed()?, &tiers)
    }

    fn listed(&self, inside: (u32, IntraHost)) -> Result<Cluster, ClusterError> {
        let hosts = self.hosts(MAX_HOSTS)?;
        let number = |name: &str| name.parse().ok().filter(|host| *host < hosts);
        let port = |port: &PortTable| Ok((end(&port.name, number)?, bandwidth(port.bandwidth_gbps)?));
        let ports: Vec<(End, f64)> = self.port.iter().map(port).collect::<Result<_, ClusterError>>()?;
        let mut cables = Vec::new();
        for cable in &self.cable {
            let own = (cable.latency_us, cable.bandwidth_gbps);
            let speed = match (own, self.link) {
                ((Some(latency_us), Some(bandwidth_gbps)), _) => {
                    LinkTable { latency_us, bandwidth_gbps }.speed()?
                }
                ((latency_us, bandwidth_gbps), Some(link)) => LinkTable {
                    latency_us: latency_us.unwrap_or(link.latency_us),
                    bandwidth_gbps: bandwidth_gbps.unwrap_or(link.bandwidth_gbps),
                }
                .speed()?,
                _ => self.speed()?,
            };
            cables.push(Cable { ends: both_ends(&cable.ends, number)?, speed });
        }
        let name = format!("{hosts} hosts with {} cables", cables.len());
        self.cabled(
            Cluster::bare(name, hosts, (1, IntraHost::default())).with_cables(&cables, &ports),
            inside,
        )
    }
}

/// Parses the end of a cable: a host, or a host and a port after a slash.
fn end(text: &str, number: impl Fn(&str) -> Option<u32>) -> Result<End, ClusterError> {
    let (host, port) =
        text.split_once('/').map_or((text, None), |(host, port)| (host, Some(port.to_owned())));
    let host = number(host).ok_or_else(|| ClusterError::End { end: text.to_owned() })?;
    Ok(End { host, port })
}

fn both_ends(ends: &[String; 2], number: impl Fn(&str) -> Option<u32>) -> Result<[End; 2], ClusterError> {
    let both = [end(&ends[0], &number)?, end(&ends[1], &number)?];
    if both[0].host == both[1].host {
        return Err(ClusterError::Loop { end: ends[0].clone() });
    }
    Ok(both)
}

impl Fabric {
    fn cluster(&self) -> Result<Cluster, ClusterError> {
        let number = |name: &str| self.node.iter().position(|node| node.name == name).map(|at| at as u32);
        let mut cables = Vec::new();
        for cable in &self.cable {
            let gigabits = cable.bandwidth_gbps.or(self.link.bandwidth_gbps);
            let speed = Speed {
                latency: latency(cable.latency_us.or(self.link.latency_us).unwrap_or(0.0))?,
                bytes_per_second: gigabits.map_or(Ok(f64::INFINITY), bandwidth)?,
            };
            // A loopback plug connects no two nodes.
            match both_ends(&cable.ends, number) {
                Ok(ends) => cables.push(Cable { ends, speed }),
                Err(ClusterError::Loop { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let hosts = within("node", self.node.len() as u32, MAX_HOSTS)?;
        let name = format!("a fabric of {hosts} nodes");
        Ok(Cluster::bare(name, hosts, (1, IntraHost::default())).with_cables(&cables, &[]))
    }
}
