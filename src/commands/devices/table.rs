//! The device table: one line per device, followed by the problems.

use super::query::{Device, protocol, services};
use std::fmt::Write;

const HEAD: [&str; 9] = ["device", "state", "GID", "at", "MTU", "Gb/s", "services", "QPs", "regions"];

/// Returns the table and the problems.
pub(super) fn of(devices: &[Device]) -> String {
    let rows: Vec<[String; 9]> = devices.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEAD[column].len()]).max().unwrap_or_default()
    };
    let mut text = String::new();
    let mut line = |cells: [&str; 9], last: &str| {
        for (column, cell) in cells.into_iter().enumerate() {
            let width = width(column);
            // Names are aligned left, numbers right.
            let _ = match column {
                0..=2 | 6 => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        text.push_str(last);
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(HEAD, "protocol");
    for (row, device) in rows.iter().zip(devices) {
        let last = device.abilities.as_ref().map(protocol).unwrap_or_else(|| "-".into());
        line(row.each_ref().map(String::as_str), &last);
    }
    for problem in devices.iter().flat_map(|device| &device.problems) {
        let _ = writeln!(text, "{problem}");
    }
    text
}

fn row(device: &Device) -> [String; 9] {
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
    let abilities = device.abilities.as_ref();
    [
        device.info.name.clone(),
        or_dash(device.port.map(|port| port.state.to_owned())),
        or_dash(device.gid.map(|(_, gid)| gid.to_string())),
        or_dash(device.gid.map(|(index, _)| index.to_string())),
        or_dash(device.port.and_then(|port| port.mtu).map(|mtu| mtu.to_string())),
        or_dash(device.port.and_then(|port| port.gigabits).map(|gigabits| gigabits.to_string())),
        or_dash(abilities.map(|abilities| services(abilities).join(", "))),
        or_dash(abilities.map(|abilities| abilities.max_queue_pairs.to_string())),
        or_dash(abilities.map(|abilities| abilities.max_regions.to_string())),
    ]
}
