//! The parts of a machine with its devices, as rows. Like cores that follow each other are folded into one
//! row, with the caches that each has for itself.

use super::devices::Device;
use inventory::{Part, PartKind, Processors};

/// A row of a part.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    /// A part with rows of its own.
    Node(Node),
    /// Like cores.
    Cores(Cores),
    /// A device near the part.
    Device(Device),
}

/// A part with rows of its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) kind: PartKind,
    /// Kind, number and size.
    pub(super) title: String,
    /// Model of a package.
    pub(super) label: Option<String>,
    pub(super) rows: Vec<Row>,
}

/// Like cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    /// Caches and kind of each core: `L2 1 MiB + L1d 48 KiB + core`.
    pub(super) shape: String,
    /// Whether the machine has slower cores, too.
    pub(super) is_fast: bool,
    /// Threads of each core.
    pub(super) threads: Vec<Vec<u32>>,
}

/// Returns the machine, with devices. Without processors it has only these.
pub(super) fn tree(processors: Option<&Processors>, devices: Vec<Device>) -> Node {
    match processors {
        Some(processors) => node(&processors.machine, devices),
        None => node(&Part::default(), devices),
    }
}

fn node(part: &Part, devices: Vec<Device>) -> Node {
    let takes_devices = |part: &Part| {
        matches!(part.kind, PartKind::Package | PartKind::Numa | PartKind::Die | PartKind::Group)
    };
    let inner =
        |device: &Device| part.parts.iter().position(|inner| takes_devices(inner) && inner.has(&device.near));
    let mut given: Vec<Vec<Device>> = vec![Vec::new(); part.parts.len()];
    let mut own = Vec::new();
    for device in devices {
        match inner(&device) {
            Some(position) => given[position].push(device),
            None => own.push(device),
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for (part, devices) in part.parts.iter().zip(given) {
        match core(part) {
            Some(core) => add_core(&mut rows, core),
            None => rows.push(Row::Node(node(part, devices))),
        }
    }
    rows.extend(own.into_iter().map(Row::Device));
    Node { kind: part.kind, title: title(part), label: part.label.clone(), rows }
}

/// Returns a core with the caches around it, if the part has nothing else.
fn core(part: &Part) -> Option<Cores> {
    let is_private = matches!(part.kind, PartKind::L1 | PartKind::L2 | PartKind::L3 | PartKind::L4);
    match (part.kind, part.parts.as_slice()) {
        (PartKind::Core, _) => Some(Cores {
            shape: part.label.as_ref().map_or("core".to_owned(), |label| format!("{label} core")),
            is_fast: part.label.as_deref() == Some("performance"),
            threads: vec![part.cpus.clone()],
        }),
        (_, [inner]) if is_private => {
            let core = core(inner)?;
            Some(Cores { shape: format!("{} + {}", title(part), core.shape), ..core })
        }
        _ => None,
    }
}

fn add_core(rows: &mut Vec<Row>, core: Cores) {
    match rows.last_mut() {
        Some(Row::Cores(last)) if last.shape == core.shape => last.threads.extend(core.threads),
        _ => rows.push(Row::Cores(core)),
    }
}

/// Returns kind, number and size of a part.
fn title(part: &Part) -> String {
    let number = part.number.map_or(String::new(), |number| format!(" {number}"));
    let size = part.bytes.map_or(String::new(), |bytes| match part.kind {
        PartKind::Numa => format!(", {}", size(bytes)),
        _ => format!(" {}", size(bytes)),
    });
    format!("{}{number}{size}", part.kind.name())
}

/// Formats a size: `22.5 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "B"));
    let value = bytes as f64 / unit as f64;
    let text = if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {name}")
}

/// Formats a list of threads as Linux does: `0-3,8`.
pub(super) fn list(threads: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for thread in threads {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *thread => *last = *thread,
            _ => ranges.push((*thread, *thread)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}
