//! The form for programs.

use super::{Host, devices};
use crate::commands::survey::Cables;
use serde_json::{Value, json};

/// Returns hosts with processors and devices, and the cables between them.
pub(super) fn json(hosts: &[Host<'_>], cables: &Cables) -> String {
    let host = |(position, host): (usize, &Host<'_>)| {
        json!({
            "name": host.name,
            "model": host.inventory.model,
            "memory_bytes": host.inventory.memory.total,
            "processors": host.inventory.processors,
            "devices": devices::devices(position, *host, cables),
        })
    };
    let whole = json!({
        "version": 1,
        "hosts": hosts.iter().enumerate().map(host).collect::<Vec<Value>>(),
        "shape": cables.shape(),
        "cables": cables.json(),
    });
    serde_json::to_string_pretty(&whole).map(|text| text + "\n").unwrap_or_default()
}
