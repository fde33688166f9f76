//! The plan, as text and as JSON.

use super::{
    files::summary,
    plan::{Plan, Plug},
};
use crate::commands::{page::Picture, survey::Cables};
use serde_json::{Value, json};
use std::fmt::Write;

/// Returns the plan for people.
pub(super) fn text(plan: &Plan<'_>, problem: Option<&str>) -> String {
    let mut text = format!("{}\n", summary(plan));
    let name = |plug: &Plug| {
        let or_dash = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
        let address = plug.address.map_or("-".to_owned(), |address| address.to_string());
        let host = plan.hosts[plug.host].name;
        format!("{host} {} ({}, {}, {address})", plug.port, or_dash(&plug.interface), or_dash(&plug.device))
    };
    let rows: Vec<[String; 2]> =
        plan.wires.iter().map(|wire| [name(&wire.ends[0]), name(&wire.ends[1])]).collect();
    let width = rows.iter().map(|row| row[0].chars().count()).max().unwrap_or_default();
    for (wire, [low, high]) in plan.wires.iter().zip(&rows) {
        let rate = wire.gigabits.map_or(String::new(), |rate| format!("  {rate} Gb/s"));
        let _ = writeln!(text, "  {low:<width$}  --  {high}{rate}");
    }
    for remark in &plan.remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    text.push_str(&commands(plan));
    if let Some(problem) = problem {
        let _ = writeln!(text, "\nproblem: {problem}");
    }
    text
}

/// Returns the commands of all hosts.
pub(super) fn commands(plan: &Plan<'_>) -> String {
    if !plan.has_changes() {
        return "no host needs a command\n".to_owned();
    }
    let mut text = String::new();
    for (at, host) in plan.hosts.iter().enumerate().filter(|(at, _)| !plan.changes[*at].is_empty()) {
        let _ = writeln!(text, "\non {}:", host.name);
        plan.commands(at).iter().for_each(|command| text.push_str(&format!("  {command}\n")));
    }
    text
}

/// Returns a picture of hosts, ports and cables.
pub(super) fn svg(plan: &Plan<'_>) -> String {
    let mut picture = Picture::new("cables between hosts", 0.0);
    Cables::of(plan.hosts.iter().map(|host| (host.name, host.inventory))).draw(&mut picture);
    picture.to_svg()
}

/// Returns the cables as a graph in the language of Graphviz. Its nodes are the hosts by position.
pub(super) fn dot(plan: &Plan<'_>) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text = "graph cables {\n  node [shape=box];\n".to_owned();
    for (at, host) in plan.hosts.iter().enumerate() {
        let _ = writeln!(text, "  {at} [label={}];", quoted(host.name));
    }
    for wire in &plan.wires {
        let [low, high] = &wire.ends;
        let name = |plug: &Plug| plug.interface.clone().unwrap_or_else(|| plug.port.clone());
        let label = quoted(&format!("{}/{}", name(low), name(high)));
        let _ = writeln!(text, "  {} -- {} [label={label}];", low.host, high.host);
    }
    text + "}\n"
}

/// Returns the plan for programs.
pub(super) fn json(plan: &Plan<'_>, hostfile: &str, problem: Option<&str>) -> String {
    let plug = |plug: &Plug| {
        json!({
            "host": plan.hosts[plug.host].name, "port": plug.port, "interface": plug.interface,
            "device": plug.device, "address": plug.address,
        })
    };
    let wires = plan
        .wires
        .iter()
        .map(|wire| json!({"ends": wire.ends.each_ref().map(plug), "gigabits": wire.gigabits}));
    let hosts = plan.hosts.iter().enumerate();
    let hosts = hosts.map(|(at, host)| json!({"name": host.name, "commands": plan.commands(at)}));
    let whole = json!({
        "version": 1,
        "shape": plan.shape.name(),
        "cables": wires.collect::<Vec<Value>>(),
        "hosts": hosts.collect::<Vec<Value>>(),
        "remarks": plan.remarks,
        "problem": problem,
        "hostfile": hostfile,
    });
    serde_json::to_string_pretty(&whole).map(|text| text + "\n").unwrap_or_default()
}
