//! Set-up rounds of a network: the messages of a rank, and the use of the other ranks' messages.
//!
//! `endpoint` runs the rounds. Devices become ports. The rules follow from the least capable device. Trying
//! all pairs of devices shows which reach each other, and each such pair becomes a rail. Every error names
//! the rank, the device and the remedy.

use super::{
    descriptions::{Device, Devices, End, Rails, Reach, parse_gid},
    devices::OpenDevice,
    engine::Engine,
    locality,
    memory::DeviceKeys,
    network::Network,
    peer::Peer,
    placed::Placed,
    port::Port,
    queue::{Id, Queue, RequestKind},
    rail::{self, Ends, PLACED, Rail},
    rules::Rules,
    slots::{Queues, SendStore},
    wire::FRAME_BYTES,
    wiring::{DevicePair, check_matrices, check_pairs, connects, detected_cables, digest, matrix_cables},
};
use crate::{
    TransportError,
    verbs::{
        Access, Channel, CompletionQueue, Context, LocalAddress, Mtu, QpType, QueuePairSpec, RemoteAddress,
    },
};
use events::{target, tracing::info};

/// Send queue depth of a queue pair of messages with headers, in frames on devices that count in frames.
const SEND_DEPTH: u32 = 256;
/// Entries of the completion queues for a rail: as many as requests may be outstanding, or more.
const SENDS_PER_RAIL: u32 = 2 * SEND_DEPTH + 128;
const RECEIVES_PER_RAIL: u32 = 320;
/// Bytes up to which devices copy a request when it is posted. For more, reading them later is faster.
const INLINE_BYTES: u32 = 256;
/// Possible numbers of queue pairs per rail on devices that count in frames. The largest that all devices
/// have room for is used.
const FRAMED_LEVELS: [u32; 3] = [3, 2, 1];

impl Network {
    /// Makes ports of the opened devices; returns their descriptions for the other ranks.
    pub(super) fn introduce(&self, opened: Vec<OpenDevice>) -> Result<Devices, TransportError> {
        let mut engine = self.engine.lock();
        let memory = engine.memory.clone();
        let mut descriptions = Vec::new();
        for device in opened {
            let OpenDevice { context, domain, capabilities, description, gid } = device;
            let access = if capabilities.one_sided { Access::Remote } else { Access::Local };
            let mut keys = DeviceKeys::new(domain.clone(), access, memory.clone());
            if !capabilities.late_registration {
                let regions =
                    context.attributes().map_or(u64::MAX, |attributes| attributes.max_mr.max(0) as u64);
                let matrix = self.config.matrix.as_ref();
                self.hosts.check_regions(&description.name, matrix, memory.segments() as u64, regions)?;
                keys.register_all()?;
            }
            let channel = self.channel(&context, capabilities.events)?;
            let sends = self.completion_queue(&context, SENDS_PER_RAIL, channel.as_ref())?;
            let receives = self.completion_queue(&context, RECEIVES_PER_RAIL, channel.as_ref())?;
            let full = u64::from(receives.depth()) * u64::from(self.config.event_percent) / 100;
            engine.awake_above = engine.awake_above.min(full);
            engine.ports.push(Port::new(
                (context, domain, keys, capabilities),
                (sends, receives, channel),
                gid,
                &self.config,
            ));
            descriptions.push(description);
        }
        drop(engine);
        Ok(Devices::new(descriptions))
    }

    /// Creates a channel for completion events, if they are wanted and the device supports them.
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

    /// Derives the rules from the least capable device of all ranks.
    pub(super) fn agree(&self, devices: &[Devices]) {
        let all = || devices.iter().flat_map(|devices| &devices.devices);
        let rules = &mut self.engine.lock().rules;
        rules.reliable = all().all(|device| device.reliable) && self.config.reliable != Some(false);
        rules.one_sided = all().all(|device| device.one_sided);
        rules.checksum = self.config.checksum.unwrap_or(!rules.reliable);
        let most = all().map(|device| device.max_message_bytes).min().unwrap_or(u64::MAX);
        rules.piece_bytes = rules.piece_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        // A piece takes its frames, and its trailer takes one.
        let frames = rules.piece_bytes.div_ceil(FRAME_BYTES) as u64 + 1;
        let depth = all().filter_map(|device| device.frame_depth).min();
        let fitting = depth.map_or(usize::MAX, |depth| (u64::from(depth) / frames) as usize);
        rules.window = rules.window.min(fitting).max(1);
    }

    fn service(&self) -> QpType {
        if self.engine.lock().rules.reliable { QpType::RC } else { QpType::UC }
    }

    /// Tries which devices of this rank reach which devices of other ranks. With a matrix there is nothing to
    /// try.
    pub(super) fn probe(&self, devices: &[Devices]) -> Result<Reach, TransportError> {
        let mut reach = Reach::default();
        if let Some(matrix) = &self.config.matrix {
            reach.matrix = Some(digest(matrix));
            return Ok(reach);
        }
        let service = self.service();
        let engine = self.engine.lock();
        reach.far = self.far_devices(&engine);
        for (ours, port) in engine.ports.iter().enumerate() {
            self.hosts.check_probing(port.name(), port.capabilities.max_queue_pairs)?;
            let spec = QueuePairSpec { service, send_depth: 1, recv_depth: 1, inline_bytes: 0 };
            let pair = port.domain.queue_pair(&spec, &port.receives)?;
            for (peer, devices) in devices.iter().enumerate().filter(|(peer, _)| self.hosts.is_far(*peer)) {
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

    /// Returns the devices that are far from the cores of the calling thread, by index.
    fn far_devices(&self, engine: &Engine) -> Vec<usize> {
        let Some(cores) = locality::own_cores() else { return Vec::new() };
        let names = engine.ports.iter().map(Port::name).enumerate();
        let far = names.filter(|(_, name)| locality::is_far(&self.config.sysfs, name, &cores));
        far.map(|(index, name)| {
            info!(target: target::VERBS, rank = self.rank,
                "device {name} is at a NUMA node without a core of this rank; nearer ones are used first");
            index
        })
        .collect()
    }

    fn cables(
        &self,
        peer: u32,
        devices: &[Devices],
        reach: &[Reach],
    ) -> Result<Vec<DevicePair>, TransportError> {
        match &self.config.matrix {
            Some(matrix) => matrix_cables(self.rank, peer, matrix, devices),
            None => Ok(detected_cables(self.rank, peer, reach)),
        }
    }

    /// Records which ranks reach each other. Not all pairs need to, but every host must reach another one.
    fn note_reach(&mut self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        check_matrices(reach)?;
        check_pairs(reach, devices)?;
        let matrix = self.config.matrix.as_ref();
        let reaches = |a: u32, b: u32| self.hosts.are_apart(a, b) && connects(a, b, matrix, reach);
        self.connected = (0..self.size).map(|a| (0..self.size).map(|b| reaches(a, b)).collect()).collect();
        self.hosts.check_hosts(&self.connected, devices)
    }

    /// Creates the queue pairs of all rails, and the places of their messages.
    pub(super) fn make_rails(
        &mut self,
        devices: &[Devices],
        reach: &[Reach],
    ) -> Result<Rails, TransportError> {
        let mut message = Rails::default();
        let rank = self.rank;
        self.note_reach(devices, reach)?;
        self.choose_queues(devices, reach)?;
        let rules = self.engine.lock().rules;
        let peers: Vec<u32> = (0..self.size).filter(|peer| self.connects(rank, *peer)).collect();
        for peer in peers {
            let cables = self.cables(peer, devices, reach)?;
            let mut rails = Vec::new();
            for (index, cable) in cables.iter().enumerate() {
                let (rail, end) = self.make_rail(peer, index, *cable, devices)?;
                rails.push(rail);
                message.rails.push(end);
            }
            let made = self.make_peer(peer, rails, &rules)?;
            self.engine.lock().peers[peer as usize] = Some(made);
        }
        Ok(message)
    }

    /// Creates a peer, with places for the messages to it and for bulk messages that meet receives.
    fn make_peer(&mut self, peer: u32, rails: Vec<Rail>, rules: &Rules) -> Result<Peer, TransportError> {
        let store = SendStore::new(rules.queues, self.place(rules.queues.send_bytes())?);
        let mut placed = None;
        if rules.has_placed {
            placed = Some(Placed::new(rails.len(), self.place(Placed::staging_bytes(rules))?, rules));
        }
        Ok(Peer::new((peer, self.rank < peer), rails, store, placed))
    }

    /// Chooses the queue pairs of a rail: as many as every device of every rank has room for on all of its
    /// rails.
    ///
    /// All ranks choose the same, from the same messages.
    fn choose_queues(&self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        let mut fits = u32::MAX;
        for rank in 0..self.size {
            for (device, rails) in self.rails_of_host(rank, devices, reach)? {
                let description =
                    devices[rank as usize].devices.iter().find(|description| description.name == device);
                fits = fits.min(
                    description
                        .map_or(u32::MAX, |description| description.queue_pairs / rails.len().max(1) as u32),
                );
            }
        }
        let rails: Vec<(u32, String)> = self
            .rails_of_host(self.rank, devices, reach)?
            .into_iter()
            .flat_map(|(device, ranks)| ranks.into_iter().map(move |rank| (rank, device.clone())))
            .collect();
        let rails: Vec<(u32, &str)> = rails.iter().map(|(rank, device)| (*rank, device.as_str())).collect();
        let mut engine = self.engine.lock();
        let level = match engine.rules.one_sided {
            true => 1,
            false => FRAMED_LEVELS.into_iter().find(|level| *level <= fits).unwrap_or(1),
        };
        let rules = &mut engine.rules;
        rules.has_placed = level == 3;
        rules.queues = match (rules.one_sided, level) {
            (true, _) => Queues::Shared,
            (false, 1) => Queues::Short,
            (false, _) => Queues::Both,
        };
        let rules = engine.rules;
        let devices = engine.ports.iter().map(|port| (port.name(), port.capabilities.max_queue_pairs));
        self.hosts.check_queue_pairs(&rails, level, &devices.collect::<Vec<_>>())?;
        let own: Vec<&str> = rails.iter().filter(|rail| rail.0 == self.rank).map(|rail| rail.1).collect();
        let depths =
            engine.ports.iter().map(|port| (port.name(), [port.sends.depth(), port.receives.depth()]));
        self.hosts.check_completions(&own, outstanding(&rules), &depths.collect::<Vec<_>>())
    }

    /// Returns the rails of all ranks of a rank's host: by device, the ranks that have a rail on it, once for
    /// each.
    fn rails_of_host(
        &self,
        rank: u32,
        devices: &[Devices],
        reach: &[Reach],
    ) -> Result<Vec<(String, Vec<u32>)>, TransportError> {
        let mut rails: Vec<(String, Vec<u32>)> = Vec::new();
        for (rank, peer) in self.hosts.pairs_of_host(rank).filter(|(a, b)| self.connects(*a, *b)) {
            let cables = match &self.config.matrix {
                Some(matrix) => matrix_cables(rank, peer, matrix, devices)?,
                None => detected_cables(rank, peer, reach),
            };
            for cable in cables {
                let name = &devices[rank as usize].devices[cable.ours].name;
                match rails.iter_mut().find(|(device, _)| device == name) {
                    Some((_, ranks)) => ranks.push(rank),
                    None => rails.push((name.clone(), vec![rank])),
                }
            }
        }
        Ok(rails)
    }

    fn make_rail(
        &mut self,
        peer: u32,
        index: usize,
        cable: DevicePair,
        devices: &[Devices],
    ) -> Result<(Rail, End), TransportError> {
        let rules = self.engine.lock().rules;
        let base = self.place(rail::rail_bytes(&rules))?;
        let service = self.service();
        let engine = self.engine.lock();
        let port = &engine.ports[cable.ours];
        let description = &devices[peer as usize].devices[cable.theirs];
        // Packets of an earlier job do not fit a random number. All lives of the rail have the same one: the
        // other end could not know another. Messages name the life that they belong to.
        let psn = (self.name as u32) ^ (self.rank << 12) ^ (index as u32) << 8;
        let make_queue = |queue: u8, send_depth: u32, recv_depth: u32| {
            let inline_bytes = INLINE_BYTES.min(port.capabilities.max_inline);
            let spec = QueuePairSpec { service, send_depth, recv_depth, inline_bytes };
            let pair = port.domain.queue_pair_on(&spec, &port.sends, &port.receives)?;
            let id = Id {
                kind: RequestKind::Sent,
                peer: peer as u16,
                rail: index as u8,
                life: 0,
                queue,
                value: 0,
            };
            Ok::<Queue, TransportError>(Queue::new(pair, id, send_depth, port.capabilities.frame_bytes))
        };
        let frames = |bytes: usize| match port.capabilities.frame_bytes {
            Some(frame) => bytes.div_ceil(frame as usize) as u32,
            None => 1,
        };
        let receives = rules.queues.receives().iter().enumerate();
        let pairs = receives
            .map(|(queue, slots)| make_queue(queue as u8, SEND_DEPTH, slots.count * frames(slots.bytes)))
            .collect::<Result<Vec<Queue>, TransportError>>()?;
        let placed_depth = rules.window as u32 * (frames(rules.piece_bytes) + 1);
        let placed = rules.has_placed.then(|| make_queue(PLACED, placed_depth, placed_depth)).transpose()?;
        let end = End {
            peer,
            rail: index,
            psn,
            slots: pairs.iter().map(Queue::number).collect(),
            placed: placed.as_ref().map(Queue::number),
        };
        let ends = Ends {
            port: cable.ours,
            name: format!("{} of rank {} to {} of rank {peer}", port.name(), self.rank, description.name),
            theirs: description.name.clone(),
            near: near(port, description, psn),
        };
        let far = remote(description, 0, 0, peer)?;
        Ok((Rail::new(ends, far, rules.queues, pairs, placed, base), end))
    }

    /// Allocates bytes of the slab for the life of the network; returns their offset.
    fn place(&mut self, bytes: usize) -> Result<usize, TransportError> {
        let place = self.slab.allocate(bytes)?;
        let offset = self.engine.lock().memory.locate(place.as_ptr(), bytes).expect("a part of the slab");
        self.places.push(place);
        Ok(offset)
    }

    /// Connects all queue pairs and posts their receives.
    pub(super) fn connect(&self, messages: &[Rails]) -> Result<(), TransportError> {
        let mut engine = self.engine.lock();
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let ends: Vec<&End> =
                messages[peer as usize].rails.iter().filter(|end| end.peer == self.rank).collect();
            if engine.peers[peer as usize].is_none() {
                continue;
            }
            let (them, mut env) = engine.peer(peer as usize)?;
            let slots = env.rules.queues.receives().len();
            let fits = |(index, end): (usize, &&End)| {
                end.rail == index && end.slots.len() == slots && end.placed.is_some() == env.rules.has_placed
            };
            if ends.len() != them.rails().len() || !ends.iter().enumerate().all(fits) {
                let what = format!(
                    "it has {} rails to rank {}, which has {}",
                    ends.len(),
                    self.rank,
                    them.rails().len()
                );
                return Err(TransportError::DeviceDescription { peer, what });
            }
            for (rail, end) in them.rails_mut().iter_mut().zip(&ends) {
                rail.set_far_numbers(end.psn, &end.slots, end.placed);
            }
            for rail in 0..them.rails().len() {
                them.start_rail(&mut env, rail)?;
            }
        }
        Ok(())
    }
}

/// Requests of a rail that may be outstanding: sends, and receives. When a queue pair fails, each has a
/// completion.
fn outstanding(rules: &Rules) -> [u32; 2] {
    let slots = rules.queues.receives();
    // A piece has a trailer.
    let placed = if rules.has_placed { 2 * rules.window as u32 } else { 0 };
    let receives: u32 = slots.iter().map(|slots| slots.count).sum();
    [slots.len() as u32 * SEND_DEPTH + placed, receives + placed]
}

fn near(port: &Port, description: &Device, psn: u32) -> LocalAddress {
    let mtu = port.context.port().map_or(Mtu::B1024, |attributes| attributes.active_mtu);
    LocalAddress { gid_index: port.gid_index(), mtu: Mtu(mtu.0.min(description.mtu)), psn, class: port.class }
}

fn remote(description: &Device, qp: u32, psn: u32, peer: u32) -> Result<RemoteAddress, TransportError> {
    let gid = parse_gid(&description.gid).ok_or_else(|| TransportError::DeviceDescription {
        peer,
        what: format!("its device {} has the address `{}`", description.name, description.gid),
    })?;
    Ok(RemoteAddress { qp, gid, lid: description.lid, psn })
}
