//! The hostfiles: tbccl's TOML and MLX's JSON.

use super::plan::Plan;
use serde_json::{Value, json};
use std::fmt::Write;
use topology::{DeviceMatrix, Wiring};

/// Returns the text of tbccl's hostfile.
pub(super) fn native(plan: &Plan<'_>, with_rdma: bool) -> String {
    let mut text = format!("# Written by `tbccl config`: {}.\n", summary(plan));
    for (at, host) in plan.hosts.iter().enumerate() {
        let _ = writeln!(text, "\n[[host]]\nssh = {}", quoted(host.name));
        let addresses: Vec<String> = addresses(plan, at).iter().map(|address| quoted(address)).collect();
        let _ = writeln!(text, "addresses = [{}]", addresses.join(", "));
        let devices = (0..plan.hosts.len()).filter_map(|to| {
            let names: Vec<String> = plan.devices(at, to).into_iter().map(quoted).collect();
            let list = if names.len() == 1 { names[0].clone() } else { format!("[{}]", names.join(", ")) };
            (!names.is_empty()).then(|| format!("{} = {list}", quoted(plan.hosts[to].name)))
        });
        let devices: Vec<String> = devices.filter(|_| with_rdma).collect();
        if !devices.is_empty() {
            let _ = writeln!(text, "rdma = {{ {} }}", devices.join(", "));
        }
    }
    text
}

/// Returns one line about hosts and cables.
pub(super) fn summary(plan: &Plan<'_>) -> String {
    match plan.wires.len() {
        0 => format!("{} hosts, on the LAN", plan.hosts.len()),
        1 => format!("{} hosts, 1 cable: {}", plan.hosts.len(), plan.shape.name()),
        cables => format!("{} hosts, {cables} cables: {}", plan.hosts.len(), plan.shape.name()),
    }
}

/// Returns a text in quotation marks, as TOML and JSON have it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the addresses of a host. The first is the one at which all other hosts reach it: between two hosts
/// the cable's, among more the LAN's.
fn addresses(plan: &Plan<'_>, host: usize) -> Vec<String> {
    let others = (0..plan.hosts.len()).filter(|other| *other != host);
    let cables = others.flat_map(|other| plan.plugs(host, other)).filter_map(|(own, _)| own.address);
    let cables: Vec<String> = cables.map(|address| address.to_string()).collect();
    let lan: Vec<String> = plan.lan_address(host).map(|address| address.to_string()).into_iter().collect();
    if plan.hosts.len() == 2 { [cables, lan].concat() } else { [lan, cables].concat() }
}

/// Returns MLX's hostfile: with a device matrix for its backend `jaccl`, or in the order of a ring of cables
/// for its backend `ring`, each host with the addresses at which the host before it reaches it.
pub(super) fn mlx(plan: &Plan<'_>, with_rdma: bool) -> String {
    let all = 0..plan.hosts.len();
    let hosts: Vec<Value> = if with_rdma && plan.has_rdma() {
        let row = |from: usize| all.clone().map(|to| cell(&plan.devices(from, to))).collect::<Vec<_>>();
        let lan = |at| plan.lan_address(at).map(|address| address.to_string());
        let host = |at: usize| {
            let ips: Vec<String> = lan(at).into_iter().collect();
            json!({"ssh": plan.hosts[at].name, "ips": ips, "rdma": row(at)})
        };
        all.clone().map(host).collect()
    } else {
        let order = ring_order(plan).unwrap_or_else(|| all.clone().collect());
        let before = |at: usize| order[(at + order.len() - 1) % order.len()];
        let ips = |at: usize, host: usize| {
            let cables = plan.plugs(host, before(at)).filter_map(|(own, _)| own.address);
            let cables: Vec<String> = cables.map(|address| address.to_string()).collect();
            let lan = plan.lan_address(host).map(|address| address.to_string());
            if cables.is_empty() { lan.into_iter().collect() } else { cables }
        };
        let host =
            |(at, host): (usize, &usize)| json!({"ssh": plan.hosts[*host].name, "ips": ips(at, *host)});
        order.iter().enumerate().map(host).collect()
    };
    serde_json::to_string_pretty(&hosts).map(|text| text + "\n").unwrap_or_default()
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
