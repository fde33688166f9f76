//! Probes that ask a device for what it is: attributes, port, addresses, capabilities.

use super::{finding, open};
use crate::commands::selftest::{
    finding::{Probed, Trouble, broken},
    message::step,
};
use std::time::{Duration, Instant};
use transport::verbs::{Cause, DeviceAttr, Library, PortState, TransportType, find_gid, gigabits};

pub(super) fn attributes(library: &Library, device: &str, _: bool) -> Probed {
    step("opening the device");
    let context = library.open(device)?;
    let info = context.info();
    let transport = match info.transport_type {
        TransportType::THUNDERBOLT => "Thunderbolt".to_owned(),
        other => format!("{other:?}"),
    };
    let kind = format!("transport {transport}, node {:?}", info.node_type);
    let Some(limits) = context.attributes() else {
        return Err(broken(format!("{kind}; the device reports no limits")));
    };
    let text = format!(
        "{kind}; {} queue pairs, depth {}, {} completion queues, {} regions",
        limits.max_qp, limits.max_qp_wr, limits.max_cq, limits.max_mr
    );
    finding(text, limit_lines(limits))
}

/// Returns the limits as the device reports them, without the identifiers of the hardware.
fn limit_lines(limits: &DeviceAttr) -> Vec<String> {
    let firmware: Vec<u8> = limits.fw_ver.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    vec![
        format!("firmware {}, vendor {}", String::from_utf8_lossy(&firmware), limits.vendor_id),
        format!("max_qp {}, max_qp_wr {}, max_sge {}", limits.max_qp, limits.max_qp_wr, limits.max_sge),
        format!("max_cq {}, max_cqe {}, max_srq {}", limits.max_cq, limits.max_cqe, limits.max_srq),
        format!("max_mr {}, max_mr_size {}, max_pd {}", limits.max_mr, limits.max_mr_size, limits.max_pd),
        format!("max_qp_rd_atom {}, phys_port_cnt {}", limits.max_qp_rd_atom, limits.phys_port_cnt),
        format!("device_cap_flags {:#x}, page_size_cap {:#x}", limits.device_cap_flags, limits.page_size_cap),
    ]
}

pub(super) fn port(library: &Library, device: &str, _: bool) -> Probed {
    step("opening the device");
    let context = library.open(device)?;
    step("asking for the port");
    let port = context.port()?;
    let rate = gigabits(&port).map_or("unknown rate".to_owned(), |rate| format!("{rate} Gb/s"));
    let mtu = port.active_mtu.bytes().unwrap_or_default();
    let text = format!("{:?}, {rate}, MTU {mtu}, longest message {} bytes", port.state, port.max_msg_sz);
    if port.state != PortState::ACTIVE {
        return Err(Trouble::Unknown(text, Cause::PortDown.remedy().to_owned()));
    }
    finding(text, vec![format!("{port:?}")])
}

/// Asks for the state of the port and for pending events, as often as the driver does in a second.
pub(super) fn port_queries(library: &Library, device: &str, _: bool) -> Probed {
    const QUERIES: u32 = 50;
    /// Time that a query may take on average.
    const SLOW: Duration = Duration::from_millis(2);
    step("opening the device");
    let context = library.open(device)?;
    step("asking for the port and for events");
    let (began, mut events) = (Instant::now(), 0);
    for _ in 0..QUERIES {
        context.port()?;
        events += u32::from(context.next_event().is_some());
    }
    let each = began.elapsed() / QUERIES;
    let text = format!("{} us each, {events} events were pending", each.as_micros());
    if each > SLOW {
        return Err(broken(text));
    }
    finding(text, Vec::new())
}

pub(super) fn gid(library: &Library, device: &str, _: bool) -> Probed {
    step("opening the device");
    let context = library.open(device)?;
    step("reading the GID table");
    if context.port()?.state != PortState::ACTIVE {
        let text = "the port is not active".to_owned();
        return Err(Trouble::Unknown(text, Cause::PortDown.remedy().to_owned()));
    }
    let table = context.gids();
    let list: Vec<String> = table.iter().map(|(index, gid)| format!("[{index}] {gid}")).collect();
    if let Some(cause) = Cause::of_addresses(&table, context.is_thunderbolt()) {
        let text = format!("{}: {}", cause.what(), list.join(", "));
        return Err(Trouble::Fail(text, cause.remedy().to_owned()));
    }
    let (index, gid) = find_gid(&context, None, Duration::ZERO, &mut |_| ())?;
    finding(format!("{gid} at index {index} of {}", list.len()), list)
}

pub(super) fn capabilities(library: &Library, device: &str, _: bool) -> Probed {
    let (_, found) = open(library, device)?;
    let way = if found.one_sided { "remote writes" } else { "sends into posted receives, in frames" };
    let text = format!(
        "{:?}, {way}; {} queue pairs and {} regions are counted on, events: {}, inline: {} bytes",
        found.service, found.max_queue_pairs, found.max_regions, found.events, found.max_inline
    );
    finding(text, vec![format!("{found:?}")])
}
