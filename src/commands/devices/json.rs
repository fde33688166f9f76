//! The device list as JSON, with more detail than the table.

use super::query::{Device, DeviceList, protocol, services};
use serde::Serialize;
use transport::verbs::Gid;

#[derive(Serialize)]
struct JsonOutput<'a> {
    library: &'a str,
    devices: Vec<JsonDevice<'a>>,
    /// The reason why the list is empty.
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonDevice<'a> {
    name: &'a str,
    guid: String,
    node_type: String,
    transport: String,
    state: Option<&'static str>,
    mtu: Option<u32>,
    gigabits: Option<f64>,
    /// The GID that connections use.
    gid: Option<Address>,
    gids: Vec<Address>,
    protocol: Option<String>,
    abilities: Option<JsonCapabilities>,
    problems: &'a [String],
}

#[derive(Serialize)]
struct Address {
    index: u8,
    gid: String,
}

/// The fields of [`transport::verbs::DeviceCapabilities`].
#[derive(Serialize)]
struct JsonCapabilities {
    services: Vec<&'static str>,
    one_sided: bool,
    write_imm: bool,
    events: bool,
    late_registration: bool,
    max_inline: u32,
    max_sge: u32,
    max_message_bytes: u32,
    frame_bytes: Option<u32>,
    max_regions: u32,
    max_queue_pairs: u32,
    region_line: Option<u64>,
    depth: u32,
    max_depth: u32,
}

/// Returns the list as one JSON object.
pub(super) fn of(list: &DeviceList) -> String {
    let whole = JsonOutput {
        library: &list.library,
        devices: list.devices.iter().map(one).collect(),
        problem: list.no_devices.as_deref(),
    };
    serde_json::to_string_pretty(&whole).map(|text| text + "\n").unwrap_or_default()
}

fn one(device: &Device) -> JsonDevice<'_> {
    let address = |&(index, gid): &(u8, Gid)| Address { index, gid: gid.to_string() };
    JsonDevice {
        name: &device.info.name,
        guid: format!("{:016x}", device.info.guid),
        node_type: format!("{:?}", device.info.node_type),
        transport: match device.info.transport_type {
            transport::verbs::TransportType::THUNDERBOLT => "THUNDERBOLT".into(),
            other => format!("{other:?}"),
        },
        state: device.port.map(|port| port.state),
        mtu: device.port.and_then(|port| port.mtu),
        gigabits: device.port.and_then(|port| port.gigabits),
        gid: device.gid.as_ref().map(address),
        gids: device.gids.iter().map(address).collect(),
        protocol: device.abilities.as_ref().map(protocol),
        abilities: device.abilities.as_ref().map(|found| JsonCapabilities {
            services: services(found),
            one_sided: found.one_sided,
            write_imm: found.write_imm,
            events: found.events,
            late_registration: found.late_registration,
            max_inline: found.max_inline,
            max_sge: found.max_sge,
            max_message_bytes: found.max_message_bytes,
            frame_bytes: found.frame_bytes,
            max_regions: found.max_regions,
            max_queue_pairs: found.max_queue_pairs,
            region_line: found.region_line,
            depth: found.depth,
            max_depth: found.max_depth,
        }),
        problems: &device.problems,
    }
}
