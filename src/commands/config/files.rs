//! tbccl's hostfile, in TOML.

use super::{mlx::Settings, plan::Plan};
use serde_json::Value;
use std::fmt::Write;

/// Returns the text of tbccl's hostfile.
pub(super) fn native(plan: &Plan<'_>, with_rdma: bool, settings: &Settings<'_>) -> String {
    let mut text = format!("# Written by `tbccl config`: {}.\n", summary(plan));
    if let Some(backend) = settings.backend {
        let _ = writeln!(text, "backend = {}", quoted(backend.name()));
    }
    if !settings.env.is_empty() {
        text.push_str("\n[env]\n");
    }
    for (key, value) in settings.variables() {
        let _ = writeln!(text, "{} = {}", quoted(key), quoted(value));
    }
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
