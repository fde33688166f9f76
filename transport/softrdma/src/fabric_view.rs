//! The fabric as this process's node sees it: ports, the way from one to another, and addresses.

use crate::{
    control::Control,
    fabric::{Device, Fabric, GID_TABLE_LEN},
    link_model::{Lane, LinkModel},
    profile::Profile,
    shm::SendSlot,
};
use verbs_sys::{Gid, Grh};

/// A fabric, and which node of it we are.
#[derive(Debug)]
pub(crate) struct FabricView {
    pub(crate) fabric: Fabric,
    pub(crate) node: usize,
}

/// The way from one port to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire<'a> {
    /// The cable in between; none when a port talks to itself.
    pub(crate) cable: Option<Way<'a>>,
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    pub(crate) lane: &'a Lane,
    /// The other direction.
    back: &'a Lane,
    pub(crate) model: &'a LinkModel,
    pub(crate) direction: u64,
}

impl<'a> Way<'a> {
    /// The way in the other direction.
    pub(crate) fn back(self) -> Way<'a> {
        Way { lane: self.back, back: self.lane, model: self.model, direction: 1 - self.direction }
    }

    /// Counts a message if the cable is ideal, and says whether it is.
    #[inline]
    pub(crate) fn count_if_ideal(&self, bytes: u32) -> bool {
        let is_ideal = self.model.is_ideal();
        if is_ideal {
            self.lane.count(u64::from(bytes), crate::link_model::Delivery::Intact);
        }
        is_ideal
    }
}

impl FabricView {
    /// The device of a port, by the port's number.
    #[inline]
    pub(crate) fn device(&self, port: u32) -> &Device {
        // Numbers of ports come from this process's own queue pairs, or from peers' files: any number must
        // do.
        &self.fabric.devices[port as usize % self.fabric.devices.len()]
    }

    #[inline]
    pub(crate) fn profile(&self, port: u32) -> &'static Profile {
        self.device(port).profile
    }

    /// Whether there is a link at this port.
    pub(crate) fn has_link(&self, control: &Control, port: u32) -> bool {
        control.has_link(&self.fabric, self.device(port))
    }

    /// The way between two ports, when it is open: they are one port, or one cable connects them.
    #[inline]
    pub(crate) fn wire<'a>(&'a self, control: &'a Control, from: u32, to: u32) -> Option<Wire<'a>> {
        let device = self.device(from);
        if !control.is_up(device) {
            return None;
        }
        if from == to {
            return Some(Wire { cable: None });
        }
        let end = device.cable_end?;
        let cable = &self.fabric.cables[end.cable];
        let is_connected = cable.ports[1 - end.side] == to as usize && control.is_up(self.device(to));
        let lanes = &control.cables[end.cable].lanes;
        let (lane, back) = (&lanes[end.side], &lanes[1 - end.side]);
        let way = Way { lane, back, model: &cable.model, direction: end.side as u64 };
        is_connected.then_some(Wire { cable: Some(way) })
    }

    /// Whether the cable at a port takes time.
    pub(crate) fn is_timed(&self, port: u32) -> bool {
        let cable = self.device(port).cable_end.map(|end| &self.fabric.cables[end.cable]);
        cable.is_some_and(|cable| cable.model.is_timed())
    }

    /// The table of addresses of a port.
    pub(crate) fn gids(&self, control: &Control, port: u32) -> [Gid; GID_TABLE_LEN] {
        control.gids(self.device(port), control.age(crate::clock::now()))
    }

    /// The port with an address, as far as the port `from` can see: itself, or the one at the other end of
    /// its cable.
    pub(crate) fn find(&self, control: &Control, from: u32, address: Gid) -> Option<u32> {
        let peer = self.fabric.peer(self.device(from)).map(|device| device.port as u32);
        [Some(from), peer]
            .into_iter()
            .flatten()
            .find(|&port| !address.is_empty() && self.gids(control, port).contains(&address))
    }

    /// The number by which ports without global addresses know each other.
    pub(crate) fn lid(&self, port: u32) -> u16 {
        (port + 1) as u16
    }

    /// The port with a local number.
    pub(crate) fn find_lid(&self, lid: u16) -> Option<u32> {
        let port = u32::from(lid).checked_sub(1)?;
        ((port as usize) < self.fabric.devices.len()).then_some(port)
    }

    /// The header before a datagram.
    pub(crate) fn grh(&self, control: &Control, from: u32, slot: &SendSlot) -> Grh {
        let mut grh = Grh::zeroed();
        if let Some(index) = slot.source_gid.checked_sub(1) {
            grh.version_tclass_flow = (6u32 << 28).to_be();
            grh.paylen = (slot.bytes.min(u32::from(u16::MAX)) as u16).to_be();
            grh.next_hdr = 0x1b;
            grh.hop_limit = 64;
            grh.sgid = self.gids(control, from)[index as usize % GID_TABLE_LEN];
            grh.dgid = self.gids(control, slot.dest_port)[slot.dest_gid as usize % GID_TABLE_LEN];
        }
        grh
    }
}
