//! What ranks say to each other before they are connected, and what each makes of it: devices, who reaches whom, queue pairs.
//!
//! The rounds and their order are `endpoint`'s; here is what is said in each of them, and what is made and agreed on after it.
//! Every failure names the rank, the device and the remedy. Once it is over nothing here is called again.

use super::{
    endpoint::{VerbsEndpoint, lock},
    incoming::Incoming,
    introduction::{Device, Devices, End, Rails, Reach, gid_of},
    landing::{LANDINGS, place_bytes},
    memory::Keys,
    opening::Opened,
    outgoing::Outgoing,
    peer::{EAGER_CREDITS, Peer, RX_SLOTS, TX_SLOTS},
    port::Port,
    queue::{Id, Queue, What},
    rail::{Far, Places, Rail},
    wire::{LANES, SLOT_BYTES},
    wiring::{Cable, check_matrices, connects, digest, found, given},
};
use crate::{
    TransportError,
    driver::Endpoint,
    verbs::{
        Access, Channel, CompletionQueue, Context, LocalAddress, Mtu, QpType, QueuePairSpec, RemoteAddress,
        RemoteRun,
    },
};

/// Room for sends in a control queue.
const CONTROL_DEPTH: u32 = 256;
/// Completions that one rail may have waiting, for each direction: of its control queue, and of its data queues.
const SENDS_PER_RAIL: u32 = CONTROL_DEPTH + 128;
const RECEIVES_PER_RAIL: u32 = RX_SLOTS + 128;
/// Bytes that are taken when work is posted, where the device can; more is slower than reading them.
const INLINE_BYTES: u32 = 256;

impl VerbsEndpoint {
    /// Our devices, with everything that belongs to them.
    pub(super) fn introduce(&self, opened: Vec<Opened>) -> Result<Devices, TransportError> {
        let mut engine = lock(&self.engine);
        let memory = engine.memory.clone();
        let mut cards = Vec::new();
        for device in opened {
            let Opened { context, domain, abilities, card, gid_index } = device;
            let access = if abilities.one_sided { Access::Remote } else { Access::Local };
            let mut keys = Keys::new(domain.clone(), access, memory.clone());
            if !abilities.late_registration {
                let regions =
                    context.attributes().map_or(u64::MAX, |attributes| attributes.max_mr.max(0) as u64);
                let matrix = self.config.matrix.as_ref();
                self.sharing.check_regions(&card.name, matrix, memory.segments() as u64, regions)?;
                keys.register_all()?;
            }
            let channel = self.channel(&context, abilities.events)?;
            let sends = self.completion_queue(&context, SENDS_PER_RAIL, channel.as_ref())?;
            let receives = self.completion_queue(&context, RECEIVES_PER_RAIL, channel.as_ref())?;
            let full = u64::from(receives.depth()) * u64::from(self.config.event_percent) / 100;
            engine.awake_above = engine.awake_above.min(full);
            engine.ports.push(Port::new(
                (context, domain, keys, abilities),
                (sends, receives, channel),
                gid_index,
            ));
            cards.push(card);
        }
        drop(engine);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Devices { host, devices: cards })
    }

    /// A channel for announcements of completions, if they are wanted and the device has them.
    fn channel(&self, context: &Context, has_events: bool) -> Result<Option<Channel>, TransportError> {
        match self.config.events {
            Some(false) => Ok(None),
            Some(true) => Ok(Some(context.channel()?)),
            None => Ok(has_events.then(|| context.channel()).transpose()?),
        }
    }

    fn completion_queue(
        &self,
        context: &Context,
        per_rail: u32,
        channel: Option<&Channel>,
    ) -> Result<CompletionQueue, TransportError> {
        let most = context.attributes().map_or(4096, |attributes| attributes.max_cqe.max(1) as u32);
        let wanted = per_rail.saturating_mul(self.size.max(2) - 1);
        Ok(context.completion_queue(wanted.min(most), channel)?)
    }

    /// The rules for all: what the least able device can do.
    pub(super) fn agree(&self, devices: &[Devices]) {
        let all = || devices.iter().flat_map(|devices| &devices.devices);
        let rules = &mut lock(&self.engine).rules;
        rules.reliable = all().all(|device| device.reliable) && self.config.reliable != Some(false);
        rules.one_sided = all().all(|device| device.one_sided);
        rules.checksum = self.config.checksum.unwrap_or(!rules.reliable);
        let most = all().map(|device| device.max_message_bytes).min().unwrap_or(u64::MAX);
        rules.piece_bytes = rules.piece_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        // A piece takes its frames, and its trailer one.
        let frames = rules.piece_bytes.div_ceil(SLOT_BYTES) as u64 + 1;
        let depth = all().filter_map(|device| device.frame_depth).min();
        let fitting = depth.map_or(usize::MAX, |depth| (u64::from(depth) / frames) as usize);
        rules.window = rules.window.min(fitting).max(1);
    }

    fn service(&self) -> QpType {
        if lock(&self.engine).rules.reliable { QpType::RC } else { QpType::UC }
    }

    /// Tries which of our devices reach which of the others'. With a matrix there is nothing to try.
    pub(super) fn probe(&self, devices: &[Devices]) -> Result<Reach, TransportError> {
        let mut reach = Reach::default();
        if let Some(matrix) = &self.config.matrix {
            reach.matrix = Some(digest(matrix));
            return Ok(reach);
        }
        let service = self.service();
        let engine = lock(&self.engine);
        for (ours, port) in engine.ports.iter().enumerate() {
            self.sharing.check_probing(port.name(), port.abilities.max_queue_pairs)?;
            let spec = QueuePairSpec { service, send_depth: 1, recv_depth: 1, inline_bytes: 0 };
            let pair = port.domain.queue_pair(&spec, &port.receives)?;
            for (peer, devices) in devices.iter().enumerate().filter(|(peer, _)| self.sharing.is_far(*peer)) {
                for (theirs, device) in devices.devices.iter().enumerate() {
                    let far = remote(device, pair.number(), 0, peer as u32)?;
                    pair.initialize(Access::Local)?;
                    if pair.connect(&near(port, device, 0), &far).is_ok() {
                        reach.pairs.push((peer as u32, ours, theirs));
                    }
                }
            }
        }
        Ok(reach)
    }

    fn cables(&self, peer: u32, devices: &[Devices], reach: &[Reach]) -> Result<Vec<Cable>, TransportError> {
        match &self.config.matrix {
            Some(matrix) => given(self.rank, peer, matrix, devices),
            None => Ok(found(self.rank, peer, reach)),
        }
    }

    /// Notes which ranks reach each other. Not all need to; but a host that reaches no other can't take part.
    fn note_reach(&mut self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        check_matrices(reach)?;
        let matrix = self.config.matrix.as_ref();
        let reaches = |a: u32, b: u32| self.sharing.are_apart(a, b) && connects(a, b, matrix, reach);
        self.connected = (0..self.size).map(|a| (0..self.size).map(|b| reaches(a, b)).collect()).collect();
        self.sharing.check_hosts(&self.connected, devices)
    }

    /// Makes the queue pairs of all rails, and the places for their messages.
    pub(super) fn make_rails(
        &mut self,
        devices: &[Devices],
        reach: &[Reach],
    ) -> Result<Rails, TransportError> {
        let mut word = Rails::default();
        let rank = self.rank;
        self.note_reach(devices, reach)?;
        let peers = (0..self.size).filter(|peer| self.connects(rank, *peer));
        let peers: Vec<u32> = peers.collect();
        let cables: Vec<Vec<Cable>> =
            peers.iter().map(|peer| self.cables(*peer, devices, reach)).collect::<Result<_, _>>()?;
        self.check_queue_pairs(devices, reach)?;
        for (peer, cables) in peers.into_iter().zip(&cables) {
            let piece_bytes = lock(&self.engine).rules.piece_bytes;
            let staging = LANDINGS as usize * place_bytes(piece_bytes);
            let slots = self.place(TX_SLOTS as usize * SLOT_BYTES + 2 * LANES * staging)?;
            let base = slots + TX_SLOTS as usize * SLOT_BYTES;
            let mut rails = Vec::new();
            for (index, cable) in cables.iter().enumerate() {
                let (rail, mut end) = self.make_rail(peer, index, *cable, devices)?;
                end.landings = self.landings(&rail, base + LANES * staging)?;
                rails.push(rail);
                word.rails.push(end);
            }
            let out =
                std::array::from_fn(|lane| Outgoing::new(EAGER_CREDITS, base + lane * staging, LANDINGS));
            let incoming = std::array::from_fn(|lane| Incoming::new(base + (LANES + lane) * staging));
            lock(&self.engine).peers[peer as usize] = Some(Peer::new(peer, rails, slots, out, incoming));
        }
        Ok(word)
    }

    /// The landing places of all lanes, of which the first begins at `base`, as the peer addresses them by a rail.
    fn landings(&self, rail: &Rail, base: usize) -> Result<Vec<(u64, u32)>, TransportError> {
        let engine = &mut *lock(&self.engine);
        if !engine.rules.one_sided {
            return Ok(Vec::new());
        }
        let (bytes, keys) = (place_bytes(engine.rules.piece_bytes), &mut engine.ports[rail.port].keys);
        let places = 0..LANES * LANDINGS as usize;
        let remote = |place: usize| keys.remote(base + place * bytes).map(|run| (run.address, run.rkey));
        places.map(remote).collect()
    }

    /// Has every device of ours queue pairs for the rails of all ranks of our host that use it?
    fn check_queue_pairs(&self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        let mut rails = Vec::new();
        for (rank, peer) in self.sharing.pairs_of_host().filter(|(a, b)| self.connects(*a, *b)) {
            let cables = match &self.config.matrix {
                Some(matrix) => given(rank, peer, matrix, devices)?,
                None => found(rank, peer, reach),
            };
            let names = cables.iter().map(|cable| &devices[rank as usize].devices[cable.ours].name);
            rails.extend(names.map(|name| (rank, name.as_str())));
        }
        let engine = lock(&self.engine);
        let per_rail = if engine.rules.one_sided { 1 } else { 1 + LANES as u32 };
        let devices = engine.ports.iter().map(|port| (port.name(), port.abilities.max_queue_pairs));
        self.sharing.check_queue_pairs(&rails, per_rail, &devices.collect::<Vec<_>>())
    }

    fn make_rail(
        &mut self,
        peer: u32,
        index: usize,
        cable: Cable,
        devices: &[Devices],
    ) -> Result<(Rail, End), TransportError> {
        let places = Places::new(self.place(Places::BYTES)?);
        let service = self.service();
        let engine = lock(&self.engine);
        let (rules, port) = (engine.rules, &engine.ports[cable.ours]);
        let card = &devices[peer as usize].devices[cable.theirs];
        let psn = 0x00b1_0000 | (self.rank & 0xff) << 8 | index as u32;
        let queue = |wire: u8, send_depth: u32, recv_depth: u32| {
            let inline_bytes = INLINE_BYTES.min(port.abilities.max_inline);
            let spec = QueuePairSpec { service, send_depth, recv_depth, inline_bytes };
            let pair = port.domain.queue_pair_on(&spec, &port.sends, &port.receives)?;
            let id = Id { what: What::Sent, peer: peer as u16, rail: index as u8, life: 0, wire, value: 0 };
            Ok::<Queue, TransportError>(Queue::new(pair, id, send_depth, port.abilities.frame_bytes))
        };
        let control = queue(0, CONTROL_DEPTH, RX_SLOTS)?;
        let data_depth = rules.window as u32 * (rules.piece_bytes.div_ceil(SLOT_BYTES) as u32 + 1);
        let data = match rules.one_sided {
            true => None,
            false => Some([queue(1, data_depth, data_depth)?, queue(2, data_depth, data_depth)?]),
        };
        let numbers = data.iter().flatten().map(Queue::number).collect();
        let end =
            End { peer, rail: index, psn, control: control.number(), data: numbers, landings: Vec::new() };
        let name = format!("{} of rank {} to {} of rank {peer}", port.name(), self.rank, card.name);
        let theirs = card.name.clone();
        // Filled in when the peer has said its numbers.
        let far = Far { control: remote(card, 0, 0, peer)?, data: Vec::new(), landings: Vec::new() };
        let rail = Rail::new(
            (cable.ours, name, theirs, self.rank < peer),
            control,
            data,
            (near(port, card, psn), far),
            places,
        );
        Ok((rail, end))
    }

    /// Bytes of the slab that stay ours; returns their offset.
    fn place(&mut self, bytes: usize) -> Result<usize, TransportError> {
        let place = self.slab.allocate(bytes)?;
        let offset = lock(&self.engine).memory.locate(place.as_ptr(), bytes).expect("a part of the slab");
        self.places.push(place);
        Ok(offset)
    }

    /// Connects all queue pairs and posts their receives.
    pub(super) fn connect(&self, words: &[Rails]) -> Result<(), TransportError> {
        let mut engine = lock(&self.engine);
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let ends: Vec<&End> =
                words[peer as usize].rails.iter().filter(|end| end.peer == self.rank).collect();
            if engine.peers[peer as usize].is_none() {
                continue;
            }
            let (them, mut env) = engine.peer(peer as usize);
            let lanes = if env.rules.one_sided { 0 } else { LANES };
            let landings = if env.rules.one_sided { LANES * LANDINGS as usize } else { 0 };
            let fits = |(index, end): (usize, &&End)| {
                end.rail == index && end.data.len() == lanes && end.landings.len() == landings
            };
            if ends.len() != them.rails.len() || !ends.iter().enumerate().all(fits) {
                let what = format!(
                    "it has {} rails to rank {}, which has {}",
                    ends.len(),
                    self.rank,
                    them.rails.len()
                );
                return Err(TransportError::DeviceDescription { peer, what });
            }
            for (rail, end) in them.rails.iter_mut().zip(&ends) {
                let there = |qp: u32| RemoteAddress { qp, psn: end.psn, ..rail.far.control };
                let landing = |(address, rkey): &(u64, u32)| RemoteRun { address: *address, rkey: *rkey };
                rail.far = Far {
                    control: there(end.control),
                    data: end.data.iter().map(|qp| there(*qp)).collect(),
                    landings: end.landings.iter().map(landing).collect(),
                };
            }
            for rail in 0..them.rails.len() {
                them.start_rail(&mut env, rail)?;
            }
        }
        Ok(())
    }
}

fn near(port: &Port, card: &Device, psn: u32) -> LocalAddress {
    let mtu = port.context.port().map_or(Mtu::B1024, |attributes| attributes.active_mtu);
    LocalAddress { gid_index: port.gid_index, mtu: Mtu(mtu.0.min(card.mtu)), psn }
}

fn remote(card: &Device, qp: u32, psn: u32, peer: u32) -> Result<RemoteAddress, TransportError> {
    let gid = gid_of(&card.gid).ok_or_else(|| TransportError::DeviceDescription {
        peer,
        what: format!("its device {} has the address `{}`", card.name, card.gid),
    })?;
    Ok(RemoteAddress { qp, gid, lid: card.lid, psn })
}
