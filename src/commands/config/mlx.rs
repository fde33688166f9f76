//! MLX's hostfile, in JSON, for one of the backends of `mlx.launch`.
//!
//! | backend | cables that it needs | order of the hosts | `ips` of a host | `rdma` |
//! |---|---|---|---|---|
//! | `jaccl` | RDMA between any two hosts | as given | the LAN's | all devices |
//! | `jaccl-ring` | a ring with RDMA | the ring's | the LAN's | equally many devices for each neighbor |
//! | `ring` | a ring | the ring's | those at which the host before it reaches it, equally many for each | - |
//!
//! Without a choice the backend is the first of the table whose cables are there, as in
//! `mlx.distributed_config`. Where there is no ring either, the file names no backend, and a host without a
//! cable from the one before it has its address on the LAN.

use super::plan::Plan;
use serde_json::{Value, json};
use topology::{DeviceMatrix, Wiring};

/// A backend of MLX that `mlx.distributed_config` configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Backend {
    Ring,
    Jaccl,
    JacclRing,
}

/// Values of the hostfiles that are not in the plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings<'a> {
    /// The backend that was asked for.
    pub(super) backend: Option<Backend>,
    /// Environment variables of all ranks, each `KEY=VALUE`.
    pub(super) env: &'a [String],
}

impl Settings<'_> {
    /// Returns the environment variables. The last value of a variable counts.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let env = self.env;
        let pairs = move || env.iter().filter_map(|pair| pair.split_once('='));
        let is_last = move |at: usize, key: &str| !pairs().skip(at + 1).any(|(other, _)| other == key);
        pairs().enumerate().filter(move |(at, (key, _))| is_last(*at, key)).map(|(_, pair)| pair)
    }
}

impl Backend {
    /// Returns the name that `mlx.launch` takes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Backend::Ring => "ring",
            Backend::Jaccl => "jaccl",
            Backend::JacclRing => "jaccl-ring",
        }
    }

    /// Whether the backend sends over RDMA.
    fn needs_rdma(self) -> bool {
        self != Backend::Ring
    }

    /// Returns the first backend whose cables are there.
    fn of(plan: &Plan<'_>, with_rdma: bool) -> Option<Backend> {
        let all = [Backend::Jaccl, Backend::JacclRing, Backend::Ring];
        all.into_iter().find(|backend| backend.problem(plan, with_rdma).is_none())
    }

    /// Returns the reason why the backend can't run on these cables.
    pub(super) fn problem(self, plan: &Plan<'_>, with_rdma: bool) -> Option<String> {
        let name = self.name();
        if self.needs_rdma() && !with_rdma {
            return Some(format!("the backend {name} needs RDMA: use --over thunderbolt or --over rdma"));
        }
        if self.needs_rdma() && !plan.has_rdma() {
            return Some(format!(
                "the backend {name} needs RDMA, and a cable has no RDMA device at one of its ends; see \
                 `tbccl doctor --check rdma,port`, or use --backend ring"
            ));
        }
        let apart = || pairs(plan.hosts.len()).find(|(low, high)| plan.plugs(*low, *high).next().is_none());
        match self {
            Backend::Jaccl => apart().map(|(low, high)| {
                format!(
                    "the backend jaccl needs a cable between any two hosts, and none connects {} and {}; \
                     --dot prints the cables, and --backend jaccl-ring needs a ring only",
                    plan.hosts[low].name, plan.hosts[high].name
                )
            }),
            Backend::Ring | Backend::JacclRing => ring_order(plan).is_none().then(|| {
                format!("the backend {name} needs cables in a ring of all hosts; --dot prints the cables")
            }),
        }
    }
}

/// Returns all pairs of hosts.
fn pairs(hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..hosts).flat_map(move |low| (low + 1..hosts).map(move |high| (low, high)))
}

/// Returns the text of MLX's hostfile.
pub(super) fn hostfile(plan: &Plan<'_>, with_rdma: bool, settings: &Settings<'_>) -> String {
    let backend = settings.backend.or_else(|| Backend::of(plan, with_rdma));
    let given: Vec<usize> = (0..plan.hosts.len()).collect();
    let order = match backend {
        Some(Backend::Ring | Backend::JacclRing) => ring_order(plan).unwrap_or(given),
        _ => given,
    };
    let ips = if backend.is_some_and(Backend::needs_rdma) { lan(plan, &order) } else { ring(plan, &order) };
    let rows = match backend {
        Some(Backend::Ring) => Vec::new(),
        Some(Backend::JacclRing) => neighbors_only(devices(plan, &order)),
        Some(Backend::Jaccl) => devices(plan, &order),
        None if with_rdma && plan.has_rdma() => devices(plan, &order),
        None => Vec::new(),
    };
    let host = |at: usize| {
        let mut host = json!({"ssh": plan.hosts[order[at]].name, "ips": ips[at]});
        if let Some(row) = rows.get(at) {
            host["rdma"] = row.iter().map(|names| cell(names)).collect();
        }
        host
    };
    let mut whole = json!({"hosts": (0..order.len()).map(host).collect::<Vec<Value>>()});
    if let Some(backend) = backend {
        whole["backend"] = backend.name().into();
    }
    whole["envs"] = settings.variables().map(|(key, value)| format!("{key}={value}")).collect();
    serde_json::to_string_pretty(&whole).map(|text| text + "\n").unwrap_or_default()
}

/// Returns the address of each host on the LAN.
fn lan(plan: &Plan<'_>, order: &[usize]) -> Vec<Vec<String>> {
    let address = |host: &usize| plan.lan_address(*host).map(|address| address.to_string());
    order.iter().map(|host| address(host).into_iter().collect()).collect()
}

/// Returns the addresses at which each host is reached from the one before it, equally many of all hosts.
fn ring(plan: &Plan<'_>, order: &[usize]) -> Vec<Vec<String>> {
    let before = order.iter().cycle().skip(order.len() - 1);
    let lan = lan(plan, order);
    let reached = |((host, before), lan): ((&usize, &usize), &Vec<String>)| {
        let cables = plan.plugs(*host, *before).filter_map(|(own, _)| own.address);
        let cables: Vec<String> = cables.map(|address| address.to_string()).collect();
        if cables.is_empty() { lan.clone() } else { cables }
    };
    let mut all: Vec<Vec<String>> = order.iter().zip(before).zip(&lan).map(reached).collect();
    let fewest = all.iter().map(Vec::len).min().unwrap_or_default().max(1);
    all.iter_mut().for_each(|addresses| addresses.truncate(fewest));
    all
}

/// Returns the devices of each host that lead to each host.
fn devices<'a>(plan: &'a Plan<'_>, order: &[usize]) -> Vec<Vec<Vec<&'a str>>> {
    order.iter().map(|from| order.iter().map(|to| plan.devices(*from, *to)).collect()).collect()
}

/// Removes the devices that lead to hosts that are no neighbors in the ring, and those beyond the fewest of a
/// pair of neighbors.
fn neighbors_only(mut rows: Vec<Vec<Vec<&str>>>) -> Vec<Vec<Vec<&str>>> {
    let hosts = rows.len();
    let next = |at: usize| (at + 1) % hosts;
    let fewest = (0..hosts).map(|at| rows[at][next(at)].len()).min().unwrap_or_default();
    for (from, row) in rows.iter_mut().enumerate() {
        for (to, names) in row.iter_mut().enumerate() {
            names.truncate(if next(from) == to || next(to) == from { fewest } else { 0 });
        }
    }
    rows
}

/// Returns a cell of the device matrix.
fn cell(devices: &[&str]) -> Value {
    match devices {
        [] => Value::Null,
        [one] => json!(one),
        several => json!(several),
    }
}

/// Returns an order of the hosts in which each has a cable to the next.
fn ring_order(plan: &Plan<'_>) -> Option<Vec<usize>> {
    let hosts = plan.hosts.len();
    // The search for a ring needs the number of cables only, so their names are free.
    let cell = |from, to| (0..plan.plugs(from, to).count()).map(|cable| format!("{to}.{cable}")).collect();
    let row = |from: usize| (0..hosts).map(|to| cell(from, to)).collect();
    let matrix = DeviceMatrix::from_rows((0..hosts).map(row).collect()).ok()?;
    Some(Wiring::from_matrix(&matrix).ring_order()?.into_iter().map(|host| host as usize).collect())
}
