//! Lines of text. A part with a single row stands in one line with it.

use super::{
    Host, devices,
    tree::{Cores, Node, Row, list, size, tree},
};
use crate::commands::survey::Cables;
use inventory::{PartKind, Processors};
use std::fmt::Write;

/// Returns the hosts, each with its parts, and the cables between them.
pub(super) fn text(hosts: &[Host<'_>], cables: &Cables) -> String {
    let mut text = String::new();
    for (position, host) in hosts.iter().enumerate() {
        let devices = devices::devices(position, *host, cables);
        let machine = tree(host.inventory.processors.as_ref(), devices);
        let _ = writeln!(text, "{}: {}", host.name, summary(*host));
        machine.rows.iter().for_each(|row| add_row(&mut text, row, 1));
        text.push('\n');
    }
    if hosts.len() > 1 {
        let _ = writeln!(text, "{}", cables.summary());
        cables.lines().iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    } else {
        text.pop();
    }
    text
}

/// Returns model, cores, threads, memory and source in one line.
pub(super) fn summary(host: Host<'_>) -> String {
    let inventory = host.inventory;
    let count = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    let of = |processors: &Processors| {
        let machine = &processors.machine;
        let cores = machine.all(PartKind::Core).len();
        format!("{}, {}", count(cores, "core"), count(machine.cpus.len(), "thread"))
    };
    let model = Some(inventory.model.clone()).filter(|model| !model.is_empty());
    let cores = inventory.processors.as_ref().map(of);
    let memory = inventory.memory.total.map(size);
    let source = inventory.processors.as_ref().map(|processors| format!("read by {}", processors.source));
    let parts: Vec<String> = [model, cores, memory, source].into_iter().flatten().collect();
    if parts.is_empty() { "nothing is known".to_owned() } else { parts.join(", ") }
}

fn add_row(text: &mut String, row: &Row, depth: usize) {
    let indent = "  ".repeat(depth);
    match row {
        Row::Node(node) => add_node(text, node, depth),
        Row::Cores(cores) => {
            let _ = writeln!(text, "{indent}{}", cores_line(cores));
        }
        Row::Device(device) => {
            let rate = device.rate().map_or(String::new(), |rate| format!(", {rate}"));
            let to = device.leads_to.as_ref().map_or(String::new(), |to| format!(" -> {to}"));
            let _ = writeln!(text, "{indent}{}{rate}{to}", device.title());
        }
    }
}

fn add_node(text: &mut String, node: &Node, depth: usize) {
    let (mut node, mut titles) = (node, Vec::new());
    loop {
        let label = node.label.as_ref().map_or(String::new(), |label| format!(" ({label})"));
        titles.push(format!("{}{label}", node.title));
        match node.rows.as_slice() {
            [Row::Node(inner)] => node = inner,
            _ => break,
        }
    }
    let _ = writeln!(text, "{}{}", "  ".repeat(depth), titles.join(" + "));
    node.rows.iter().for_each(|row| add_row(text, row, depth + 1));
}

fn cores_line(cores: &Cores) -> String {
    let mut threads: Vec<u32> = cores.threads.iter().flatten().copied().collect();
    threads.sort_unstable();
    let name = if threads.len() == 1 { "thread" } else { "threads" };
    let shape = match cores.threads.len() {
        1 => cores.shape.clone(),
        count => format!("{count} x ({})", cores.shape),
    };
    format!("{shape}: {name} {}", list(&threads))
}
