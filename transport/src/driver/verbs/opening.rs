//! Opening devices, before memory is registered with them.
//!
//! Those that the matrix names for a rank, or all whose port is up: each with its address, and what it can do found out.
//! Every failure names the rank, the device and the remedy.

use super::{
    VerbsConfig,
    introduction::{Device, gid_text},
    sharing::Sharing,
};
use crate::{
    TransportError,
    verbs::{Cause, Context, DeviceCapabilities, Domain, Library, PortState, QpType, VerbsError, find_gid},
};

/// A device before memory is registered with it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) domain: Domain,
    pub(super) abilities: DeviceCapabilities,
    pub(super) card: Device,
    pub(super) gid_index: u8,
}

/// Opens the devices that are to be used: those that the matrix names for us, or all whose port is up.
pub(super) fn open_devices(
    library: &Library,
    config: &VerbsConfig,
    sharing: &Sharing,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Opened>, TransportError> {
    let rank = sharing.rank();
    let named = config.matrix.as_ref().map(|matrix| sharing.named(rank, matrix));
    let wanted = match &named {
        Some(names) => names.clone(),
        None => library.devices()?.into_iter().map(|device| device.name).collect(),
    };
    // A rank that others of its host take messages for needs none.
    if named.is_some() && wanted.is_empty() && sharing.has_neighbours() {
        return Ok(Vec::new());
    }
    if wanted.is_empty() {
        return Err(library.no_devices(None).into());
    }
    let mut opened = Vec::new();
    let mut down = Vec::new();
    for name in wanted {
        let context = library.open(&name).map_err(|error| of_matrix(rank, named.is_some(), error))?;
        if context.port()?.state != PortState::ACTIVE {
            down.push(name);
            continue;
        }
        opened.push(open_device(context, config, say)?);
    }
    if opened.is_empty() {
        let (ports, remedy) = (down.join(", "), Cause::PortDown.remedy());
        let what = format!("no RDMA device can be used: the port is down ({ports}); {remedy}");
        return Err(TransportError::Wiring { rank, what });
    }
    Ok(opened)
}

/// A name that no device has comes from the matrix, if there is one.
fn of_matrix(rank: u32, is_given: bool, error: VerbsError) -> TransportError {
    match error {
        VerbsError::UnknownDevice { .. } if is_given => {
            TransportError::Wiring { rank, what: format!("the device matrix names an {error}") }
        }
        other => other.into(),
    }
}

fn open_device(
    context: Context,
    config: &VerbsConfig,
    say: &mut dyn FnMut(&str),
) -> Result<Opened, TransportError> {
    let (gid_index, gid) = find_gid(&context, config.patience, say)?;
    let domain = context.domain()?;
    let abilities = DeviceCapabilities::probe(&context, &domain)?;
    let port = context.port()?;
    let card = Device {
        name: context.name().to_owned(),
        gid: gid_text(gid),
        lid: port.lid,
        mtu: port.active_mtu.0,
        reliable: abilities.service == QpType::RC,
        one_sided: abilities.one_sided && abilities.write_imm,
        max_message_bytes: abilities.max_message_bytes.into(),
        frame_depth: abilities.frame_bytes.map(|_| abilities.depth),
    };
    Ok(Opened { context, domain, abilities, card, gid_index })
}
