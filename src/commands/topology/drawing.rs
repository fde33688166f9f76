//! Boxes within boxes: a host has packages, memories, caches and cores in it, and devices with their cables.

use super::{
    Host, devices,
    text::summary,
    tree::{Cores, Node, Row, list, tree},
};
use crate::commands::{
    page::{Boxed, Picture},
    survey::Cables,
};
use inventory::PartKind;

/// Width of the drawing. On a telephone its letters have the size of the page's.
const WIDTH: f64 = 440.0;

/// Returns the drawing of hosts, below the cables between them.
pub(super) fn svg(hosts: &[Host<'_>], cables: &Cables) -> String {
    let names: Vec<&str> = hosts.iter().map(|host| host.name).collect();
    let mut picture = Picture::new(&format!("topology of {}", names.join(", ")), WIDTH);
    if hosts.len() > 1 {
        cables.draw(&mut picture);
    }
    for (position, host) in hosts.iter().enumerate() {
        let devices = devices::devices(position, *host, cables);
        let machine = tree(host.inventory.processors.as_ref(), devices);
        let lines = vec![host.name.to_owned(), summary(*host)];
        picture.add_boxes(Boxed::new("machine", lines).with(rows(&machine.rows)));
    }
    picture.to_svg()
}

fn rows(rows: &[Row]) -> Vec<Boxed> {
    rows.iter().flat_map(row).collect()
}

fn row(row: &Row) -> Vec<Boxed> {
    match row {
        Row::Node(node) => vec![of_node(node)],
        Row::Cores(cores) => vec![of_cores(cores)],
        Row::Device(device) => {
            let own = Boxed::new("device", vec![device.title()]);
            match &device.leads_to {
                None => {
                    let lines = [Some(device.title()), device.rate()].into_iter().flatten().collect();
                    vec![Boxed::new("device", lines)]
                }
                Some(to) => {
                    let rate = device.rate().unwrap_or_else(|| "cable".to_owned());
                    vec![own.with_cable(rate), Boxed::new("remote", vec![to.clone()])]
                }
            }
        }
    }
}

fn of_node(node: &Node) -> Boxed {
    let class = match node.kind {
        PartKind::Machine => "machine",
        PartKind::Package | PartKind::Die | PartKind::Group => "package",
        PartKind::Numa => "memory",
        PartKind::L4 | PartKind::L3 | PartKind::L2 | PartKind::L1 => "cache",
        PartKind::Core => "core",
    };
    let lines = [Some(node.title.clone()), node.label.clone()].into_iter().flatten().collect();
    Boxed::new(class, lines).with(rows(&node.rows))
}

/// Returns like cores: a box for each, with its threads.
fn of_cores(cores: &Cores) -> Boxed {
    let class = if cores.is_fast { "core fast" } else { "core" };
    let inner = cores.threads.iter().map(|threads| Boxed::new(class, vec![list(threads)]));
    let title = match cores.threads.len() {
        1 => cores.shape.clone(),
        count => format!("{count} x {}", cores.shape),
    };
    Boxed::new("cores", vec![title]).with(inner)
}
