//! Opens devices, before memory is registered with them.
//!
//! A rank opens the devices that the device matrix names for it, or all selected devices whose port is up. It
//! determines the address (GID) and the capabilities of each. Every error names the rank, the device and the
//! remedy.
//!
//! A port that has just come up may have no address yet. The wait for it has parts, between which ranks hear
//! of each other, so that no rank waits for a port that another rank has no use for.

use super::{
    DeviceSelection, VerbsConfig,
    descriptions::{Device, gid_text},
    host_map::HostMap,
};
use crate::{
    TransportError,
    verbs::{
        AddressWait, Cause, Context, DeviceCapabilities, Domain, Gid, Library, PortState, QpType, VerbsError,
    },
};
use events::{target, tracing::info};
use std::{collections::BTreeSet, time::Duration};

/// Part of a wait for addresses, after which the ranks hear of each other.
const PART: Duration = Duration::from_millis(250);

/// Open device, before memory is registered with it.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) context: Context,
    pub(super) domain: Domain,
    pub(super) capabilities: DeviceCapabilities,
    pub(super) description: Device,
    /// The source address of connections, and its index.
    pub(super) gid: (u8, Gid),
}

/// Devices of a rank that are open, and the names of those that are left out because their ports are down.
#[derive(Debug, Default)]
pub(super) struct OpenedDevices {
    pub(super) opened: Vec<OpenDevice>,
    pub(super) down: Vec<String>,
}

/// The wait of a rank for the addresses of its devices.
#[derive(Debug)]
pub(super) struct DeviceWait {
    addresses: AddressWait,
    /// Devices whose port was up when the wait began, or came up since. They are waited for even if the port
    /// goes down meanwhile.
    were_up: BTreeSet<String>,
}

impl DeviceWait {
    pub(super) fn new(config: &VerbsConfig) -> DeviceWait {
        DeviceWait {
            addresses: AddressWait::new(config.address_timeout, config.accepts_link_local),
            were_up: BTreeSet::new(),
        }
    }
}

/// Opens the devices of this rank: those that the matrix names for it, or all, without those whose port is
/// down. Returns `None` after a part of the wait for an address.
pub(super) fn open_devices(
    library: &Library,
    config: &VerbsConfig,
    hosts: &HostMap,
    wait: &mut DeviceWait,
    on_wait: &mut dyn FnMut(&str),
) -> Result<Option<OpenedDevices>, TransportError> {
    let rank = hosts.rank();
    let from_matrix = config.matrix.as_ref().map(|matrix| hosts.matrix_devices(rank, matrix));
    let wanted = match &from_matrix {
        Some(names) => names.clone(),
        None => select(library, config.devices.as_ref(), rank)?,
    };
    // A rank needs no device if other ranks of its host receive messages for it.
    if from_matrix.is_some() && wanted.is_empty() && hosts.has_local_peers() {
        return Ok(Some(OpenedDevices::default()));
    }
    if wanted.is_empty() {
        return Err(library.no_devices(None).into());
    }
    let OpenedDevices { mut opened, mut down } = OpenedDevices::default();
    for name in wanted {
        let context =
            library.open(&name).map_err(|error| matrix_error(rank, from_matrix.is_some(), error))?;
        let is_up = context.port()?.state == PortState::ACTIVE;
        if !is_up && !wait.were_up.contains(&name) {
            info!(target: target::VERBS, rank, "device {name} is left out: its port is down");
            down.push(name);
            continue;
        }
        wait.were_up.insert(name);
        let Some(gid) = wait.addresses.look(&context, config.gid_index, PART, on_wait)? else {
            return Ok(None);
        };
        let device = open_device(context, gid)?;
        tell_device(rank, &device);
        opened.push(device);
    }
    if opened.is_empty() {
        let (ports, remedy) = (down.join(", "), Cause::PortDown.remedy());
        let what = format!("no RDMA device can be used: the port is down ({ports}); {remedy}");
        return Err(TransportError::Wiring { rank, what });
    }
    Ok(Some(OpenedDevices { opened, down }))
}

/// Returns the names of the library's devices that the user has selected.
fn select(
    library: &Library,
    selection: Option<&DeviceSelection>,
    rank: u32,
) -> Result<Vec<String>, TransportError> {
    let all: Vec<String> = library.devices()?.into_iter().map(|device| device.name).collect();
    let Some(selection) = selection.filter(|_| !all.is_empty()) else { return Ok(all) };
    let (selected, others): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|name| selection.selects(name));
    if selected.is_empty() {
        let others = others.join(", ");
        let what = format!("TBCCL_RDMA_DEVICES={selection} selects none of the RDMA devices {others}");
        return Err(TransportError::Wiring { rank, what });
    }
    Ok(selected)
}

/// Tells the address and the abilities of a device in use.
fn tell_device(rank: u32, device: &OpenDevice) {
    let Device { name, gid, mtu, reliable, one_sided, queue_pairs, .. } = &device.description;
    info!(target: target::VERBS, rank,
        "device {name}: GID {} {gid}, MTU {} B, {}, {}, {queue_pairs} queue pairs", device.gid.0,
        128u32 << *mtu, if *reliable { "reliable connections" } else { "unreliable connections" },
        if *one_sided { "remote write" } else { "no remote write" });
}

/// Whether the port of one of these devices is up.
pub(super) fn is_any_up(library: &Library, names: &[String]) -> bool {
    let port = |name: &String| library.open(name).and_then(|context| context.port());
    names.iter().any(|name| port(name).is_ok_and(|port| port.state == PortState::ACTIVE))
}

/// Attributes an unknown device name to the matrix, if there is one.
fn matrix_error(rank: u32, has_matrix: bool, error: VerbsError) -> TransportError {
    match error {
        VerbsError::UnknownDevice { .. } if has_matrix => {
            TransportError::Wiring { rank, what: format!("the device matrix names an {error}") }
        }
        other => other.into(),
    }
}

fn open_device(context: Context, gid: (u8, Gid)) -> Result<OpenDevice, TransportError> {
    let domain = context.domain()?;
    let capabilities = DeviceCapabilities::probe(&context, &domain)?;
    let port = context.port()?;
    let description = Device {
        name: context.name().to_owned(),
        gid: gid_text(gid.1),
        lid: port.lid,
        mtu: port.active_mtu.0,
        reliable: capabilities.service == QpType::RC,
        one_sided: capabilities.one_sided && capabilities.write_imm,
        max_message_bytes: capabilities.max_message_bytes.into(),
        frame_depth: capabilities.frame_bytes.map(|_| capabilities.depth),
        queue_pairs: capabilities.max_queue_pairs,
    };
    Ok(OpenDevice { context, domain, capabilities, description, gid })
}
